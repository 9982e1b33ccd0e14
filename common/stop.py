"""Signals that ask a process to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which a terminal sends when it closes; not SIGHUP where it is ignored, as under nohup."""
    asked = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return tuple(one for one in asked if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN)


@contextmanager
def stop_signals_held_back() -> Iterator[None]:
    """Let a stop signal that comes inside take effect at the end: what is being started is then known to whoever ends it.

    Only the main thread gets signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
