"""Files that are whole or absent: written beside the target, synced, then renamed over it."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import Code, HocketError

logger = logging.getLogger(__name__)

OWN_DISK = (Code.DISK_FULL, Code.STATE_UNREADABLE)  # what goes wrong with this machine's disk, whoever made the file
PART_SUFFIX = ".part"  # with a leading dot: a file that is not whole yet, of nobody's use once its writer is gone


def disk_error(error: OSError, path: Path) -> HocketError:
    """The numbered error for a failed write: a full disk is told apart from a path that cannot be used."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return HocketError(Code.DISK_FULL if full else Code.STATE_UNREADABLE, f"{path} ({error.strerror})")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """What fails inside is told as `disk_error` of `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


def discard(path: Path) -> None:
    """Remove a file of no use. Where that fails it is left for the next start: it is not what the caller is about."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", path, error.strerror)


def sync_directory(path: Path) -> None:
    """Make a rename in `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, parts: Iterable[bytes | memoryview], *, mode: int = 0o644) -> None:
    """Write `parts` to `path` itself, replacing what is there, and wait until they are on the disk.

    Raises:
        HocketError: DISK_FULL or STATE_UNREADABLE; nothing is left at `path` then.
    """
    begun = whole = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            begun = True
            for piece in parts:
                stream.write(piece)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        whole = True
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        if begun and not whole:
            discard(path)


def atomic_write(path: Path, parts: bytes | Iterable[bytes | memoryview], *, mode: int = 0o644) -> None:
    """Write `parts` to `path` so that a reader, or a restart, sees the old file or the whole new one.

    Raises:
        HocketError: DISK_FULL or STATE_UNREADABLE; the target is as it was and nothing is left beside it.
    """
    pieces = [parts] if isinstance(parts, bytes) else parts
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART_SUFFIX)
        with os.fdopen(descriptor, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        temporary = None
        sync_directory(path.parent)
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        if temporary is not None:
            discard(Path(temporary))


def remove_leftovers(folder: Path) -> int:
    """Remove what `atomic_write` or the background writer left below `folder` in a process that was killed; how many files.

    For the owner of the folder, before anybody else writes there: a file that is being written would be taken away, too.

    Raises:
        HocketError: STATE_UNREADABLE.
    """
    found = 0
    with disk_errors(folder):
        for path in folder.rglob(f".*{PART_SUFFIX}"):
            path.unlink(missing_ok=True)
            found += 1
    return found
