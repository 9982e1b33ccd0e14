"""How much a clip sounds like its speaker: speaker embeddings by Resemblyzer, compared with the speaker's recordings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from common.errors import HocketError
from tokenizer.recordings.clip_voice import ClipVoice
from tokenizer.recordings.embed import NAME, SpeakerEncoder
from tts.evaluation.extras import REMEDY

__all__ = ["NAME", "SpeakerEmbedder", "similarity"]

Embedding = NDArray[np.float32]


class SpeakerEmbedder:
    """Speaker embeddings float32 [256] of unit length of whole clips.

    Raises:
        HocketError: EXTRA_MISSING.
    """

    def __init__(self) -> None:
        try:
            self._embed = ClipVoice(SpeakerEncoder())
        except HocketError as error:
            raise HocketError(error.code, error.detail, remedy=REMEDY) from error

    def embed(self, samples: NDArray[np.float32], sample_rate: int) -> Embedding | None:
        """The embedding of samples float32 [N]; None for a clip that is too short or silent."""
        return self._embed(samples, sample_rate) if len(samples) else None


def similarity(clips: Mapping[str, Embedding], recordings: Mapping[str, Embedding], speakers: Mapping[str, str]) -> float | None:
    """Mean cosine between clips and the centroids of their speakers' recordings, each clip's own recording left out.

    Leaving it out makes recordings, their resynthesis and synthesis comparable (Wan et al., "Generalized end-to-end loss for
    speaker verification", 2018, eq. 8). Clips of a speaker without another recording are passed over.

    Args:
        clips: embedding [E] of unit length by id. recordings: likewise. speakers: of each id.

    Returns: the mean, or None where no clip can be compared.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    for name, embedding in recordings.items():
        sums[speakers[name]] = sums.get(speakers[name], 0.0) + embedding.astype(np.float64)
    cosines = []
    for name, embedding in clips.items():
        others = sums.get(speakers[name])
        if others is None:
            continue
        if name in recordings:
            others = others - recordings[name]
        norm = float(np.linalg.norm(others))
        if norm > 1e-6:
            cosines.append(float(embedding @ others) / norm)
    return float(np.mean(cosines)) if cosines else None
