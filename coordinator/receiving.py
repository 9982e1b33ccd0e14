"""A file that a member streams: written piece by piece within the size that was announced, and compared with its digest."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import Code, HocketError
from common.files import disk_error, sync_directory
from protocol.generated import hocket_pb2 as pb

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Announced:
    """What a signed head says of the file that follows it.

    Args:
        what: for errors: "update", "opening". silence_s: how long its sender may send nothing.
    """

    what: str
    size_bytes: int
    sha256: bytes
    silence_s: float

    def broken(self, reason: str) -> HocketError:
        return HocketError(Code.STREAM_BROKEN, f"{self.what}: {reason}", remedy="send it again")


async def receive_file(part: Path, announced: Announced, chunks: AsyncIterator[pb.UpdateChunk]) -> None:
    """Write a stream of data chunks and one end to `part`. The caller bounds `size_bytes`, and removes `part` after an error.

    Raises:
        HocketError: STREAM_BROKEN for a stream that ends early, stalls, or is not what was announced; DISK_FULL.
    """
    digest = hashlib.sha256()
    received = count = 0
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: every byte is with the system, or an error is raised, before the next one is taken.
        with part.open("wb", buffering=0) as stream:
            while (chunk := await _next(chunks, received, announced)).WhichOneof("part") == "data":
                if not 0 < len(chunk.data) <= CHUNK_BYTES or received + len(chunk.data) > announced.size_bytes:
                    raise announced.broken(f"what follows byte {received} does not belong there")
                digest.update(chunk.data)
                left = memoryview(chunk.data)
                while left:
                    left = left[stream.write(left) :]
                received += len(chunk.data)
                count += 1
    except OSError as error:
        raise disk_error(error, part) from error
    if chunk.WhichOneof("part") != "end":
        raise announced.broken(f"what follows byte {received} does not belong there")
    if received != announced.size_bytes or chunk.end.bytes != received or chunk.end.chunks != count:
        raise announced.broken(f"it has {received} bytes in {count} chunks, its head says {announced.size_bytes} bytes")
    if digest.digest() != announced.sha256:
        raise announced.broken("its bytes are not those that were signed")


async def _next(chunks: AsyncIterator[pb.UpdateChunk], received: int, announced: Announced) -> pb.UpdateChunk:
    """The next message of a stream; STREAM_BROKEN when there is none, or none within the silence bound."""
    try:
        async with asyncio.timeout(announced.silence_s):
            return await anext(chunks)
    except StopAsyncIteration:
        raise announced.broken(f"it ended after {received} of {announced.size_bytes} bytes, without an end") from None
    except TimeoutError:
        raise announced.broken(
            f"nothing came for {announced.silence_s:.1f} s, after {received} of {announced.size_bytes} bytes"
        ) from None


def settle(part: Path, path: Path) -> None:
    """Make a received file durable under its own name."""
    try:
        descriptor = os.open(part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
        for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
            sync_directory(folder)
    except OSError as error:
        raise disk_error(error, path) from error


def receipt_for(head: pb.UpdateHead | pb.OpeningHead, fault: str) -> pb.UpdateReceipt:
    """What the sender of a file is answered. `fault`: why it was not taken; empty: it was."""
    return pb.UpdateReceipt(round=head.round, stage=head.stage, sha256=head.sha256, accepted=not fault, reason=fault)
