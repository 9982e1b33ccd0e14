"""Memory that threads have freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from common.memory import give_back_freed_memory

HOLDS_AND_FREES = """
import ctypes, threading
from pathlib import Path
from common.memory import give_back_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
PIECE, PIECES = 64 << 10, 1024

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def hold():
    held = [libc.malloc(PIECE) for _ in range(PIECES)]
    for piece in held:
        ctypes.memset(piece, 1, PIECE)
    for piece in held[:-1]:     # the last one keeps the arena from shrinking by itself
        libc.free(piece)

before = resident()
thread = threading.Thread(target=hold)
thread.start()
thread.join()
kept = resident() - before
assert give_back_freed_memory()
print(kept, resident() - before)
"""


@pytest.mark.skipif(not give_back_freed_memory(), reason="the C library has no malloc_trim")
def test_what_a_thread_has_freed_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDS_AND_FREES], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 48 << 20 and left < 16 << 20
