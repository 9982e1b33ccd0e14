"""Memory that a process has freed and its allocator keeps."""

from __future__ import annotations

import ctypes


def give_back_freed_memory() -> bool:
    """Hand what is free back to the system; False where the C library cannot.

    glibc keeps an arena for each thread that has allocated, and gives back only what lies free at an arena's end. A process in
    which many threads in turn hold large pieces for a while, as a coordinator's do in each round, so comes to hold the most that
    each of them ever held. Takes some milliseconds; call it beside the event loop, when large work is done.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    trim(0)
    return True
