"""How a message lies on a byte stream: frames with a length, a type and an end that proves the message whole.

    frame   = length u32 | type u8 | payload of `length` bytes, at most 256 KiB       (all numbers big-endian)
    HEAD    = size of the body u64 | head                    first frame of a message
    BODY    = the next bytes of the body
    END     = size of head and body u64 | SHA-256 of the head                last frame: without it there is no message
    WAITING = nothing: the peer is alive and works
    ERROR   = number u16 | detail in UTF-8                   instead of an answer; ends the use of the stream

A libp2p stream whose far end dies ends like one that is finished, hence the END frame. The body is counted, not hashed: the
stream is encrypted and authenticated, and what travels as a body (tensors, blocks) has its own digest in the head or in its
name. A second SHA-256 over it was measured at 0.7 ms a MiB on each side, a third of all that a call costs Python.

Pure: no socket, no clock.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from enum import IntEnum

from common.errors import Code, HocketError
from swarm.carrier import Message, Part

MAX_PAYLOAD_BYTES = 256 << 10
MAX_DETAIL_BYTES = 2048
MAX_HEAD_BYTES = MAX_PAYLOAD_BYTES - 1024
SMALL_BYTES = 64 << 10
DIGEST_BYTES = 32

FRAME = struct.Struct(">IB")
SIZE = struct.Struct(">Q")
NUMBER = struct.Struct(">H")


class FrameType(IntEnum):
    HEAD = 1
    BODY = 2
    END = 3
    WAITING = 4
    ERROR = 5


WAITING_FRAME = FRAME.pack(0, FrameType.WAITING)
_FRAME_TYPES = {int(kind): kind for kind in FrameType}


def broken(why: str) -> HocketError:
    return HocketError(Code.STREAM_BROKEN, why)


def frame_header(header: bytes) -> tuple[FrameType, int]:
    """Type and payload size [bytes] of the frame that `header` opens; STREAM_BROKEN if no such frame can be."""
    size, kind = FRAME.unpack(header)
    if kind not in _FRAME_TYPES or size > MAX_PAYLOAD_BYTES:
        raise broken(f"a frame of type {kind} with {size} bytes is none of ours")
    return _FRAME_TYPES[kind], size


def error_frame(number: int, detail: str) -> bytes:
    """An ERROR frame; the detail is cut at 2 KiB."""
    text = detail.encode("utf-8", errors="replace")[:MAX_DETAIL_BYTES]
    return FRAME.pack(NUMBER.size + len(text), FrameType.ERROR) + NUMBER.pack(number) + text


def read_error(payload: Part) -> tuple[int, str]:
    """Number and detail of an ERROR frame's payload; STREAM_BROKEN if it is too short."""
    data = bytes(payload)
    if len(data) < NUMBER.size:
        raise broken("an error frame without a number")
    return NUMBER.unpack_from(data)[0], data[NUMBER.size :].decode("utf-8", errors="replace")


def check_head(message: Message) -> None:
    """MESSAGE_TOO_LARGE if the head does not fit into its one frame."""
    if len(message.head) > MAX_HEAD_BYTES:
        raise HocketError(Code.MESSAGE_TOO_LARGE, f"a head of {len(message.head)} bytes, at most {MAX_HEAD_BYTES}")


def encode(message: Message) -> Iterator[Part]:
    """The bytes of `message` in pieces to be written in order; small frames share a piece, body chunks are not copied."""
    check_head(message)
    begin = FRAME.pack(SIZE.size + len(message.head), FrameType.HEAD) + SIZE.pack(message.body_size_bytes)
    pending: list[Part] = [begin, message.head]
    pending_bytes = len(begin) + len(message.head)
    total = len(message.head)
    for part in message.body:
        view = memoryview(part).cast("B")
        for start in range(0, view.nbytes, MAX_PAYLOAD_BYTES):
            chunk = view[start : start + MAX_PAYLOAD_BYTES]
            total += chunk.nbytes
            header = FRAME.pack(chunk.nbytes, FrameType.BODY)
            if chunk.nbytes + pending_bytes <= SMALL_BYTES:
                pending += [header, chunk]
                pending_bytes += FRAME.size + chunk.nbytes
                continue
            yield b"".join([*pending, header])
            yield chunk
            pending, pending_bytes = [], 0
    digest = hashlib.sha256(message.head).digest()
    yield b"".join([*pending, FRAME.pack(SIZE.size + DIGEST_BYTES, FrameType.END), SIZE.pack(total), digest])


class Assembler:
    """Puts one message together, frame by frame.

    Args:
        limit_bytes: of head and body; what the HEAD frame announces is checked against it. Memory is taken only for what has
            come: what is announced and never sent costs none (and appending was measured to be faster than filling).
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._head: bytes | None = None
        self._body = bytearray()
        self._announced = 0

    @property
    def started(self) -> bool:
        return self._head is not None

    def add(self, kind: FrameType, payload: Part) -> Message | None:
        """Take a HEAD, BODY or END frame; the message, once it is whole.

        Raises:
            HocketError: MESSAGE_TOO_LARGE, or STREAM_BROKEN when frames are out of order, or sizes or digest do not fit.
        """
        if kind is FrameType.HEAD:
            self._begin(bytes(payload))
            return None
        if kind is FrameType.BODY:
            if self._head is None or len(self._body) + memoryview(payload).nbytes > self._announced:
                raise broken("more body than its head announced")
            self._body += payload
            return None
        if kind is FrameType.END:
            return self._finish(bytes(payload))
        raise broken(f"a {kind.name} frame inside a message")

    def _begin(self, payload: bytes) -> None:
        if self._head is not None:
            raise broken("two heads in one message")
        if len(payload) < SIZE.size:
            raise broken("a head without its size")
        (body_size_bytes,) = SIZE.unpack_from(payload)
        size_bytes = len(payload) - SIZE.size + body_size_bytes
        if size_bytes > self._limit_bytes:
            raise HocketError(Code.MESSAGE_TOO_LARGE, f"{size_bytes} bytes announced, at most {self._limit_bytes}")
        self._head = payload[SIZE.size :]
        self._announced = body_size_bytes

    def _finish(self, payload: bytes) -> Message:
        if self._head is None or len(payload) != SIZE.size + DIGEST_BYTES:
            raise broken("an end that ends no message")
        (size_bytes,) = SIZE.unpack_from(payload)
        received = len(self._head) + len(self._body)
        if size_bytes != received or len(self._body) != self._announced:
            raise broken(f"{received} bytes received of {size_bytes} sent and {len(self._head) + self._announced} announced")
        if payload[SIZE.size :] != hashlib.sha256(self._head).digest():
            raise broken("the digest of the head does not fit")
        return Message(self._head, [memoryview(self._body)] if self._body else [])
