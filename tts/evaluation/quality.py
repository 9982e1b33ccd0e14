"""How clean a recording sounds: DNSMOS, a network's guess of the overall opinion score, 1 (bad) to 5 (excellent)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenizer.resampling import resample
from tts.evaluation.extras import import_extra

SAMPLE_RATE = 16_000
WINDOW_SAMPLES = 144_160  # 9.01 s, what the network hears at once
NAME = "DNSMOS P.835 OVRL (speechmos 0.0.1.1)"


class Quality:
    """DNSMOS P.835's overall score (Reddy et al., 2022), by the package speechmos.

    Raises:
        HocketError: EXTRA_MISSING.
    """

    def __init__(self) -> None:
        self._package = import_extra("speechmos.dnsmos")

    def score(self, samples: NDArray[np.float32], sample_rate: int) -> float | None:
        """The score of samples float32 [N]; None for no sound at all.

        A clip shorter than the network's window is repeated to exactly one window, and of a longer one the whole windows
        that begin at each second are averaged.
        """
        if len(samples) == 0 or not np.any(samples):
            return None
        sound = resample(np.asarray(samples, np.float32), sample_rate, SAMPLE_RATE)
        sound = sound / max(1.0, float(np.abs(sound).max()))
        if len(sound) < WINDOW_SAMPLES:
            sound = np.tile(sound, -(-WINDOW_SAMPLES // len(sound)))[:WINDOW_SAMPLES]
        return float(self._package.run(sound, SAMPLE_RATE)["ovrl_mos"])
