"""The end of a process that has loaded much."""

from __future__ import annotations

import gc


def leave_memory_to_the_system() -> None:
    """Call it last: the interpreter then does not look through everything that was loaded for garbage before it ends.

    With torch loaded, that search takes three quarters of a second of a core, on a busy machine longer than whoever has asked the
    process to stop waits before killing it. What is registered with `atexit` is done as ever; the system takes the memory back.
    """
    gc.freeze()
