"""Where a recording has speech: silero-vad's probabilities of a stream, and the decision made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenizer.recordings.extras import import_extra

SAMPLE_RATE = 16000
CHUNK = 512  # samples that one probability stands for
CONTEXT = 64  # samples of the chunk before that the model sees with each chunk
GROUP = 64  # chunks given to the model together; always as many, so that probabilities do not depend on how the samples came
PROBE_TOLERANCE = 0.02  # of log odds: the grouped way must give what the model's own call gives

Probabilities = Callable[[NDArray[np.float32], "Tensor | None"], tuple[NDArray[np.float32], Tensor]]


@dataclass(frozen=True)
class SpeechSettings:
    """Speech begins where the probability reaches `onset` and ends where it stays below `offset` for `min_silence_s`.

    Args:
        min_speech_s: less is no speech.
        max_span_s: speech without a pause is cut at its least likely place, so that no span is longer.
    """

    onset: float = 0.5
    offset: float = 0.35
    min_silence_s: float = 0.1
    min_speech_s: float = 0.1
    max_span_s: float = 12.0


class SpeechDecider:
    """Spans of speech from probabilities, as they come. Pure: the same probabilities give the same spans, however divided."""

    def __init__(self, settings: SpeechSettings = SpeechSettings()) -> None:
        self.settings = settings
        chunk_s = CHUNK / SAMPLE_RATE
        self._min_silence = max(1, round(settings.min_silence_s / chunk_s))
        self._min_speech = max(1, round(settings.min_speech_s / chunk_s))
        self._max_span = max(2, int(settings.max_span_s / chunk_s))
        self._chunks = 0
        self._start: int | None = None
        self._silence: int | None = None  # where the silence began that may end the open span
        self._heard: list[float] = []  # probabilities of the open span: at most max_span_s of them

    def push(self, probabilities: Iterable[float]) -> list[tuple[int, int]]:
        """Take the next probabilities; give the spans [start, stop) in samples that are now complete."""
        closed: list[tuple[int, int]] = []
        for probability in probabilities:
            here = self._chunks
            self._chunks += 1
            if self._start is None:
                if probability < self.settings.onset:
                    continue
                self._start = here
            self._heard.append(probability)
            if probability >= self.settings.onset:
                self._silence = None
            elif probability < self.settings.offset:
                self._silence = here if self._silence is None else self._silence
                if here + 1 - self._silence >= self._min_silence:
                    closed += self._close(self._silence)
                    continue
            if len(self._heard) >= self._max_span:
                closed += self._cut()
        return closed

    def finish(self) -> list[tuple[int, int]]:
        """The span that was open at the end, if any."""
        return [] if self._start is None else self._close(self._silence if self._silence is not None else self._chunks)

    @property
    def decided(self) -> int:
        """Samples about which all is decided: before it, the spans given and `open_from` on are speech, all else is not."""
        if self._start is None:
            return self._chunks * CHUNK
        return CHUNK * (self._heard_until() if self.open_from is not None else self._start)

    @property
    def open_from(self) -> int | None:
        """The sample where the span begins that is not complete yet, once it is long enough to be speech."""
        if self._start is None or self._heard_until() - self._start < self._min_speech:
            return None
        return self._start * CHUNK

    def _heard_until(self) -> int:
        return self._chunks if self._silence is None else self._silence

    def _close(self, stop: int) -> list[tuple[int, int]]:
        start, self._start, self._silence = self._start, None, None
        self._heard.clear()
        return [(start * CHUNK, stop * CHUNK)] if start is not None and stop - start >= self._min_speech else []

    def _cut(self) -> list[tuple[int, int]]:
        """End the open span at its least likely chunk in the second half, and begin the next one there."""
        assert self._start is not None
        half = max(self._min_speech, len(self._heard) // 2)
        place = half + int(np.argmin(self._heard[half:])) if half < len(self._heard) else half
        start, self._start = self._start, self._start + place
        del self._heard[:place]
        if self._silence is not None:
            self._silence = max(self._silence, self._start)
        return [(start * CHUNK, self._start * CHUNK)]


class SileroVad:
    """silero-vad, loaded by its own package.

    The model is asked for a stretch of chunks at once: its convolutions know no state, and its one recurrent cell is run
    over the stretch as a sequence. Where a release of the package is built otherwise, or gives other probabilities for a
    test signal, the model is called chunk by chunk.
    """

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        try:
            package = import_extra("silero_vad")
            self._model: Any = package.load_silero_vad()
        finally:
            torch.set_num_threads(threads)  # importing the package sets one thread for the whole process
        self._model.eval()
        grouped = _grouped(self._model)
        self.grouped = grouped is not None and _agrees(grouped, self._one_by_one)
        self.probabilities: Probabilities = grouped if self.grouped and grouped is not None else self._one_by_one

    def stream(self) -> VadStream:
        """A new stream; it may end the one before, since the model's own call keeps its state in the model."""
        return VadStream(self.probabilities)

    def _one_by_one(self, chunks: NDArray[np.float32], state: Tensor | None) -> tuple[NDArray[np.float32], Tensor]:
        """float32 [N, CONTEXT + CHUNK] to probabilities [N] by the model's own call; it keeps context and state itself."""
        if state is None:
            self._model.reset_states()
        samples = torch.from_numpy(np.ascontiguousarray(chunks[:, CONTEXT:]).copy())
        with torch.inference_mode():
            return np.array([float(self._model(chunk, SAMPLE_RATE)) for chunk in samples], np.float32), torch.zeros(0)


class VadStream:
    """Probabilities of speech of a stream of samples at 16 kHz, one for each 512 samples."""

    def __init__(self, probabilities: Probabilities) -> None:
        self._probabilities = probabilities
        self._state: Tensor | None = None
        self._rest = np.zeros(CONTEXT, np.float32)  # the context of the next chunk, and samples that fill no group yet

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take float32 [N]; give the probabilities that are now known."""
        self._rest = np.concatenate([self._rest, samples.astype(np.float32, copy=False)])
        groups = (len(self._rest) - CONTEXT) // (GROUP * CHUNK)
        return self._take(groups)

    def finish(self) -> NDArray[np.float32]:
        """The last probabilities; ceil(samples / 512) in all."""
        left = -(-(len(self._rest) - CONTEXT) // CHUNK)
        groups = -(-left // GROUP)
        missing = groups * GROUP * CHUNK + CONTEXT - len(self._rest)
        self._rest = np.concatenate([self._rest, np.zeros(missing, np.float32)])
        return self._take(groups)[:left]

    def _take(self, groups: int) -> NDArray[np.float32]:
        out = np.empty(groups * GROUP, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(self._rest, CONTEXT + CHUNK)[::CHUNK] if groups else self._rest
        for start in range(0, groups * GROUP, GROUP):
            out[start : start + GROUP], self._state = self._probabilities(windows[start : start + GROUP], self._state)
        self._rest = self._rest[groups * GROUP * CHUNK :].copy()
        return out


def _grouped(model: Any) -> Probabilities | None:
    """The model with its recurrent cell run over a whole group, or None where the model is built otherwise."""
    try:
        inner: Any = model._model
        stft: Any = inner.stft
        encoder, cell, head = inner.encoder, inner.decoder.rnn, inner.decoder.decoder
        weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    except AttributeError:
        return None
    lstm = nn.LSTM(weights[0].shape[1], weights[1].shape[1])
    with torch.no_grad():
        for own, given in zip(lstm.parameters(), weights, strict=True):  # in the order above
            if own.shape != given.shape:
                return None
            own.copy_(given)

    def probabilities(chunks: NDArray[np.float32], state: Tensor | None) -> tuple[NDArray[np.float32], Tensor]:
        with torch.inference_mode():
            coded = encoder(stft(torch.from_numpy(chunks.copy())))  # [N, C, 1]
            pair = None if state is None else (state[:1], state[1:])
            hidden, (h, c) = lstm(coded.squeeze(-1)[:, None], pair)  # [N, 1, H]
            speech = head(hidden.transpose(1, 2)).mean(dim=(1, 2))  # [N]
            return speech.numpy(), torch.cat([h, c])

    return probabilities


def _agrees(grouped: Probabilities, one_by_one: Probabilities) -> bool:
    """Whether the grouped way gives, with its state carried, what the model's own call gives for a test signal."""
    at = np.arange(2 * 16 * CHUNK, dtype=np.float32) / SAMPLE_RATE
    voiced = np.sin(2 * np.pi * 140 * at) + np.sin(2 * np.pi * 700 * at) + np.sin(2 * np.pi * 1200 * at)
    signal = np.asarray(0.1 * voiced * (np.sin(2 * np.pi * 3 * at) > -0.5), np.float32)
    signal = np.concatenate([np.zeros(CONTEXT, np.float32), signal])  # what stands before the first chunk
    chunks = np.lib.stride_tricks.sliding_window_view(signal, CONTEXT + CHUNK)[::CHUNK]
    try:
        first, state = grouped(chunks[:16], None)
        second, _ = grouped(chunks[16:], state)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    expected, _ = one_by_one(chunks, None)
    together = np.concatenate([first, second])
    return together.shape == expected.shape and bool(np.abs(_log_odds(together) - _log_odds(expected)).max() <= PROBE_TOLERANCE)


def _log_odds(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    clipped = np.clip(probabilities.astype(np.float64), 1e-9, 1 - 1e-9)
    return np.log(clipped / (1 - clipped))
