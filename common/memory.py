"""Memory that a process has freed and its allocator keeps.

glibc keeps an arena for each thread that has allocated, and gives back only what lies free at an arena's end. A process in which
many threads in turn hold large pieces for a while, as a coordinator's do in each round, so comes to hold the most that each of
them ever held. Both functions say False where the C library is another one; nothing but memory depends on them.
"""

from __future__ import annotations

import ctypes

# Of <malloc.h>.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

ARENAS = 2
MAPPED_BYTES = 1 << 20


def share_arenas() -> bool:
    """Have all threads allocate from `ARENAS` arenas, and pieces of `MAPPED_BYTES` and more from none of them.

    To be called before the threads are started. What is mapped on its own is given back when it is freed; left to itself, glibc
    raises the size from which that is so to that of the largest piece that was freed, up to 32 MiB.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_M_ARENA_MAX, ARENAS)) and bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES))


def give_back_freed_memory() -> bool:
    """Hand what is free back to the system. Takes some milliseconds; call it beside the event loop, when large work is done."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    trim(0)
    return True
