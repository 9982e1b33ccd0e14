"""Pictures: the spectrogram shows the tone that was played, and both are PNG files."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np

from simulations.plots import WINDOW_S, draw_losses, draw_spectrogram, spectrogram_db


def test_a_tone_is_one_line_of_the_spectrogram() -> None:
    rate, tone = 16000, 1000.0
    samples = np.sin(2 * np.pi * tone * np.arange(rate) / rate).astype(np.float32)
    decibels = spectrogram_db(samples, rate)
    loudest = decibels.mean(axis=1).argmax()
    assert abs(loudest / WINDOW_S - tone) <= 1 / WINDOW_S
    assert decibels.max() == 0.0 and decibels.mean(axis=1)[loudest * 3] < -60


def test_pictures_are_drawn_also_of_little(tmp_path: Path) -> None:
    draw_spectrogram(tmp_path / "s.png", np.zeros(10, np.float32), 16000, "very short")
    draw_losses(tmp_path / "l.png", {"training": [3.0, None, 2.0], "held out": [None, None, 2.5]})
    draw_losses(tmp_path / "n.png", {})
    for name in ("s.png", "l.png", "n.png"):
        assert matplotlib.image.imread(tmp_path / name).shape[2] == 4
