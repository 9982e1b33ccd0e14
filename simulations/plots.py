"""Pictures of a run: how the loss went, what processes held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tts.pictures import new_axes, save_png

MOST_NAMED = 24


def draw_losses(path: Path, losses: Mapping[str, Sequence[float | None]]) -> None:
    """The losses of the rounds as PNG, one curve a name; a round without a value is left out."""
    figure, axes = new_axes("cross-entropy per code")
    for name, values in losses.items():
        points = [(number, value) for number, value in enumerate(values, start=1) if value is not None]
        axes.plot([number for number, _ in points], [value for _, value in points], marker="o", label=name)
    axes.set_xlabel("round")
    axes.set_ylabel("nats")
    if losses:
        axes.legend()
    axes.grid(alpha=0.3)
    save_png(figure, path)


def draw_curves(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x: str, y: str) -> None:
    """Curves of (x, y) points as PNG, one a name."""
    figure, axes = new_axes(title)
    for name, points in curves.items():
        axes.plot([point[0] for point in points], [point[1] for point in points], label=name, linewidth=0.8)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if 0 < len(curves) <= MOST_NAMED:
        axes.legend(fontsize=6, ncols=2)
    axes.grid(alpha=0.3)
    save_png(figure, path)
