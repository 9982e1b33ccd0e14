"""What a model does wrong without any loss showing it: the figures that tell, and the decision to give alarm. No torch.

A model can fall in loss and still babble: it may have learnt what codes follow one another and not which text they belong to,
one code may have taken the place of all others, one codebook or one speaker may have been left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

# Differences in loss below this are noise: two trainings that differ in their seed alone lie about so far apart on some
# dozens of sentences. A model that reads its text loses many times that with another one.
LEAST_TEXT_GAP = 0.02
# Fewer sentences than these, each given the text of another one, or spoken once, say nothing about a group.
LEAST_UTTERANCES = 4
# Drawn from the ten likeliest codes and with guidance a good model's speech still has more than half of the recordings'
# diversity; a model that repeats a few codes falls to some hundredths.
LEAST_DIVERSITY = 0.2
# A predictor that says one and the same duration for every phoneme has an error of 1 in these units; one that has learnt
# anything at all is well below.
MOST_DURATION_SHARE = 0.95
# Voices differ in how much of their codes the text settles; one of which it settles less than a third of what is usual was left
# behind.
LEAST_SPEAKER_SHARE = 1 / 3

ALL = "all"
SPEAKER = "speaker"
LANGUAGE = "language"


@dataclass(frozen=True)
class GroupWatch:
    """What was measured of some utterances. Accuracies and shares count one end mark an utterance and codebook, as the loss does.

    Args:
        kind: whose they are: "all", "speaker" or "language". name: of the speaker or language; "all" for all.
        utterances: how many.
        loss: cross-entropy per code with the right text.
        loss_shuffled: the same with the text of another utterance of the same language, mean over some shufflings.
        shuffle_spread: largest minus smallest of those.
        accuracy: per codebook [K], share of codes that are the likeliest one when all codes before are the recorded ones.
        duration_error: sum of |predicted - true| durations / sum of the true ones.
        diversity: per codebook [K], perplexity of the codes that the model speaks / perplexity of the recorded codes of the same
            sentences, of the same number of frames; empty where none of the group was spoken.
        commonest: per codebook [K], what accuracy would be if the most frequent code of the group were always said.
        duration_error_of_median: what duration_error would be if their median were predicted for every phoneme.
    """

    kind: str
    name: str
    utterances: int
    loss: float
    loss_shuffled: float
    shuffle_spread: float
    accuracy: tuple[float, ...]
    duration_error: float
    diversity: tuple[float, ...]
    commonest: tuple[float, ...]
    duration_error_of_median: float

    @property
    def text_gap(self) -> float:
        """How much another text costs, in nats a code."""
        return self.loss_shuffled - self.loss

    @property
    def reads_its_text(self) -> bool:
        """Whether another text costs more than one shuffling differs from the next, and more than noise."""
        return self.text_gap > max(self.shuffle_spread, LEAST_TEXT_GAP)

    @property
    def label(self) -> str:
        """For people: "all", "speaker slt", "language en-US"."""
        return self.name if self.kind == ALL else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Watch:
    """The groups of one model: that of all utterances first, then speakers, then languages, each by name."""

    groups: tuple[GroupWatch, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, as reports have them."""
        return {"groups": [asdict(group) for group in self.groups]}

    @property
    def whole(self) -> GroupWatch:
        """The group of all utterances."""
        return self.groups[0]


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong.

    Args:
        kind: "text_not_read", "collapsed_codes", "durations_not_learnt", "codebook_not_learnt" or "speaker_behind".
        group: label of the group. reason: in words, with the figures.
    """

    kind: str
    group: str
    reason: str


def alarms(watch: Watch, *, round: int | None = None) -> tuple[Alarm, ...]:
    """What is wrong with a model.

    All utterances together are judged first. A speaker or a language is judged where it has at least `LEAST_UTTERANCES` and is
    not all there is, and for nothing that is wrong with all of them.

    Args:
        round: after which it was measured, for the reasons.
    """
    found: list[Alarm] = []
    for group in watch.groups:
        if group is watch.whole or LEAST_UTTERANCES <= group.utterances < watch.whole.utterances:
            general = {one.kind for one in found if one.group == watch.whole.label}
            checks = {kind: check for kind, check in _CHECKS.items() if kind not in general}
            found += [Alarm(kind, group.label, reason) for kind, check in checks.items() for reason in check(group)]
    found += _speakers_behind(watch)
    if round is None:
        return tuple(found)
    return tuple(Alarm(one.kind, one.group, f"after round {round}: {one.reason}") for one in found)


def _text_not_read(group: GroupWatch) -> Iterator[str]:
    if not group.reads_its_text:
        yield (
            f"this model does not read its text ({group.label}): with the text of other sentences the loss is "
            f"{group.loss_shuffled:.3f} a code instead of {group.loss:.3f}, and shufflings differ by {group.shuffle_spread:.3f}"
        )


def _collapsed_codes(group: GroupWatch) -> Iterator[str]:
    books = [book for book, share in enumerate(group.diversity) if share < LEAST_DIVERSITY]
    if books:
        shares = ", ".join(f"{group.diversity[book]:.2f} in codebook {book}" for book in books)
        yield f"the spoken codes have collapsed ({group.label}): their diversity is {shares} of the recordings'"


def _durations_not_learnt(group: GroupWatch) -> Iterator[str]:
    # Where all phonemes last equally long, the median is right and there is nothing to learn.
    if group.duration_error > MOST_DURATION_SHARE * group.duration_error_of_median + 1e-9:
        yield (
            f"durations are not learnt ({group.label}): they are wrong by {group.duration_error:.0%} of the speech, one length "
            f"for all phonemes would be by {group.duration_error_of_median:.0%}"
        )


def _codebook_not_learnt(group: GroupWatch) -> Iterator[str]:
    pairs = zip(group.accuracy, group.commonest, strict=True)
    # Where one code is all there is, saying it is all there is to learn.
    books = [book for book, (right, commonest) in enumerate(pairs) if right <= commonest and right < 1.0]
    if books:
        shares = ", ".join(f"codebook {book} {group.accuracy[book]:.1%} (of {group.commonest[book]:.1%})" for book in books)
        yield f"codebooks are not learnt ({group.label}): the likeliest code is right no more often than the commonest: {shares}"


def _speakers_behind(watch: Watch) -> list[Alarm]:
    """Speakers whose text tells the model far less than that of most others does; at least two are compared."""
    speakers = [group for group in watch.groups if group.kind == SPEAKER and group.utterances >= LEAST_UTTERANCES]
    behind = []
    for group in speakers:
        others = [other.text_gap for other in speakers if other is not group]
        usual = median(others) if others else 0.0
        if usual > LEAST_TEXT_GAP and group.text_gap < LEAST_SPEAKER_SHARE * usual:
            reason = (
                f"{group.label} is behind: another text costs {group.text_gap:.3f} a code, where it costs {usual:.3f} with "
                f"the other speaker{'s' if len(others) > 1 else ''}"
            )
            behind.append(Alarm("speaker_behind", group.label, reason))
    return behind


_CHECKS: dict[str, Callable[[GroupWatch], Iterator[str]]] = {
    "text_not_read": _text_not_read,
    "collapsed_codes": _collapsed_codes,
    "durations_not_learnt": _durations_not_learnt,
    "codebook_not_learnt": _codebook_not_learnt,
}
