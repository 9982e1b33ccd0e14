"""Malformed calls at a coordinator's door, over gRPC as it is; and connections that never become calls."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError, Message

from node.door import open_channel
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, member_id
from protocol.messages import make_signed
from protocol.ticket import Ticket, split_address
from simulations.hostile.mutations import blind, structured
from simulations.hostile.tally import Tally

CHANNELS = 4
STRANGERS = 16
CALL_WITHIN_S = 20.0
SLOW_CONNECTIONS = 100
ENDLESS_STREAMS = 16
SLOW_PAUSE_S = 0.5
SERVICE = "/hocket.Coordinator/"
WRITE_FAILED = "SendMessageOperation"
HEAD = b"\x0a"  # the tag of UpdateChunk.head

# What each call carries inside `Signed`, as an honest member might send it.
CALLS: dict[str, tuple[str, Message]] = {
    "Join": ("join", pb.JoinRequest(peer_id="Qm", peer_public_key=b"key", peer_signature=b"proof", operator="x", threads=1)),
    "Watch": ("watch", pb.WatchRequest(known_revision=1, report=pb.MemberReport(round=1, frames_done=3))),
    "Lease": ("lease", pb.LeaseRequest(round=1, generation=1)),
    "Leave": ("leave", pb.LeaveRequest(reason="x")),
    "Commit": ("commit", pb.StepCommit(round=1, generation=1, step=1, records=[pb.MicrobatchRecord(id=1, frames=2)])),
    "SubmitUpdate": ("submit_update", pb.UpdateHead(round=1, size_bytes=100, sha256=bytes(32), frames=3)),
    "SubmitOpening": ("submit_opening", pb.OpeningHead(kind=pb.STEP, round=1, size_bytes=100, sha256=bytes(32))),
}
STREAMS = ("SubmitUpdate", "SubmitOpening")


def _plain(data: bytes) -> bytes:
    return data


@dataclass
class CallStorm:
    """Everything that is thrown at one coordinator.

    Args:
        ticket: of the run. tally: counts. seed: of the messages.
        insiders: keys of members. calls: what some calls carry, in place of `CALLS`.
    """

    ticket: Ticket
    tally: Tally
    seed: int
    insiders: list[MemberKey] = field(default_factory=list)
    calls: dict[str, tuple[str, Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self._strangers = [MemberKey.from_seed(draw.randbytes(32)) for _ in range(STRANGERS)]
        self._channels: list[grpc.aio.Channel] = []
        self._sent: list[tuple[str, bytes]] = []  # for replays
        self._receiver = member_id(self.ticket.coordinator_key)

    async def open(self) -> None:
        self._channels = [await open_channel(self.ticket) for _ in range(CHANNELS)]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    def signed(self, key: MemberKey, method: str, payload: Message | bytes, **changes: Any) -> pb.Signed:
        fields: dict[str, Any] = {"run_id": self.ticket.run_id, "receiver": self._receiver, "now_ms": int(time.time() * 1000)}
        return make_signed(key, method=method, payload=payload, **{**fields, **changes})

    # ---- malformed calls --------------------------------------------------------------------------------------------

    async def one(self, number: int) -> None:
        """Send malformed call `number` and note what became of it."""
        draw = random.Random(f"{self.seed}/calls/{number}")
        name = draw.choice(sorted(CALLS))
        kind, data = self._made(draw, name)
        channel = self._channels[number % CHANNELS]
        if len(self._sent) < 200:
            self._sent.append((name, data))
        if name in STREAMS:
            way, pieces = self._stream(draw, data)
            await self._note(f"{name}: {way or kind}", self._stream_call(channel, name, pieces))
        else:
            await self._note(f"{name}: {kind}", self._call(channel, name, data))

    def _made(self, draw: random.Random, name: str) -> tuple[str, bytes]:
        """The bytes of a `Signed` message that must be refused, or at least must change nothing."""
        method, message = self.calls.get(name, CALLS[name])
        inside = self.insiders and draw.random() < 0.7
        key = draw.choice(self.insiders if inside else self._strangers)
        who = "a member" if inside else "a stranger"
        way = draw.random()
        if way < 0.35:
            kind, changed = structured(draw, message)
            return f"{who}: a field", self.signed(key, method, changed).SerializeToString()
        if way < 0.5:
            _, payload = blind(draw, message.SerializeToString())
            return f"{who}: a payload", self.signed(key, method, payload).SerializeToString()
        if way < 0.65:
            changes: dict[str, Any] = draw.choice((
                {"run_id": "other"}, {"receiver": key.member_id}, {"now_ms": 0}, {"now_ms": 2**62}, {"round": 2**63}, {"stage": 9}
            ))  # fmt: skip
            return f"signed for another {next(iter(changes))}", self.signed(key, method, message, **changes).SerializeToString()
        if way < 0.75 and self._sent:
            return "replayed", draw.choice(self._sent)[1]
        if way < 0.8:
            return "too large", self.signed(key, method, bytes(draw.choice((1 << 17, 3 << 20, 5 << 20)))).SerializeToString()
        kind, data = blind(draw, self.signed(key, method, message).SerializeToString())
        return kind, data

    def _stream(self, draw: random.Random, signed: bytes) -> tuple[str, list[bytes]]:
        """The messages of a stream; what was done to it, empty where only its head is odd."""
        try:
            head = pb.UpdateChunk(head=pb.Signed.FromString(signed)).SerializeToString()
        except DecodeError:
            head = HEAD + b"\xff" + signed
        data = pb.UpdateChunk(data=draw.randbytes(50)).SerializeToString()
        end = pb.UpdateChunk(end=pb.UpdateEnd(chunks=1, bytes=50)).SerializeToString()
        ways: dict[str, list[bytes]] = {
            "": [head, data, end], "no head": [data, end], "nothing": [], "two heads": [head, head, end],
            "an end first": [end, head, data], "no end": [head, data], "an empty message": [b""],
            "a chunk of 3 MiB": [head, pb.UpdateChunk(data=bytes(3 << 20)).SerializeToString(), end],
            "many empty chunks": [head, *[pb.UpdateChunk(data=b"").SerializeToString()] * 500],
            "a huge count": [head, data, pb.UpdateChunk(end=pb.UpdateEnd(chunks=2**64 - 1, bytes=2**64 - 1)).SerializeToString()],
            "no messages": [draw.randbytes(40)] * 3,
        }  # fmt: skip
        way = draw.choice(["", "", "", *ways])
        return way, ways[way]

    async def _call(self, channel: grpc.aio.Channel, name: str, data: bytes) -> bytes:
        call = channel.unary_unary(SERVICE + name, request_serializer=_plain, response_deserializer=_plain)
        return await call(data, timeout=CALL_WITHIN_S)

    async def _stream_call(self, channel: grpc.aio.Channel, name: str, pieces: list[bytes]) -> bytes:
        async def messages() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        call = channel.stream_unary(SERVICE + name, request_serializer=_plain, response_deserializer=_plain)
        return await call(messages(), timeout=CALL_WITHIN_S)

    async def _note(self, kind: str, call: Any) -> None:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            details = error.details() or ""
            code = error.code()
            if code is grpc.StatusCode.INTERNAL and WRITE_FAILED in (error.debug_error_string() or ""):
                # The call was over while we still wrote, and gRPC for asyncio shows the failed write in place of the answer
                # (grpc issue 36066). What went wrong at the server, if anything, is in its log.
                self.tally.sent(kind, "over while we wrote")
                return
            self.tally.sent(kind, f"{code.name} {details[:4]}".strip() if details.startswith("H") else code.name)
            undecodable = code is grpc.StatusCode.INTERNAL and "deserializ" in details.lower()
            if code is grpc.StatusCode.UNKNOWN or (code is grpc.StatusCode.INTERNAL and not undecodable):
                self.tally.fault(f"{kind}: {code.name} {details}")
        else:
            self.tally.sent(kind, "answered")

    # ---- what never becomes a call ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def half_open(self) -> AsyncIterator[None]:
        """Meanwhile: streams that begin and never go on, and connections that say a byte now and then."""
        host, port = split_address(self.ticket.coordinator_addresses[0])
        tasks = [asyncio.create_task(self._slow(host, port, number)) for number in range(SLOW_CONNECTIONS)]
        tasks += [asyncio.create_task(self._endless(number)) for number in range(ENDLESS_STREAMS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    self.tally.fault(f"a slow connection: {result!r}")

    async def _endless(self, number: int) -> None:
        """One stream after another: with a head that is good but for its sender, or with none, and nothing after it."""
        key = self._strangers[number % STRANGERS]
        waiting = asyncio.Event()

        async def messages() -> AsyncIterator[bytes]:
            if number % 2:
                head = self.signed(key, "submit_update", CALLS["SubmitUpdate"][1])
                yield pb.UpdateChunk(head=head).SerializeToString()
            await waiting.wait()

        call = self._channels[number % CHANNELS].stream_unary(
            SERVICE + "SubmitUpdate", request_serializer=_plain, response_deserializer=_plain
        )
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call(messages())
            await asyncio.sleep(SLOW_PAUSE_S)

    async def _slow(self, host: str, port: int, number: int) -> None:
        """One connection after another: plain bytes, or a handshake and then half a preface."""
        draw = random.Random(f"{self.seed}/slow/{number}")
        context: ssl.SSLContext | None = None
        if number % 2 and self.ticket.tls_sha256:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
        while True:
            with contextlib.suppress(OSError):  # a TimeoutError is one; it was shut out: the next one
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=context), CALL_WITHIN_S)
                try:
                    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(60):
                        writer.write(bytes([byte]))
                        await writer.drain()
                        await asyncio.sleep(SLOW_PAUSE_S)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(SLOW_PAUSE_S)


async def in_turn(numbers: Iterable[int], at_once: int, one: Callable[[int], Any]) -> None:
    """Do `one` of each number, so many of them at a time."""
    left = iter(numbers)

    async def some() -> None:
        for number in left:
            await one(number)

    await asyncio.gather(*(some() for _ in range(at_once)))
