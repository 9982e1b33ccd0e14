"""Pictures of a dataset, as SVG or PNG for a page: histograms, and spectrograms with phone boundaries."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

INK = "#7a8290"  # reads on light and on dark paper
FILL = "#3d7ea6"
MARK = "#e8b04b"
LONGEST_NAME = 8  # characters of a symbol; strangers wrote them


def histogram(values: Sequence[float], label: str, *, bins: int = 40) -> str:
    """A histogram as inline SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 2.2), layout="constrained")
    axes = figure.subplots()
    axes.hist(list(values), bins=bins, color=FILL)
    axes.set_xlabel(label)
    axes.set_ylabel("clips")
    return _svg(figure, axes, label)


def bars(names: Sequence[str], counts: Sequence[int], label: str) -> str:
    """Counts by name as inline SVG, on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.2, 0.17 * len(names)), 2.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(range(len(names)), counts, color=FILL)
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(range(len(names)), [name[:LONGEST_NAME] for name in names], fontsize=7, parse_math=False)
    axes.set_xlim(-0.8, len(names) - 0.2)
    axes.set_ylabel(label)
    return _svg(figure, axes, label)


def _svg(figure, axes, label: str) -> str:  # type: ignore[no-untyped-def]
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.tick_params(which="both", colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def spectrogram(samples: NDArray[np.float32], sample_rate: int, ends_s: NDArray[np.float64], symbols: Sequence[str]) -> str:
    """A spectrogram with the phones that were aligned, as a data URI of a PNG.

    Args:
        samples: [N]. ends_s: seconds at which each phone ends [P]. symbols: of the phones [P].
    """
    from matplotlib.figure import Figure

    size, hop = 512, 160
    padded = np.pad(samples, (size // 2, size // 2))
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop] * np.hanning(size)
    power = 20 * np.log10(np.abs(np.fft.rfft(frames)).T + 1e-4)
    seconds = len(samples) / sample_rate
    figure = Figure(figsize=(min(14.0, max(4.0, 2.2 * seconds)), 2.0), layout="constrained", dpi=80)
    axes = figure.subplots()
    axes.imshow(power, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, sample_rate / 2000), vmin=-50, vmax=30)
    starts = np.concatenate([[0.0], ends_s[:-1]])
    for start, end, symbol in zip(starts, ends_s, symbols, strict=True):
        axes.axvline(end, color=MARK, linewidth=0.6)
        middle, top = (start + end) / 2, sample_rate / 2000 * 1.02
        name = symbol[:LONGEST_NAME]
        axes.text(middle, top, name, ha="center", va="bottom", fontsize=7, color=INK, parse_math=False)
    axes.set_ylabel("kHz", color=INK, fontsize=8)
    axes.tick_params(colors=INK, labelsize=7)
    out = io.BytesIO()
    figure.savefig(out, format="png", transparent=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
