"""The talk with the coordinator: pinned TLS, signatures both ways, retries, updates in chunks."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.errors import Code, HocketError
from common.faults import Faults
from coordinator.tls import Certificate, load_or_create
from node.door import open_channel
from node.session import CHUNK_BYTES, NewestView, NotAMember, Session, file_digest, now_ms
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey
from protocol.messages import NonceWindow, make_signed, open_signed
from protocol.ticket import Ticket
from swarm.directory import MemoryDirectory
from swarm.whereabouts import make_whereabouts

RUN = "run"
MEMBER = MemberKey.from_seed(b"m" * 32)
COORDINATOR = MemberKey.from_seed(b"c" * 32)


class Recording(rpc.CoordinatorServicer):
    """Answers as the protocol says and notes what came; `failures` are answered first, one a call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failures: list[grpc.StatusCode] = []
        self.refusals: list[tuple[grpc.StatusCode, HocketError, tuple[tuple[str, str], ...]]] = []
        self.key = COORDINATOR
        self.receiver = MEMBER.member_id
        self.files: list[bytes] = []
        self.ends: list[pb.UpdateEnd] = []
        self.receipt: dict[str, Any] = {}
        self.revision = 0
        self.hold_watches = asyncio.Event()
        self.hold_watches.set()
        self._nonces = NonceWindow()
        self.nonce: bytes | None = None
        self.answer_another = False

    async def _open(self, signed: pb.Signed, method: str, kind: Any, context: Any) -> Any:
        if self.refusals:
            status, error, metadata = self.refusals.pop(0)
            await context.abort(status, error.line(), metadata)
        if self.failures:
            await context.abort(self.failures.pop(0), "H303 told to fail")
        header, payload = open_signed(
            signed, method=method, run_id=RUN, receiver=COORDINATOR.member_id, now_ms=now_ms(), nonces=self._nonces
        )
        assert header.public_key == MEMBER.public
        message = kind.FromString(payload)
        self.nonce = None if self.answer_another else header.nonce
        self.calls.append((method, message))
        return message

    def _sign(self, method: str, reply: Any) -> pb.Signed:
        return make_signed(
            self.key, method=method, payload=reply, run_id=RUN, receiver=self.receiver, now_ms=now_ms(), nonce=self.nonce
        )

    async def Join(self, request: pb.Signed, context: Any) -> pb.Signed:
        await self._open(request, "join", pb.JoinRequest, context)
        return self._sign("join", pb.JoinReply(model_config_json="{}", view=pb.RunView(revision=1)))

    async def Watch(self, request: pb.Signed, context: Any) -> pb.Signed:
        await self._open(request, "watch", pb.WatchRequest, context)
        nonce = self.nonce
        await self.hold_watches.wait()
        self.nonce = nonce
        self.revision += 1
        return self._sign("watch", pb.RunView(revision=self.revision))

    async def Lease(self, request: pb.Signed, context: Any) -> pb.Signed:
        lease = await self._open(request, "lease", pb.LeaseRequest, context)
        return self._sign("lease", pb.LeaseReply(granted=True, lease_id=lease.round))

    async def Leave(self, request: pb.Signed, context: Any) -> pb.Signed:
        await self._open(request, "leave", pb.LeaveRequest, context)
        return self._sign("leave", pb.LeaveReply())

    async def SubmitUpdate(self, request_iterator: AsyncIterator[pb.UpdateChunk], context: Any) -> pb.Signed:
        head, data = None, b""
        async for chunk in request_iterator:
            match chunk.WhichOneof("part"):
                case "head":
                    head = await self._open(chunk.head, "submit_update", pb.UpdateHead, context)
                case "data":
                    assert len(chunk.data) <= CHUNK_BYTES
                    data += chunk.data
                case "end":
                    self.ends.append(chunk.end)
        assert head is not None
        self.files.append(data)
        fields = {"round": head.round, "stage": head.stage, "sha256": head.sha256, "accepted": True, **self.receipt}
        return self._sign("submit_update", pb.UpdateReceipt(**fields))


class Door:
    """A gRPC server around a `Recording`, and the ticket to it."""

    def __init__(self, folder: Path) -> None:
        self.servicer = Recording()
        self.certificate: Certificate = load_or_create(folder, "127.0.0.1")
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def open(self, *, tls: bool = True) -> None:
        self._server = grpc.aio.server()
        rpc.add_CoordinatorServicer_to_server(self.servicer, self._server)
        address = f"127.0.0.1:{self.port}"
        if tls:
            credentials = grpc.ssl_server_credentials([(self.certificate.key_pem, self.certificate.pem)])
            self.port = self._server.add_secure_port(address, credentials)
        else:
            self.port = self._server.add_insecure_port(address)
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def ticket(self, *, tls_sha256: bytes | None = None, before: tuple[str, ...] = ()) -> Ticket:
        return Ticket(
            run_id=RUN,
            coordinator_addresses=(*before, f"127.0.0.1:{self.port}"),
            coordinator_key=COORDINATOR.public,
            tls_sha256=self.certificate.sha256 if tls_sha256 is None else tls_sha256,
            bootstrap_multiaddrs=(),
        )


def with_door(folder: Path, body: Callable[[Door, Session], Awaitable[None]], *, faults: Faults | None = None) -> None:
    async def main() -> None:
        door = Door(folder)
        await door.open()
        session = Session(door.ticket(), MEMBER, faults=faults or Faults())
        try:
            async with asyncio.timeout(30):
                await body(door, session)
        finally:
            await session.close()
            await door.close()

    asyncio.run(main())


def test_the_certificate_is_pinned_by_the_ticket(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        await (await open_channel(door.ticket())).close()
        with pytest.raises(HocketError) as caught:
            await open_channel(door.ticket(tls_sha256=hashlib.sha256(b"another").digest()))
        assert caught.value.code is Code.COORDINATOR_KEY_MISMATCH

    with_door(tmp_path, body)


def test_the_next_address_is_tried_when_one_does_not_answer(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        silent = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        closed = silent.sockets[0].getsockname()[1]
        silent.close()
        await (await open_channel(door.ticket(before=(f"127.0.0.1:{closed}",)))).close()
        with pytest.raises(HocketError) as caught:
            await open_channel(door.ticket(), [f"127.0.0.1:{closed}"])
        assert caught.value.code is Code.COORDINATOR_UNREACHABLE

    with_door(tmp_path, body)


def test_a_coordinator_that_moved_is_found_where_it_says(tmp_path: Path) -> None:
    """Signed by the ticket's key, with the ticket's certificate, and never back to an older word of it."""

    async def work() -> None:
        directory = MemoryDirectory()
        door = Door(tmp_path)
        await door.open()
        ticket = door.ticket()
        session = Session(ticket, MEMBER, directory=directory)
        assert (await session.lease(1, 1)).lease_id == 1
        await door.close()
        moved = Door(tmp_path)  # the same state directory, so the same certificate
        await moved.open()
        stranger = MemberKey.from_seed(b"s" * 32)
        with pytest.raises(HocketError):
            await session.lease(2, 1)
        said_ms = now_ms()
        for key, address, time_ms in (
            (stranger, f"127.0.0.1:{moved.port}", said_ms),
            (COORDINATOR, f"127.0.0.1:{door.port}", said_ms - 1),
        ):
            await directory.announce_coordinator(whereabouts(key, address, time_ms), RUN)
            with pytest.raises(HocketError) as caught:
                await session.lease(2, 1)
            assert caught.value.code is Code.COORDINATOR_UNREACHABLE
        await directory.announce_coordinator(whereabouts(COORDINATOR, f"127.0.0.1:{moved.port}", said_ms), RUN)
        assert (await session.lease(2, 1)).lease_id == 2
        await session.close()
        assert (await session.lease(3, 1)).lease_id == 3
        await session.close()
        await moved.close()

    asyncio.run(work())


def test_somebody_else_at_the_old_address_does_not_keep_a_member_from_the_new_one(tmp_path: Path) -> None:
    door = Door(tmp_path)
    (tmp_path / "other").mkdir()
    other = Door(tmp_path / "other")

    async def both() -> None:
        directory = MemoryDirectory()
        await other.open()
        await door.open()
        ticket = replace(door.ticket(), coordinator_addresses=(f"127.0.0.1:{other.port}",))
        session = Session(ticket, MEMBER, directory=directory)
        with pytest.raises(HocketError) as caught:
            await session.lease(1, 1)
        assert caught.value.code is Code.COORDINATOR_KEY_MISMATCH
        await directory.announce_coordinator(whereabouts(COORDINATOR, f"127.0.0.1:{door.port}", now_ms()), RUN)
        assert (await session.lease(1, 1)).lease_id == 1
        await session.close()
        await door.close()
        await other.close()

    asyncio.run(both())


def whereabouts(key: MemberKey, address: str, time_ms: int) -> pb.Signed:
    return make_whereabouts(key, run_id=RUN, addresses=[address], bootstrap_multiaddrs=[], now_ms=time_ms)


def test_plain_text_works_on_loopback_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        door = Door(tmp_path)
        await door.open(tls=False)
        session = Session(door.ticket(tls_sha256=b""), MEMBER)
        assert (await session.lease(3, 1)).lease_id == 3
        await session.close()
        await door.close()

    asyncio.run(main())
    assert "plain text" in caplog.text


def test_a_worker_that_calls_too_often_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        too_often = HocketError(Code.RATE_LIMITED, "of this member; again in 0.8 s")
        door.servicer.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, too_often, (("grpc-retry-pushback-ms", "800"),))]
        begin = asyncio.get_running_loop().time()
        reply = await session.persist("lease", lambda: session.lease(4, 1))
        assert reply is not None and reply.lease_id == 4
        assert asyncio.get_running_loop().time() - begin >= 0.75 * 0.8

    with_door(tmp_path, body)


@pytest.mark.parametrize("code", [Code.BANNED, Code.QUARANTINED, Code.INVITATION_REFUSED, Code.JOIN_REFUSED])
def test_a_worker_that_is_shut_out_ends_with_the_reason(tmp_path: Path, code: Code) -> None:
    async def body(door: Door, session: Session) -> None:
        door.servicer.refusals = [(grpc.StatusCode.PERMISSION_DENIED, HocketError(code, "for this"), ())]
        with pytest.raises(HocketError) as caught:
            await session.persist("watch", lambda: session.watch(pb.MemberReport(), known_revision=0, wait_s=0.0))
        assert (caught.value.code, caught.value.detail, caught.value.exit_code) == (code, "for this", 6)

    with_door(tmp_path, body)


def test_calls_are_signed_both_ways(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        assert (await session.join(pb.JoinRequest(operator="me"))).view.revision == 1
        report = pb.MemberReport(round=2, frames_done=5)
        assert (await session.watch(report, known_revision=7, wait_s=0.0)).revision == 1
        assert (await session.lease(9, 1)).lease_id == 9
        await session.leave("done")
        assert [method for method, _ in door.servicer.calls] == ["join", "watch", "lease", "leave"]
        watched = door.servicer.calls[1][1]
        assert watched.known_revision == 7 and watched.report.frames_done == 5
        door.servicer.answer_another = True
        with pytest.raises(HocketError, match="another request") as caught:
            await session.lease(1, 1)
        assert caught.value.code is Code.SIGNATURE_INVALID
        door.servicer.answer_another = False
        door.servicer.key = MemberKey.generate()
        with pytest.raises(HocketError) as caught:
            await session.lease(1, 1)
        assert caught.value.code is Code.COORDINATOR_KEY_MISMATCH
        door.servicer.key, door.servicer.receiver = COORDINATOR, COORDINATOR.member_id
        with pytest.raises(HocketError) as caught:
            await session.lease(1, 1)
        assert caught.value.code is Code.SIGNATURE_INVALID

    with_door(tmp_path, body)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 17])
def test_an_update_arrives_whole_with_its_end(tmp_path: Path, size: int) -> None:
    path = tmp_path / "update"
    path.write_bytes(bytes(index % 251 for index in range(size)))
    points: list[str] = []

    class Noting(Faults):
        def reach(self, point: str, **facts: object) -> None:
            points.append(f"{point}/{facts['round']}/{facts['stage']}")

    async def body(door: Door, session: Session) -> None:
        size_bytes, sha256 = file_digest(path)
        assert size_bytes == size
        receipt = await session.submit(pb.UpdateHead(round=4, stage=1, size_bytes=size, sha256=sha256), path)
        assert receipt.accepted and door.servicer.files == [path.read_bytes()]
        assert (door.servicer.ends[0].bytes, door.servicer.ends[0].chunks) == (size, -(-size // CHUNK_BYTES))
        assert session.bytes_sent_updates == size

    with_door(tmp_path, body, faults=Noting())
    assert points == (["node.submit.before/4/1", "node.submit.half/4/1"] if size else ["node.submit.before/4/1"])


def test_a_receipt_for_another_update_is_no_receipt(tmp_path: Path) -> None:
    path = tmp_path / "update"
    path.write_bytes(b"x")

    async def body(door: Door, session: Session) -> None:
        door.servicer.receipt = {"sha256": b"other"}
        with pytest.raises(HocketError) as caught:
            await session.submit(pb.UpdateHead(round=4, size_bytes=1, sha256=file_digest(path)[1]), path)
        assert caught.value.code is Code.SIGNATURE_INVALID

    with_door(tmp_path, body)


def test_a_call_is_repeated_until_the_coordinator_is_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "update"
    path.write_bytes(b"update")

    async def body(door: Door, session: Session) -> None:
        door.servicer.failures = [grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL]
        head = pb.UpdateHead(round=4, size_bytes=6, sha256=file_digest(path)[1])
        receipt = await session.persist("submit_update", lambda: session.submit(head, path))
        assert receipt is not None and receipt.accepted and door.servicer.files == [b"update"]
        await door.close()
        waiting = asyncio.create_task(session.persist("lease", lambda: session.lease(1, 1)))
        while "lease failed" not in caplog.text:
            await asyncio.sleep(0.01)
        await door.open()
        reply = await waiting
        assert reply is not None and reply.granted

    with_door(tmp_path, body)
    assert caplog.text.count("submit_update failed") == 3 and caplog.text.count("its answer was lost") == 1


def test_a_coordinator_that_does_not_know_us_is_joined_again(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        await session.join(pb.JoinRequest(operator="me"))
        door.servicer.failures = [grpc.StatusCode.NOT_FOUND]
        assert await session.persist("lease", lambda: session.lease(1, 1)) is not None
        assert [method for method, _ in door.servicer.calls] == ["join", "join", "lease"]
        assert door.servicer.calls[1][1].operator == "me"
        door.servicer.failures = [grpc.StatusCode.NOT_FOUND]
        with pytest.raises(NotAMember):
            await session.lease(1, 1)

    with_door(tmp_path, body)


def test_a_refused_join_is_not_repeated(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        door.servicer.failures = [grpc.StatusCode.PERMISSION_DENIED]
        with pytest.raises(HocketError) as caught:
            await session.persist("join", lambda: session.join(pb.JoinRequest()))
        assert caught.value.code is Code.JOIN_REFUSED and not door.servicer.calls

    with_door(tmp_path, body)


def test_a_first_join_whose_signature_is_refused_is_not_repeated_and_a_later_one_is(tmp_path: Path) -> None:
    """A ticket of another run or key, or a wrong clock, stays wrong; once a join was taken, a refusal passes."""

    async def body(door: Door, session: Session) -> None:
        door.servicer.failures = [grpc.StatusCode.UNAUTHENTICATED]
        with pytest.raises(HocketError) as caught:
            await session.persist("join", lambda: session.join(pb.JoinRequest()))
        assert caught.value.code is Code.JOIN_REFUSED and not door.servicer.calls
        await session.persist("join", lambda: session.join(pb.JoinRequest()))
        door.servicer.failures = [grpc.StatusCode.UNAUTHENTICATED]
        await session.persist("join", lambda: session.join(pb.JoinRequest()))
        assert [method for method, _ in door.servicer.calls] == ["join", "join"]

    with_door(tmp_path, body)


def test_what_is_not_wanted_any_more_is_given_up(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        door.servicer.failures = [grpc.StatusCode.UNAVAILABLE] * 3
        assert await session.persist("lease", lambda: session.lease(1, 1), while_=lambda: len(door.servicer.failures) > 1) is None
        assert len(door.servicer.failures) == 1

    with_door(tmp_path, body)


def test_every_view_is_handed_on_and_the_next_watch_names_it(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        seen: list[int] = []
        third = asyncio.Event()

        def on_view(view: pb.RunView) -> None:
            seen.append(view.revision)
            if len(seen) == 3:
                third.set()

        door.servicer.failures = [grpc.StatusCode.UNAVAILABLE]
        watching = asyncio.create_task(session.watch_views(lambda: pb.MemberReport(frames_done=len(seen)), on_view, wait_s=0.0))
        await third.wait()
        watching.cancel()
        assert seen[:3] == [1, 2, 3]
        watched = [message for method, message in door.servicer.calls if method == "watch"]
        assert [message.known_revision for message in watched[:3]] == [0, 1, 2]
        assert [message.report.frames_done for message in watched[:3]] == [0, 1, 2]

    with_door(tmp_path, body)


def test_a_call_that_breaks_the_connection_does_not_end_the_watch(tmp_path: Path) -> None:
    async def body(door: Door, session: Session) -> None:
        seen = asyncio.Event()
        door.servicer.hold_watches.clear()
        watching = asyncio.create_task(session.watch_views(pb.MemberReport, lambda view: seen.set(), wait_s=0.0))
        while not door.servicer.calls:
            await asyncio.sleep(0.01)
        door.servicer.failures = [grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(HocketError) as caught:
            await session.lease(1, 1)
        assert caught.value.code is Code.COORDINATOR_UNREACHABLE
        door.servicer.hold_watches.set()
        await seen.wait()
        assert not watching.done()
        watching.cancel()

    with_door(tmp_path, body)


def test_an_answer_that_was_overtaken_calls_nothing_back() -> None:
    views, (old, new, restored) = NewestView(), [pb.RunView(revision=number) for number in (4, 7, 2)]
    first, second = views.ask(), views.ask()
    assert views.take(second, new) == new
    assert views.take(first, old) == new, "it was asked before, and says what was before"
    assert views.take(views.ask(), restored) == restored, "the coordinator was set back"
    held, beside = views.ask(), views.ask()
    assert (views.take(beside, old), views.take(held, new)) == (old, new), "one that was held says what is new"
