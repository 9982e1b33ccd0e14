"""Memory that threads have freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's arenas")

HOLD = """
import ctypes, sys, threading
from pathlib import Path
from common.memory import give_back_freed_memory, share_arenas

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
"""

HOLDS_AND_FREES = """
before = resident()
thread = threading.Thread(target=hold)
thread.start()
thread.join()
kept = resident() - before
assert give_back_freed_memory()
print(kept, resident() - before)
"""

ALL_IN_TURN = """
if sys.argv[1] == "shared":
    assert share_arenas()
before, turn, over = resident(), threading.Lock(), threading.Barrier(9)

def take_a_turn():
    with turn:
        hold()
    over.wait()     # the threads of a pool live on, and with them their arenas

threads = [threading.Thread(target=take_a_turn) for _ in range(8)]
for thread in threads:
    thread.start()
over.wait()
for thread in threads:
    thread.join()
print(resident() - before)
"""


def output_of(script: str, *arguments: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", HOLD + script, *arguments], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_what_a_thread_has_freed_is_given_back() -> None:
    kept, left = output_of(HOLDS_AND_FREES)
    assert kept > 48 << 20 and left < 16 << 20


def test_threads_that_share_arenas_use_again_what_others_have_freed() -> None:
    (own,), (shared,) = output_of(ALL_IN_TURN, "own"), output_of(ALL_IN_TURN, "shared")
    assert own > 6 * (64 << 20) and shared < own / 2
