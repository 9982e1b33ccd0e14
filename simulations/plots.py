"""Pictures of a run: what the sample looks like, and how the loss went."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from common.files import atomic_write

WINDOW_S = 0.032
HOP_S = 0.008
FLOOR_DB = -80.0


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    atomic_write(path, buffer.getvalue())


def _axes(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    return figure, axes


def spectrogram_db(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """Power in dB below the loudest bin, [frequencies, frames], of samples [N] under a Hann window."""
    size, hop = int(WINDOW_S * sample_rate), int(HOP_S * sample_rate)
    padded = np.pad(np.asarray(samples, np.float64), (0, max(0, size - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop] * np.hanning(size)
    power = np.abs(np.fft.rfft(windows, axis=1)) ** 2
    decibels = 10 * np.log10(power / max(float(power.max()), 1e-20) + 1e-20)
    return np.maximum(decibels, FLOOR_DB).T


def draw_spectrogram(path: Path, samples: NDArray[np.float32], sample_rate: int, text: str) -> None:
    """A spectrogram of a recording as PNG."""
    figure, axes = _axes(text[:100])
    extent = (0.0, len(samples) / sample_rate, 0.0, sample_rate / 2000)
    axes.imshow(spectrogram_db(samples, sample_rate), origin="lower", aspect="auto", extent=extent, cmap="magma")
    axes.set_xlabel("s")
    axes.set_ylabel("kHz")
    _save(figure, path)


def draw_losses(path: Path, losses: Mapping[str, Sequence[float | None]]) -> None:
    """The losses of the rounds as PNG, one curve a name; a round without a value is left out."""
    figure, axes = _axes("cross-entropy per code")
    for name, values in losses.items():
        points = [(number, value) for number, value in enumerate(values, start=1) if value is not None]
        axes.plot([number for number, _ in points], [value for _, value in points], marker="o", label=name)
    axes.set_xlabel("round")
    axes.set_ylabel("nats")
    if losses:
        axes.legend()
    axes.grid(alpha=0.3)
    _save(figure, path)
