"""What a person is shown while a corpus is tokenised: hours done, speed and time left."""

from __future__ import annotations

import pytest

from cli.data_progress import Hours, duration
from tokenizer.audio_progress import AudioProgress


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (91, "2 min"), (3600, "60 min"), (5400, "1 h 30 min"), (36000, "10 h 0 min")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_hours_speed_and_time_left() -> None:
    shown: list[tuple[str, int, int, str]] = []
    now = [0.0]
    hours = Hours(lambda *step: shown.append(step), lambda: now[0])
    now[0] = 10.0  # one recording of half an hour is cut in 10 s
    hours(AudioProgress("recordings", 1, 1, 1800.0, 0.0))
    now[0] = 110.0  # a quarter of the clips, of which half an hour was there before
    hours(AudioProgress("audio", 25, 100, 3600.0, 1800.0))
    assert shown[0] == ("recordings", 1, 1, "0.50 h done, 180.0 x real time, 0 s left")
    # 1800 s in 100 s are 18 x real time; the other 75 clips are three more hours.
    assert shown[1] == ("audio", 25, 100, "1.00 h done, 18.0 x real time, 10 min left")


def test_work_that_was_done_before_has_no_speed() -> None:
    shown: list[str] = []
    hours = Hours(lambda part, done, total, detail: shown.append(detail), lambda: 0.0)
    hours(AudioProgress("audio", 5, 10, 360.0, 360.0))
    assert shown == ["0.10 h done"]
