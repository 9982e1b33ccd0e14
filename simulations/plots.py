"""Pictures of a run: how the loss went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tts.pictures import new_axes, save_png


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
