"""The picture of a run's losses is a PNG file."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image

from simulations.plots import draw_losses


def test_losses_are_drawn_also_of_little(tmp_path: Path) -> None:
    draw_losses(tmp_path / "l.png", {"training": [3.0, None, 2.0], "held out": [None, None, 2.5]})
    draw_losses(tmp_path / "n.png", {})
    for name in ("l.png", "n.png"):
        assert matplotlib.image.imread(tmp_path / name).shape[2] == 4
