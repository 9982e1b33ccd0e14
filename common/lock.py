"""One process a state directory: a lock that the kernel lets go of when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import Code, HocketError
from common.files import disk_error, remove_leftovers

logger = logging.getLogger(__name__)


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold the state directory for this process; it is made, for its owner alone, when absent.

    Half-written files that a killed process left in it are removed first.

    Raises:
        HocketError: STATE_LOCKED when another process holds it, STATE_UNREADABLE when it cannot be made.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_error(error, state_dir) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HocketError(Code.STATE_LOCKED, str(state_dir)) from error
        except OSError as error:
            raise disk_error(error, state_dir) from error
        if left := remove_leftovers(state_dir):
            logger.info("removed %d half-written files that a killed process had left in %s", left, state_dir)
        yield
    finally:
        os.close(descriptor)
