"""Blocks on disk, each under its CID: a file is whole or absent, and is checked whenever it is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from common.errors import Code, HocketError
from common.files import atomic_write, discard, disk_error, disk_errors
from protocol import content
from swarm.retention import StoredBlock

logger = logging.getLogger(__name__)

DEFAULT_MAX_FILE_BYTES = 8 << 30


class BlockStore:
    """Blocks in a directory, `<last two characters of the CID>/<CID>`. Several processes may use one directory.

    Args:
        path: made when absent.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written_bytes = 0  # by this object
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, path) from error

    def _file(self, cid: str) -> Path:
        content.parse_cid(cid)  # nothing but a CID becomes a path
        return self._path / cid[-2:] / cid

    def has(self, cid: str) -> bool:
        return self._file(cid).is_file()

    def put(self, cid: str, data: bytes | memoryview) -> None:
        """Keep a block.

        Raises:
            HocketError: BLOCK_DAMAGED or MESSAGE_TOO_LARGE if `data` is not the block; DISK_FULL, STATE_UNREADABLE.
        """
        content.verify_block(cid, data)
        path = self._file(cid)
        if not path.is_file():
            atomic_write(path, [data])
            self.written_bytes += len(data)

    def get(self, cid: str) -> bytes:
        """The bytes of a block. A damaged one is removed, so that it is fetched again.

        Raises:
            HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED, STATE_UNREADABLE.
        """
        path = self._file(cid)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise HocketError(Code.BLOCK_NOT_FOUND, cid) from error
        except OSError as error:
            raise disk_error(error, path) from error
        try:
            content.verify_block(cid, data)
        except HocketError as error:
            logger.warning("block %s is damaged on disk and is removed", cid)
            discard(path)
            raise HocketError(Code.BLOCK_DAMAGED, f"{cid}, on disk") from error
        return data

    def remove(self, cid: str) -> None:
        """Drop a block; no error when it is absent. STATE_UNREADABLE if it cannot be removed."""
        path = self._file(cid)
        with disk_errors(path):
            path.unlink(missing_ok=True)

    def blocks(self) -> list[StoredBlock]:
        """All blocks that are there now, with their sizes and the times of their last use. STATE_UNREADABLE."""
        found = []
        try:
            for folder in os.scandir(self._path):
                for entry in os.scandir(folder.path) if folder.is_dir() else ():
                    if entry.name.startswith("."):  # not whole yet
                        continue
                    try:
                        facts = entry.stat()
                    except FileNotFoundError:  # removed at this moment
                        continue
                    found.append(StoredBlock(entry.name, facts.st_size, facts.st_mtime))
        except OSError as error:
            raise disk_error(error, self._path) from error
        return found

    def below(self, root: str) -> list[str]:
        """The blocks of a file, its root first, as far as the inner nodes are there; leaves are named, there or not.

        Raises:
            HocketError: BLOCK_DAMAGED, STATE_UNREADABLE.
        """
        found: dict[str, None] = {}
        pending = [root]
        while pending:
            cid = pending.pop()
            if cid in found:
                continue
            found[cid] = None
            if content.parse_cid(cid).codec != content.RAW and self.has(cid):
                pending += [link.cid for link in content.links(cid, self.get(cid))]
        return list(found)

    def touch(self, root: str) -> None:
        """Note that a file is used now: what was not used for longest is dropped first. Errors as of `below`."""
        for cid in self.below(root):
            path = self._file(cid)
            try:
                os.utime(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise disk_error(error, path) from error

    def remove_file(self, root: str) -> None:
        """Drop a file's blocks, the root last, so that what a kill leaves is found again. Errors as of `below`."""
        for cid in reversed(self.below(root)):
            self.remove(cid)

    def add_bytes(self, data: bytes | memoryview) -> str:
        """Keep the blocks of a file with these bytes; the CID of its root."""
        return self._add(content.iter_blocks(data))

    def add_file(self, path: Path) -> str:
        """Keep the blocks of a file on disk; the CID of its root. STATE_UNREADABLE if it cannot be read."""
        return self._add(content.iter_file_blocks(path))

    def _add(self, blocks: Iterable[tuple[str, bytes]]) -> str:
        root = ""
        for cid, data in blocks:
            self.put(cid, data)
            root = cid
        return root

    def read_file(self, root: str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES) -> bytes:
        """The whole file under a root CID.

        Raises:
            HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED, MESSAGE_TOO_LARGE.
        """
        return b"".join(content.read_file(root, self.get, max_bytes=max_bytes))

    def export(self, root: str, path: Path, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES) -> None:
        """Write the file under a root CID to `path`, block by block; on an error nothing is left there."""
        atomic_write(path, content.read_file(root, self.get, max_bytes=max_bytes))
