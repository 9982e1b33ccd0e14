"""The voices of a dataset: whether speakers are embedded, the mean embedding of each, what a clip without one gets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.manifest import MAX_VOICES, VOICE_DIGITS
from tokenizer.corpora.model import Corpus
from tokenizer.items import Item


def speakers_of(corpus: Corpus) -> list[str]:
    """The speakers whom the clips of a corpus name; those of long recordings are known only when they have been cut."""
    return sorted({clip.speaker or corpus.speaker for clip in corpus.clips})


def embeds_speakers(corpus: Corpus, asked: bool | None) -> bool:
    """Whether the speaker of every clip is embedded.

    Args:
        asked: what a person has said; None: where the clips have more than one speaker, or where there are long recordings beside
            them, whose pieces have embeddings anyway.
    """
    if asked is not None:
        return asked
    return len(speakers_of(corpus)) > 1 or bool(corpus.clips and corpus.recordings)


@dataclass(frozen=True)
class MeanVoice:
    """The mean of the embeddings of a speaker's clips.

    Args:
        clips: how many it is the mean of. embedding: float32 [E] of unit length, rounded as the manifest has it.
    """

    clips: int
    embedding: NDArray[np.float32]


def mean_voices(found: Iterable[tuple[str, NDArray[np.float32] | None]]) -> dict[str, MeanVoice]:
    """The mean embedding of each speaker, scaled to unit length: the centroid of Wan et al., "Generalized end-to-end loss for
    speaker verification" (2018).

    Args:
        found: (speaker, embedding [E] of unit length or None) of each clip.

    Returns: by name, of the speakers of whom any clip has an embedding.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    clips: dict[str, int] = {}
    for speaker, embedding in found:
        if embedding is None:
            continue
        value = np.asarray(embedding, np.float64)
        sums[speaker] = sums[speaker] + value if speaker in sums else value
        clips[speaker] = clips.get(speaker, 0) + 1
    means: dict[str, MeanVoice] = {}
    for speaker, total in sums.items():
        norm = float(np.linalg.norm(total))
        if norm > 0:
            rounded = np.round(total / norm, VOICE_DIGITS) + 0.0  # + 0.0: no negative zero
            means[speaker] = MeanVoice(clips[speaker], rounded.astype(np.float32))
    return means


def listed_voices(means: Mapping[str, MeanVoice]) -> dict[str, list[float]]:
    """What the manifest says of them: of at most MAX_VOICES speakers, those of whom most clips are known."""
    most = sorted(means, key=lambda name: (-means[name].clips, name))[:MAX_VOICES]
    return {name: [round(float(value), VOICE_DIGITS) for value in means[name].embedding] for name in sorted(most)}


class DatasetVoices:
    """The embedding of each clip's speaker: the clip's own, or else the mean of the speaker's clips.

    The means are of the clips to train on; of a speaker of whom none of these has an embedding, of those that are held out.

    Args:
        items: all utterances. used: numbers of those that have rows, in any order, also more than once.
        held: ids of those that are held out.
        heard: the embedding [E] of an utterance by its number, where its sound has been embedded.
    """

    def __init__(
        self, items: Sequence[Item], used: Sequence[int], held: Set[str], heard: Callable[[int], NDArray[np.float32] | None]
    ) -> None:
        self._items, self._heard = items, heard
        clips = list(dict.fromkeys(used))  # a long one has many rows and counts once

        def means(of_held: bool) -> dict[str, MeanVoice]:
            side = (index for index in clips if (items[index].id in held) == of_held)
            return mean_voices((items[index].speaker, self._own(index)) for index in side)

        self.means: dict[str, MeanVoice] = {**means(True), **means(False)}

    def _own(self, index: int) -> NDArray[np.float32] | None:
        embedding = self._items[index].embedding
        return embedding if embedding is not None else self._heard(index)

    def of(self, index: int) -> NDArray[np.float32] | None:
        """Float32 [E] for the clip with this number; None where its speaker has none at all."""
        own = self._own(index)
        if own is not None:
            return own
        mean = self.means.get(self._items[index].speaker)
        return None if mean is None else mean.embedding
