"""Pictures of speech: a spectrogram, with the phones marked that a model spoke or an aligner found."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from common.files import atomic_write

WINDOW_S = 0.032
HOP_S = 0.008
FLOOR_DB = -80.0
WIDTH, HEIGHT = 9.0, 4.0    # of a figure, in inches
WIDTH_A_PHONE = 0.2         # so that symbols do not overlap
MOST_WIDTH = 60.0
MARK = "#e8b04b"


@dataclass(frozen=True)
class Phone:
    """A symbol and where it ends, in seconds from the beginning; it begins where the one before it ends."""

    symbol: str
    end_s: float


def new_axes(title: str, *, width: float = WIDTH) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes; `width` in inches."""
    figure = Figure(figsize=(width, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, parse_math=False)
    return figure, axes


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    atomic_write(path, buffer.getvalue())


def spectrogram_db(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """Power in dB below the loudest bin, [frequencies, frames], of samples [N] under a Hann window."""
    size, hop = int(WINDOW_S * sample_rate), int(HOP_S * sample_rate)
    padded = np.pad(np.asarray(samples, np.float64), (0, max(0, size - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop] * np.hanning(size)
    power = np.abs(np.fft.rfft(windows, axis=1)) ** 2
    decibels = 10 * np.log10(power / max(float(power.max()), 1e-20) + 1e-20)
    return np.maximum(decibels, FLOOR_DB).T


def draw_spectrogram(
    path: Path, samples: NDArray[np.float32], sample_rate: int, text: str, phones: Sequence[Phone] = ()
) -> None:
    """A spectrogram of a recording as PNG.

    Args:
        samples: float32 [N]. text: the title.
        phones: in order; each end is drawn as a line, each symbol above its middle.
    """
    figure, axes = new_axes(text[:100], width=min(MOST_WIDTH, max(WIDTH, WIDTH_A_PHONE * len(phones))))
    seconds, top = len(samples) / sample_rate, sample_rate / 2000
    axes.imshow(
        spectrogram_db(samples, sample_rate), origin="lower", aspect="auto", extent=(0.0, seconds, 0.0, top), cmap="magma"
    )  # fmt: skip
    begin_s = 0.0
    for phone in phones:
        axes.axvline(phone.end_s, color=MARK, linewidth=0.7)
        middle = (begin_s + phone.end_s) / 2
        axes.text(middle, top * 0.97, phone.symbol[:8], color="white", fontsize=8, ha="center", va="top", parse_math=False)
        begin_s = phone.end_s
    axes.set_xlim(0.0, seconds)
    axes.set_xlabel("s")
    axes.set_ylabel("kHz")
    save_png(figure, path)
