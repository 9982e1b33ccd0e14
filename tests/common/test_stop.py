"""Stop signals: which they are, and how a start is kept whole from them."""

from __future__ import annotations

import os
import signal
from types import FrameType

import pytest

from common.stop import stop_signals, stop_signals_held_back


class Stopped(Exception):
    """What the handler of this test raises."""


def test_a_signal_that_comes_inside_acts_at_the_end() -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = signal.signal(signal.SIGTERM, stop)
    reached = False
    try:
        with pytest.raises(Stopped), stop_signals_held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            reached = True
        assert reached and signal.getsignal(signal.SIGTERM) is stop
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_handlers_are_put_back_after_an_error() -> None:
    before = {number: signal.getsignal(number) for number in stop_signals()}
    with pytest.raises(ValueError), stop_signals_held_back():
        raise ValueError("a start that failed")
    assert {number: signal.getsignal(number) for number in stop_signals()} == before
