"""A background writer: a file's bytes are copied into memory of our own, and the caller goes on while a thread writes them.

`WriteQueue` decides what is written, replaced and dropped; here are the memory, the lock and the one thread. A file is written
beside its target, synced and renamed over it. A failure is kept and raised at the caller's next `save`, `check`, `drain` or
`close`; the target is then as it was.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from common.files import PART_SUFFIX, disk_error, sync_directory, write_synced
from common.stop import stop_signals_held_back
from common.write_queue import KEEP_RANKED, Answer, Keep, Offer, Save, WriteQueue

logger = logging.getLogger(__name__)

GRAIN_BYTES = 1 << 20
PIECE_BYTES = 8 << 20
SEAL_BYTES = 32

Fill = Callable[[memoryview], None]
Allocate = Callable[[int], memoryview]


def plain_memory(size_bytes: int) -> memoryview:
    """Pageable memory of the process."""
    return np.empty(size_bytes, np.uint8).data


def copy_of(parts: Sequence[bytes | memoryview]) -> tuple[int, Fill]:
    """Size and filling of a file that consists of `parts`, such as those of `protocol.tensor_files.file_parts`."""
    sizes = [memoryview(part).nbytes for part in parts]

    def fill(target: memoryview) -> None:
        whole = np.frombuffer(target, np.uint8)
        position = 0
        for part, size in zip(parts, sizes, strict=True):
            whole[position : position + size] = np.frombuffer(part, np.uint8)
            position += size

    return sum(sizes), fill


def temporary_of(path: Path) -> Path:
    """Where a file lies until it is whole; what a crash leaves there is overwritten by the next save, or removed at the start."""
    return path.with_name(f".{path.name}{PART_SUFFIX}")


class _Memory:
    """Buffers, kept for the next save of the same size: fresh pages cost a fault each. Used under the writer's lock."""

    def __init__(self, limit_bytes: int, allocate: Allocate) -> None:
        self._limit_bytes = limit_bytes
        self._allocate = allocate
        self._spare: list[memoryview] = []
        self._total_bytes = 0

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of `size_bytes`; spare ones of other sizes are given up where it would not fit beside them."""
        for index, spare in enumerate(self._spare):
            if spare.nbytes == size_bytes:
                return self._spare.pop(index)
        while self._spare and self._total_bytes + size_bytes > self._limit_bytes:
            self._total_bytes -= self._spare.pop(0).nbytes
        made = self._allocate(size_bytes)
        self._total_bytes += size_bytes
        return made

    def give_back(self, buffer: memoryview) -> None:
        self._spare.append(buffer)


class BackgroundWriter:
    """Writes files beside the thread that makes them.

    As a context manager it is drained on the way out, also when a stop signal's handler unwinds the caller; left open, it is
    drained when the interpreter ends.

    Args:
        limit_bytes: of the bytes in memory, rounded up to whole MiB for each save; a caller waits for room.
        keep_ranked: ranked files that stay on disk.
        ranked: score by path of the ranked files that an earlier process left.
        allocate: gives the memory, for example page-locked memory that a device copies to.
        faults: points `writer.write.half`, `writer.replace.before` and `writer.replace.after`.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        keep_ranked: int = KEEP_RANKED,
        ranked: Mapping[Path, float] | None = None,
        allocate: Allocate = plain_memory,
        faults: Faults = NO_FAULTS,
    ) -> None:
        on_disk = {str(path): score for path, score in (ranked or {}).items()}
        self._queue = WriteQueue(limit_bytes, keep_ranked=keep_ranked, on_disk=on_disk)
        self._memory = _Memory(limit_bytes, allocate)
        self._faults = faults
        self._changed = threading.Condition()
        self._buffers: dict[int, memoryview] = {}
        self._sizes: dict[int, int] = {}
        self._sealed: set[int] = set()
        self._failure: HocketError | None = None
        self._closing = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    # ---- the caller's side ------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being written: what was taken is on disk, given up, or has failed."""
        with self._changed:
            return self._queue.idle

    def save(
        self,
        path: Path,
        size_bytes: int,
        fill: Fill,
        *,
        keep: Keep = Keep.PLAIN,
        score: float | None = None,
        sealed: bool = False,
    ) -> Offer:
        """Take a file over: wait for room, let `fill` copy its bytes into our memory, and return.

        Args:
            path: of the target; a newer save replaces an older one of the same path that still waits.
            size_bytes: of the file.
            fill: writes exactly `size_bytes` bytes into the given memory, in this thread, before this returns.
            keep, score: see `common.write_queue.Save`.
            sealed: the file's last 32 bytes become the SHA-256 of those before, computed while they are written.

        Returns: TAKEN, or OUTRANKED for a ranked save that is worse than all that are kept; nothing is written then.

        Raises:
            HocketError: the failure of an earlier write; OPTION_INVALID for a file that is larger than the whole buffer.
        """
        if sealed and size_bytes < SEAL_BYTES:
            raise ValueError(f"a sealed file of {size_bytes} bytes")
        held_bytes = -(-max(size_bytes, 1) // GRAIN_BYTES) * GRAIN_BYTES
        # A signal's handler that raises between the offer and the end of the filling would leave half a save behind.
        with stop_signals_held_back():
            offer, buffer = self._take(Save(str(path), held_bytes, keep, score), size_bytes, sealed)
            if buffer is None:
                return offer
            filled = False
            try:
                fill(buffer[:size_bytes])
                filled = True
            finally:
                with self._changed:
                    if filled:
                        self._queue.ready(offer.number)
                    else:
                        self._queue.abandon(offer.number)
                        self._release(offer.number)
                    self._changed.notify_all()
        return offer

    def _take(self, save: Save, size_bytes: int, sealed: bool) -> tuple[Offer, memoryview | None]:
        """Wait until the save is decided about; memory for it, or None when it is not wanted."""
        with self._changed:
            while True:
                self._raise_failure()
                if self._closing:
                    raise RuntimeError("a save after the writer was closed")
                offer = self._queue.offer(save)
                if offer.answer is not Answer.WAIT:
                    break
                logger.debug("%s waits: %s", save.path, offer.reason)
                self._changed.wait()
            if offer.answer is Answer.TOO_LARGE:
                raise HocketError(Code.OPTION_INVALID, f"{save.path}: {offer.reason}", remedy="give the writer a larger buffer")
            if offer.answer is Answer.OUTRANKED:
                return offer, None
            for number in offer.freed:
                self._release(number)
            try:
                buffer = self._memory.take(save.size_bytes)
            except MemoryError:
                self._queue.abandon(offer.number)
                raise
            self._buffers[offer.number], self._sizes[offer.number] = buffer, size_bytes
            if sealed:
                self._sealed.add(offer.number)
            return offer, buffer

    def save_parts(
        self,
        path: Path,
        parts: Sequence[bytes | memoryview],
        *,
        keep: Keep = Keep.PLAIN,
        score: float | None = None,
        sealed: bool = False,
    ) -> Offer:
        """`save` of a file that consists of `parts`, which are copied."""
        size_bytes, fill = copy_of(parts)
        return self.save(path, size_bytes, fill, keep=keep, score=score, sealed=sealed)

    def forget(self, path: Path) -> None:
        """Remove the file, and let no save of it that was taken before this be put in place."""
        with self._changed:
            for number in self._queue.forget(str(path)):
                self._release(number)
            self._changed.notify_all()
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise disk_error(error, path) from error

    def check(self) -> None:
        """Raise the failure of an earlier write, if there was one; it is raised once."""
        with self._changed:
            self._raise_failure()

    def drain(self) -> None:
        """Wait until everything that was taken is on disk.

        Raises:
            HocketError: the failure of an earlier write.
        """
        with self._changed:
            while not self._queue.idle and not self._ended:
                self._changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """Write what waits, end the thread, and raise the failure of an earlier write. Stop signals act after it."""
        with stop_signals_held_back():
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join()
        atexit.unregister(self._close_at_exit)
        self.check()

    def _close_at_exit(self) -> None:
        """Left open to the end: there is nobody any more to raise a failure to, and the log has it."""
        try:
            self.close()
        except HocketError as error:
            logger.debug("not raised, as the interpreter ends: %s", error.line())

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except HocketError as failure:
            if error is None:
                raise
            logger.error("while the caller stopped for another reason: %s", failure.line())

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._ended and not self._closing:
            raise RuntimeError("the writer's thread has ended; its traceback is in the log")

    def _release(self, number: int) -> None:
        self._memory.give_back(self._buffers.pop(number))
        del self._sizes[number]
        self._sealed.discard(number)

    # ---- the writer's side ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._write_next():
                pass
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _write_next(self) -> bool:
        """Write one save; False when the writer is closed and nothing is left."""
        with self._changed:
            while True:
                begun = self._queue.begin()
                if begun is not None:
                    break
                if self._closing and self._queue.idle:
                    return False
                self._changed.wait()
            number, save = begun
            data = self._buffers[number][: self._sizes[number]]
            sealed = number in self._sealed
        path = Path(save.path)
        try:
            write_synced(temporary_of(path), self._pieces(path, data, sealed))
            gone = self._put_in_place(number, path)
        except HocketError as error:
            logger.error("%s could not be written: %s", path, error.line())
            with self._changed:
                self._failure = self._failure or error
                self._queue.failed(number)
                self._release(number)
                self._changed.notify_all()
            return True
        for superfluous in gone:
            try:
                superfluous.unlink(missing_ok=True)
            except OSError as error:
                # What was to be saved is in place: this is told, and no failure of it.
                logger.warning("%s is of no use any more, but cannot be removed: %s", superfluous, error.strerror)
        return True

    def _pieces(self, path: Path, data: memoryview, sealed: bool) -> Iterator[bytes | memoryview]:
        """The file's bytes, in pieces of bounded size; the fault point is reached before the second half."""
        digest = hashlib.sha256()
        whole = len(data) - SEAL_BYTES if sealed else len(data)
        half = whole // 2
        for start, stop in ((0, half), (half, whole)):
            if start:
                self._faults.reach("writer.write.half", path=path.name)
            for begin in range(start, stop, PIECE_BYTES):
                piece = data[begin : min(begin + PIECE_BYTES, stop)]
                if sealed:
                    digest.update(piece)
                yield piece
        if sealed:
            yield digest.digest()

    def _put_in_place(self, number: int, path: Path) -> list[Path]:
        """Rename the written file over its target if it still is the newest; returns the files to remove then."""
        temporary = temporary_of(path)
        try:
            # The decision and the rename are one step, so that nobody can forget the path between them.
            with self._changed:
                placing = self._queue.written(number)
                if not placing.replace:
                    logger.debug("%s is not put in place: %s", path, placing.reason)
                    self._release(number)
                    self._changed.notify_all()
                    return [temporary]
                self._faults.reach("writer.replace.before", path=path.name)
                os.replace(temporary, path)
            self._faults.reach("writer.replace.after", path=path.name)
            sync_directory(path.parent)
        except OSError as error:
            raise disk_error(error, path) from error
        with self._changed:
            gone = self._queue.placed(number)
            self._release(number)
            self._changed.notify_all()
        return [Path(outranked) for outranked in gone]
