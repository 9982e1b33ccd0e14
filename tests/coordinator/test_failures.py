"""When a member is given up: by its own silence, sooner with a broken connection or with what its callers say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.failures import Signs, heartbeat_s, judge

SILENCE_S = 10.0
BEAT_S = heartbeat_s(SILENCE_S)

ages = st.floats(0, 100, allow_nan=False)
silences = st.floats(0.5, 600)
signs = st.builds(
    Signs, quiet_s=ages, returning=st.booleans(), broken_s=st.none() | ages, suspicions=st.integers(0, 5),
    shunned_s=st.none() | ages,
)  # fmt: skip


@pytest.mark.parametrize(("case", "lost"), [
    (Signs(0.0), False),
    (Signs(9.9), False),
    (Signs(10.1), True),
    # After a restart of the coordinator the first word may take longer.
    (Signs(29.0, returning=True), False),
    (Signs(31.0, returning=True), True),
    (Signs(9.9, returning=True, suspicions=1), False),
    (Signs(10.1, returning=True, suspicions=1), True),
    # Killed: its connection breaks; a second later it is given up, sooner where a caller met the same.
    (Signs(1.0, broken_s=0.9), False),
    (Signs(1.1, broken_s=1.1), True),
    (Signs(0.3, broken_s=0.3, suspicions=1), True),
    (Signs(0.1, broken_s=0.1, suspicions=1), False),
    # Frozen: the connection stands, heartbeats do not come, and callers say so.
    (Signs(2 * BEAT_S - 0.1, suspicions=1), False),
    (Signs(2 * BEAT_S + 0.1, suspicions=1), True),
    (Signs(1.25 * BEAT_S + 0.1, suspicions=1), False),
    (Signs(1.25 * BEAT_S + 0.1, suspicions=2), True),
    # It beats, but nobody reaches it.
    (Signs(0.1, suspicions=2, shunned_s=2 * SILENCE_S - 0.1), False),
    (Signs(0.1, suspicions=2, shunned_s=2 * SILENCE_S + 0.1), True),
])  # fmt: skip
def test_who_is_lost(case: Signs, lost: bool) -> None:
    verdict = judge(case, SILENCE_S)
    assert verdict.lost is lost and verdict.reason


@given(st.floats(0, 1), st.integers(0, 1000), silences)
def test_however_many_say_so_a_member_that_beats_is_not_lost(phase: float, suspicions: int, silence_s: float) -> None:
    assert not judge(Signs(phase * heartbeat_s(silence_s), suspicions=suspicions), silence_s).lost


@given(signs, silences)
def test_more_signs_of_failure_never_save_a_member(case: Signs, silence_s: float) -> None:
    verdict = judge(case, silence_s)
    worse = [replace(case, shunned_s=(case.shunned_s or 0.0) + 1)] if not case.returning else []
    worse += [replace(case, quiet_s=case.quiet_s + 1), replace(case, suspicions=case.suspicions + 1)]
    if not case.returning:
        worse.append(replace(case, broken_s=(case.broken_s or 0.0) + 1))
    for one in worse:
        assert judge(one, silence_s).lost >= verdict.lost
        assert judge(one, silence_s).look_again_s <= verdict.look_again_s + 1e-9


@given(signs, silences)
def test_it_says_when_to_look_again(case: Signs, silence_s: float) -> None:
    """Nothing changes before that time, and the member is lost right after it."""
    verdict = judge(case, silence_s)
    if verdict.lost:
        assert verdict.look_again_s == 0
        return
    assert verdict.look_again_s > 0

    def after(seconds: float) -> Signs:
        broken_s = None if case.broken_s is None else case.broken_s + seconds
        shunned_s = None if case.shunned_s is None else case.shunned_s + seconds
        return replace(case, quiet_s=case.quiet_s + seconds, broken_s=broken_s, shunned_s=shunned_s)

    assert not judge(after(0.99 * verdict.look_again_s - 1e-6), silence_s).lost
    assert judge(after(verdict.look_again_s + 1e-6), silence_s).lost


@given(silences, st.integers(0, 5))
def test_silence_alone_is_believed_in_the_end(silence_s: float, suspicions: int) -> None:
    assert judge(Signs(silence_s + 0.01, suspicions=suspicions), silence_s).lost
