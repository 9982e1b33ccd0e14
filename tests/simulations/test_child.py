"""One process of a cluster: signals around its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from simulations.child import Child


def test_a_signal_to_a_process_that_has_just_ended_is_no_fault(tmp_path: Path) -> None:
    """Between a process's end and the event loop's hearing of it, its return code is not known and its pid is nobody's."""
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    child = Child("worker-0", [], tmp_path, tmp_path / "log")
    child.process = SimpleNamespace(pid=ended.pid, returncode=None)  # type: ignore[assignment]
    assert child.running
    child.signal(signal.SIGTERM)
