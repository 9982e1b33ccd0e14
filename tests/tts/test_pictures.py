"""Pictures: the spectrogram shows the tone that was played, and phones are drawn where they are."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray

from tts.pictures import WINDOW_S, Phone, draw_spectrogram, spectrogram_db

RATE = 16000


def tone(seconds: float, hertz: float = 1000.0) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * hertz * np.arange(int(RATE * seconds)) / RATE).astype(np.float32)


def test_a_tone_is_one_line_of_the_spectrogram() -> None:
    decibels = spectrogram_db(tone(1.0), RATE)
    loudest = decibels.mean(axis=1).argmax()
    assert abs(loudest / WINDOW_S - 1000.0) <= 1 / WINDOW_S
    assert decibels.max() == 0.0 and decibels.mean(axis=1)[loudest * 3] < -60


def test_a_spectrogram_is_drawn_also_of_little(tmp_path: Path) -> None:
    draw_spectrogram(tmp_path / "s.png", np.zeros(10, np.float32), RATE, "very short")
    assert matplotlib.image.imread(tmp_path / "s.png").shape[2] == 4


@pytest.mark.parametrize("symbol", ["a", "t͡ʃ", "$x_1^$"])
def test_phones_leave_their_mark(tmp_path: Path, symbol: str) -> None:
    """The boundary of two phones is a bright line in the middle of a picture that is dark there without it."""
    plain, marked = tmp_path / "plain.png", tmp_path / "marked.png"
    draw_spectrogram(plain, tone(1.0), RATE, "tone")
    draw_spectrogram(marked, tone(1.0), RATE, "tone", [Phone("_", 0.5), Phone(symbol, 1.0)])
    before, after = matplotlib.image.imread(plain), matplotlib.image.imread(marked)
    assert before.shape == after.shape
    changed = np.abs(before - after).sum(-1) > 0.3  # [rows, columns]
    tallest = changed.sum(0)
    line = int(tallest[: int(0.9 * len(tallest))].argmax())
    assert tallest[line] > 0.5 * changed.shape[0] and 0.45 < line / changed.shape[1] < 0.6


def test_many_phones_make_a_wide_picture(tmp_path: Path) -> None:
    draw_spectrogram(tmp_path / "w.png", tone(3.0), RATE, "long", [Phone("a", 3.0 * (i + 1) / 90) for i in range(90)])
    rows, columns, _ = matplotlib.image.imread(tmp_path / "w.png").shape
    assert columns > 4 * rows
