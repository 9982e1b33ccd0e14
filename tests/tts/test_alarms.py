"""The decision to give alarm, on figures made up for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts.alarms import (
    ALL,
    LANGUAGE,
    LEAST_DIVERSITY,
    LEAST_SPEAKER_SHARE,
    LEAST_TEXT_GAP,
    LEAST_UTTERANCES,
    SPEAKER,
    GroupWatch,
    Watch,
    alarms,
)

SOUND = GroupWatch(
    kind=ALL, name=ALL, utterances=100, loss=3.07, loss_shuffled=5.21, shuffle_spread=0.03, accuracy=(0.68, 0.33),
    duration_error=0.2, diversity=(1.04, 0.66), commonest=(0.09, 0.08), duration_error_of_median=0.42,
)  # fmt: skip
losses = st.floats(0, 20)
shares = st.floats(0, 1)
watched = st.builds(
    GroupWatch, kind=st.just(ALL), name=st.just(ALL), utterances=st.integers(2, 500), loss=losses, loss_shuffled=losses,
    shuffle_spread=st.floats(0, 1), accuracy=st.tuples(shares, shares), duration_error=st.floats(0, 5),
    diversity=st.one_of(st.just(()), st.tuples(st.floats(0, 2), st.floats(0, 2))), commonest=st.tuples(shares, shares),
    duration_error_of_median=st.floats(0, 2),
)  # fmt: skip


def of(kind: str, name: str, **changes: object) -> GroupWatch:
    return replace(SOUND, kind=kind, name=name, utterances=20, **changes)  # type: ignore[arg-type]


def kinds(*groups: GroupWatch) -> set[tuple[str, str]]:
    return {(one.kind, one.group) for one in alarms(Watch(groups))}


def test_a_sound_model_gives_no_alarm() -> None:
    assert alarms(Watch((SOUND, of(SPEAKER, "a"), of(SPEAKER, "b"), of(LANGUAGE, "en")))) == ()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("text_not_read", {"loss_shuffled": 3.08, "shuffle_spread": 0.0}),
        ("text_not_read", {"loss_shuffled": 3.5, "shuffle_spread": 0.5}),
        ("text_not_read", {"loss_shuffled": 2.9}),
        ("collapsed_codes", {"diversity": (1.0, 0.01)}),
        ("durations_not_learnt", {"duration_error": 0.42}),
        ("codebook_not_learnt", {"accuracy": (0.68, 0.08)}),
    ],
)
def test_each_fault_has_its_alarm_and_its_reason(kind: str, changes: dict[str, object]) -> None:
    (alarm,) = alarms(Watch((replace(SOUND, **changes),)), round=7)  # type: ignore[arg-type]
    assert (alarm.kind, alarm.group) == (kind, "all")
    assert alarm.reason.startswith("after round 7: ") and "all" in alarm.reason


def test_the_reason_says_it_in_plain_words() -> None:
    (alarm,) = alarms(Watch((replace(SOUND, loss_shuffled=3.07),)))
    assert alarm.reason.startswith("this model does not read its text")
    assert "3.070" in alarm.reason and "0.030" in alarm.reason


@given(watched)
def test_every_alarm_follows_from_its_figures_alone(group: GroupWatch) -> None:
    found = {one.kind for one in alarms(Watch((group,)))}
    assert ("text_not_read" in found) == (group.loss_shuffled - group.loss <= max(group.shuffle_spread, LEAST_TEXT_GAP))
    assert ("collapsed_codes" in found) == any(share < LEAST_DIVERSITY for share in group.diversity)
    no_better = [right <= guess and right < 1 for right, guess in zip(group.accuracy, group.commonest, strict=True)]
    assert ("codebook_not_learnt" in found) == any(no_better)
    if group.duration_error <= 0.9 * group.duration_error_of_median:
        assert "durations_not_learnt" not in found
    if group.duration_error > group.duration_error_of_median + 1e-6:
        assert "durations_not_learnt" in found
    assert alarms(Watch((group,))) == alarms(Watch((group,)))


@given(watched, st.floats(0, 1))
def test_more_text_read_never_gives_a_new_alarm(group: GroupWatch, more: float) -> None:
    better = replace(group, loss_shuffled=group.loss_shuffled + more)
    assert {one.kind for one in alarms(Watch((better,)))} <= {one.kind for one in alarms(Watch((group,)))}


def test_a_part_is_judged_beside_the_whole() -> None:
    deaf = {"loss_shuffled": 3.07}
    assert kinds(SOUND, of(SPEAKER, "a", **deaf), of(SPEAKER, "b")) == {
        ("text_not_read", "speaker a"), ("speaker_behind", "speaker a")
    }  # fmt: skip
    assert kinds(SOUND, of(LANGUAGE, "fr", **deaf)) == {("text_not_read", "language fr")}


def test_what_is_wrong_with_all_is_said_once() -> None:
    deaf = replace(SOUND, loss_shuffled=3.07)
    parts = [replace(deaf, kind=SPEAKER, name=name, utterances=50) for name in "ab"]
    assert kinds(deaf, *parts) == {("text_not_read", "all")}


def test_a_part_that_is_the_whole_or_too_small_is_not_judged() -> None:
    silent = {"diversity": (0.0, 0.0)}
    assert kinds(SOUND, replace(SOUND, kind=SPEAKER, name="a", **silent)) == set()  # type: ignore[arg-type]
    few = replace(of(SPEAKER, "a", **silent), utterances=LEAST_UTTERANCES - 1)
    assert kinds(SOUND, few) == set()
    assert kinds(SOUND, replace(few, utterances=LEAST_UTTERANCES)) == {("collapsed_codes", "speaker a")}


@given(st.floats(0.1, 3), st.floats(0, 3))
def test_a_speaker_is_behind_by_a_factor(usual: float, own: float) -> None:
    groups = [of(SPEAKER, name, loss=3.0, loss_shuffled=3.0 + usual, shuffle_spread=0.0) for name in "abc"]
    slow = of(SPEAKER, "slow", loss=3.0, loss_shuffled=3.0 + own, shuffle_spread=0.0)
    behind = ("speaker_behind", "speaker slow") in kinds(SOUND, *groups, slow)
    if abs(own - usual * LEAST_SPEAKER_SHARE) > 1e-6:
        assert behind == (own < usual * LEAST_SPEAKER_SHARE)


def test_one_code_that_is_all_there_is_need_not_be_beaten() -> None:
    assert kinds(replace(SOUND, accuracy=(1.0, 0.5), commonest=(1.0, 0.1))) == set()
    assert kinds(replace(SOUND, duration_error=0.0, duration_error_of_median=0.0)) == set()


def test_a_watch_is_plain_json() -> None:
    (group,) = json.loads(json.dumps(Watch((SOUND,)).to_json()))["groups"]
    assert group["kind"] == "all" and group["accuracy"] == [0.68, 0.33] and group["loss"] == 3.07
