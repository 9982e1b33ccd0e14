"""A process that is done ends soon: whoever told it to stop does not wait for its memory to be looked through."""

from __future__ import annotations

import os
import subprocess
import sys

ENDING_S = 0.4  # of a core; without it the interpreter takes 0.75 s
SCRIPT = """
import atexit, time
import cli.main, node.worker
from common.ending import leave_memory_to_the_system
atexit.register(print, "told at the end")
leave_memory_to_the_system()
print(time.process_time(), flush=True)
"""


def test_a_process_with_torch_loaded_ends_soon_and_does_what_is_registered() -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    used_s, *after = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0 and after == ["told at the end"]
    assert usage.ru_utime + usage.ru_stime - float(used_s) < ENDING_S
