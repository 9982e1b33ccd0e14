"""One call after another over one kept-open byte stream: the caller's side and the server's side of it.

Both carriers use this; they differ only in where the bytes go. A stream carries one call at a time. While the server reads
a request and while its handler runs, it sends a WAITING frame every quarter of a second, so the caller judges its peer by
silence alone, however long the work takes. The caller gives a call up by closing the stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from common.errors import Code, HocketError
from swarm.carrier import WAITING_EVERY_S, Handler, Message, Part, PeerRefused
from swarm.frames import (
    FRAME,
    SMALL_BYTES,
    WAITING_FRAME,
    Assembler,
    FrameType,
    broken,
    encode,
    error_frame,
    frame_header,
    read_error,
)
from swarm.silence import SilenceWatch

logger = logging.getLogger(__name__)

T = TypeVar("T")

STALL_S = 120.0
IDLE_STREAM_S = 900.0
LINGER_S = 5.0


class Writer(Protocol):
    """The part of `asyncio.StreamWriter` that is needed."""

    def write(self, data: Part) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class FrameStream:
    """Frames over a reader and a writer.

    Args:
        on_sent: is told the size [bytes] of each piece written.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: Writer, on_sent: Callable[[int], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._on_sent = on_sent
        self._closed = False
        self._draining = 0

    @property
    def usable(self) -> bool:
        """False once either side has closed it, as far as is known here."""
        return not self._closed and not self._reader.at_eof() and self._reader.exception() is None

    async def receive(self) -> tuple[FrameType, bytes]:
        """The next frame; STREAM_BROKEN when the stream has ended, anywhere."""
        try:
            kind, size = frame_header(await self._reader.readexactly(FRAME.size))
            return kind, await self._reader.readexactly(size) if size else b""
        except (asyncio.IncompleteReadError, OSError) as error:
            raise broken("the stream ended before its end frame") from error

    async def send(self, piece: Part) -> None:
        """Write `piece` and wait until the stream takes more; STREAM_BROKEN when it is gone, or takes nothing for 2 minutes."""
        if self._closed:
            raise broken("the stream is closed")
        self._on_sent(memoryview(piece).nbytes)
        self._draining += 1
        try:
            self._writer.write(piece)
            async with asyncio.timeout(STALL_S):
                await self._writer.drain()
        except OSError as error:  # a TimeoutError is one
            raise broken("the stream was closed, or stalled, while it was written") from error
        finally:
            self._draining -= 1

    def send_now(self, piece: Part) -> None:
        """Write a small `piece` without waiting. If the stream is gone, whoever reads it meets that."""
        if self.usable:
            self._on_sent(memoryview(piece).nbytes)
            try:
                self._writer.write(piece)
            except OSError as error:
                logger.debug("a stream took no more: %s", error)

    async def send_message(self, message: Message) -> None:
        for piece in encode(message):
            await self.send(piece)

    async def send_answer(self, message: Message) -> None:
        """As `send_message`; apart so that a carrier for tests can lose or cut exactly the answer."""
        await self.send_message(message)

    def send_sign_of_life(self) -> None:
        """A WAITING frame, unless earlier bytes still wait to be taken: those are as good a sign, and come first."""
        if not self._draining:
            self.send_now(WAITING_FRAME)

    def close(self) -> None:
        """End the stream after what has been written."""
        if not self._closed:
            self._closed = True
            self._writer.close()

    def abort(self) -> None:
        """End the stream at once, for one whose peer may never take what still waits to be written."""
        self.close()


async def within(deadline: float, step: Awaitable[T], otherwise: str) -> T:
    """The result of `step`; PEER_SILENT with the detail `otherwise` if it is not over at `deadline` (on the loop's clock)."""
    try:
        async with asyncio.timeout_at(deadline):
            return await step
    except TimeoutError as error:
        raise HocketError(Code.PEER_SILENT, otherwise) from error


async def call_over(
    stream: FrameStream,
    peer_id: str,
    request: Message,
    *,
    silence_s: float,
    deadline: float,
    max_answer_bytes: int,
    heard: Callable[[float], None] | None = None,
) -> Message:
    """One call as the caller sees it. Unless it returns, the stream must be closed: what is still under way on it is unknown.

    Args:
        deadline: on the loop's clock [s].
        heard: as of `Carrier.call`.

    Raises:
        HocketError: PEER_SILENT, STREAM_BROKEN, MESSAGE_TOO_LARGE, PEER_REFUSED.
    """
    sending: asyncio.Task[None] | None = None
    if request.body_size_bytes < SMALL_BYTES:
        for piece in encode(request):
            stream.send_now(piece)
    else:
        sending = asyncio.create_task(stream.send_message(request))
    assembler = Assembler(max_answer_bytes)
    watch = SilenceWatch(silence_s, heard)
    try:
        async with asyncio.timeout_at(deadline) as scope:
            watch.start(scope)
            while True:
                kind, payload = await stream.receive()
                watch.heard()
                if kind is FrameType.WAITING:
                    continue
                if kind is FrameType.ERROR:
                    raise PeerRefused(peer_id, *read_error(payload))
                answer = assembler.add(kind, payload)
                if answer is None:
                    continue
                if sending is not None:
                    await sending  # over in a moment: the peer has read all of it
                return answer
    except TimeoutError as error:
        why = f"sent nothing for {silence_s:.3g} s" if watch.silent else "did not answer within the call's deadline"
        raise HocketError(Code.PEER_SILENT, f"{peer_id} {why}") from error
    finally:
        watch.stop()
        if sending is not None:
            await _stop(sending)


async def serve_over(
    stream: FrameStream, peer_id: str, service: Callable[[], tuple[Handler, int]], *, waiting_every_s: float = WAITING_EVERY_S
) -> None:
    """Answer calls over `stream` until it ends, breaks, or stays unused for 15 minutes; then close it.

    Args:
        peer_id: of the caller.
        service: gives the handler of a call that begins now, and the limit of its request [bytes].
    """
    try:
        while True:
            async with asyncio.timeout(IDLE_STREAM_S):
                kind, payload = await stream.receive()
            handler, max_request_bytes = service()
            ticker = _Ticker(stream, waiting_every_s)
            try:
                request = await _receive_request(stream, kind, payload, max_request_bytes)
                answer = await _handle(stream, peer_id, handler, request)
            except HocketError as error:
                if error.code is Code.STREAM_BROKEN:
                    raise
                answer = error_frame(int(error.code), error.detail)
            finally:
                ticker.stop()
            if isinstance(answer, bytes):
                await stream.send(answer)
                await _linger(stream)
                return
            await stream.send_answer(answer)
    except HocketError as error:
        logger.debug("a stream of %s ends: %s", peer_id, error.detail)
    except TimeoutError:
        logger.debug("a stream of %s ends: nothing came", peer_id)
    finally:
        stream.close()


async def _receive_request(stream: FrameStream, kind: FrameType, payload: bytes, limit_bytes: int) -> Message:
    assembler = Assembler(limit_bytes)
    while True:
        request = assembler.add(kind, payload)
        if request is not None:
            return request
        async with asyncio.timeout(STALL_S):
            kind, payload = await stream.receive()


async def _handle(stream: FrameStream, peer_id: str, handler: Handler, request: Message) -> Message | bytes:
    """The handler's answer, or the error frame in its place; STREAM_BROKEN, and the handler cancelled, if the caller goes."""

    handling = asyncio.ensure_future(handler(peer_id, request))
    watching = asyncio.create_task(stream.receive())
    try:
        await asyncio.wait({handling, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done() and not handling.done():
            raise broken("the caller closed the stream" if watching.exception() else "the caller spoke out of turn")
    finally:
        await _stop(watching)
        await _stop(handling)
    if handling.cancelled():
        raise broken("the handler was cancelled")
    fault = handling.exception()
    if fault is None:
        return handling.result()
    if isinstance(fault, HocketError):
        return error_frame(int(fault.code), fault.detail)
    logger.error("a handler failed on a request of %s", peer_id, exc_info=fault)
    return error_frame(0, type(fault).__name__)


async def _linger(stream: FrameStream) -> None:
    """Read on, for a moment, until the caller closes: closing on unread bytes could take back the error just sent."""
    async with asyncio.timeout(LINGER_S):
        while True:
            await stream.receive()


class _Ticker:
    """Sends a sign of life again and again, from now on until it is stopped."""

    def __init__(self, stream: FrameStream, every_s: float) -> None:
        self._stream = stream
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(every_s, self._tick)

    def _tick(self) -> None:
        self._stream.send_sign_of_life()
        self._next = self._loop.call_later(self._every_s, self._tick)

    def stop(self) -> None:
        self._next.cancel()


async def _stop(task: asyncio.Task[object]) -> None:
    """Cancel `task` and wait until it is over; its result or exception stays with it."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as seen; who needs it asks again
