"""Signals that ask a process to stop."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which a terminal sends when it closes; not SIGHUP where it is ignored, as under nohup."""
    asked = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return tuple(one for one in asked if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN)
