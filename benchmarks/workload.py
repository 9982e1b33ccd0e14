"""The work that every row of the pipeline benchmark does: the same random utterances of one length, in the same microbatches.

All utterances have one length because torch.distributed.pipelining needs one shape for every microbatch; nobody has to pad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizer.shards import Utterance
    from tts.batch import TextBatch
    from tts.config import ModelConfig

# Of the demo's corpus: mean length of its sentences, symbols, and the codec's size.
N_FRAMES = 142
N_PHONEMES = 33
INVENTORY = 48
CODEBOOKS = 4
CODEBOOK_SIZE = 256
LANGUAGE = "en-US"


@dataclass(frozen=True)
class Workload:
    """What is trained, and how it is cut.

    Args:
        microbatches: of an inner step, all in flight. microbatch_size: utterances of each.
        steps: inner steps, warm-up included.
        wire: encoding of what crosses between Hocket's workers; the other rows always send float32.
    """

    preset: str
    microbatches: int
    microbatch_size: int
    steps: int
    seed: int = 0
    wire: str = "fp32"

    @property
    def frames_per_step(self) -> int:
        return self.microbatches * self.microbatch_size * N_FRAMES

    @property
    def utterances_per_step(self) -> int:
        return self.microbatches * self.microbatch_size

    def config(self) -> ModelConfig:
        """The model of every row."""
        from tts.config import preset

        return preset(self.preset, n_codebooks=CODEBOOKS, codebook_size=CODEBOOK_SIZE, n_phonemes=INVENTORY)


def utterance(seed: int, number: int) -> Utterance:
    """The utterance with that number: a function of (seed, number)."""
    from tokenizer.shards import Utterance

    draw = np.random.Generator(np.random.Philox(key=[seed, number]))
    cuts = np.sort(draw.choice(np.arange(1, N_FRAMES), N_PHONEMES - 1, replace=False))
    return Utterance(
        id=f"random-{number}",
        text="",
        spoken="",
        phonemes=draw.integers(1, INVENTORY, N_PHONEMES).astype(np.uint16),
        durations=np.diff(cuts, prepend=0, append=N_FRAMES).astype(np.uint16),
        word_starts=draw.integers(0, 2, N_PHONEMES).astype(np.uint8),
        align_score=0.0,
        language=LANGUAGE,
        speaker="random",
        codes=draw.integers(0, CODEBOOK_SIZE, (CODEBOOKS, N_FRAMES)).astype(np.uint16),
        n_frames=N_FRAMES,
        speaker_embedding=None,
        licence="CC0-1.0",
    )


def inner_step(work: Workload, step: int) -> list[tuple[int, TextBatch]]:
    """Microbatches of an inner step as (id, tensors)."""
    from tts.batch import collate

    config = work.config()
    batches = []
    for index in range(work.microbatches):
        identity = step * work.microbatches + index
        first = identity * work.microbatch_size
        batches.append((identity, collate([utterance(work.seed, first + row) for row in range(work.microbatch_size)], config)))
    return batches
