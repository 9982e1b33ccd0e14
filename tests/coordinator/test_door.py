"""The door refuses what it must, and says why; what it acknowledges is on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import socket
import ssl
import time
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, member_id
from protocol.messages import make_signed


def tls_version(address: str) -> str | None:
    """What the server and a client of today agree on."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as secure:
        return secure.version()


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status and the text that a call is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def until_phase(world: Any, phase: int) -> None:
    """Watch and act until every member sees the phase, without submitting."""
    for member in world.members:
        member.submitted = True
    while not all(member.view.phase == phase for member in world.members):
        for member in world.members:
            await member.watch(0.1)
            if member.view.phase != phase:
                if member.view.round != member.round:
                    member.fresh(member.view.round)
                    member.submitted = True
                await member.act()


@pytest.mark.timeout(240)
def test_the_door(scripted: SimpleNamespace) -> None:
    scripted.prepare(count=9, replicas=1, evaluate="false", silence=60)
    process = scripted.start()
    ticket = process.ticket()
    assert tls_version(ticket.coordinator_addresses[0]) == "TLSv1.3"

    async def run() -> None:
        world = await scripted.gather(ticket, 2)
        first, last = world.members
        await signatures(first, ticket)
        await joining(world, scripted)
        await crowds(first, ticket)
        await until_phase(world, pb.OPEN)
        first, last = sorted(world.members, key=lambda one: one.entry.stage)
        await updates_out_of_phase(first)
        await until_phase(world, pb.CLOSING)
        await updates(first, last, scripted.state_dir)
        status = json.loads((await first.stub.Status(pb.StatusRequest())).json)
        assert status["run_id"] == "scripted" and len(status["stages"]) == 2 and status["recent_events"]
        for member in world.members:
            member.submitted = False
        await scripted.go_on(world, lambda view: view.round == 2)

    asyncio.run(run())
    assert process.terminate() == 0
    assert "Traceback" not in process.log.read_text()


async def signatures(member: Any, ticket: Any) -> None:
    """Requests that are not what their sender signed, for this run and receiver, now and once."""
    request = pb.WatchRequest(wait_s=0)
    good = member.sign("watch", request)
    await member.stub.Watch(good)
    unauthenticated = grpc.StatusCode.UNAUTHENTICATED
    code, text = await refusal(member.stub.Watch(good))
    assert code is unauthenticated and text.startswith("H308") and "received before" in text
    changed = member.sign("watch", request)
    changed.payload = pb.WatchRequest(wait_s=1).SerializeToString()
    assert (await refusal(member.stub.Watch(changed)))[0] is unauthenticated
    assert (await refusal(member.stub.Watch(member.sign("lease", request))))[0] is unauthenticated
    assert (await refusal(member.stub.Watch(member.sign("watch", request, receiver=member.id))))[0] is unauthenticated
    late = make_signed(member.key, method="watch", payload=request, run_id=ticket.run_id, receiver=good_receiver(ticket),
                       now_ms=int(time.time() * 1000) - 120_000)  # fmt: skip
    code, text = await refusal(member.stub.Watch(late))
    assert code is unauthenticated and "clocks" in text
    other_run = make_signed(member.key, method="watch", payload=request, run_id="other", now_ms=int(time.time() * 1000),
                            receiver=good_receiver(ticket))  # fmt: skip
    assert (await refusal(member.stub.Watch(other_run)))[0] is unauthenticated
    garbage = pb.Signed(header=b"\xff\xff\xff", payload=b"", signature=bytes(64))
    assert (await refusal(member.stub.Watch(garbage)))[0] is unauthenticated
    await no_messages(member)
    no_message = member.sign("watch", b"\xff\xff\xff")
    assert (await refusal(member.stub.Watch(no_message)))[0] is unauthenticated
    too_large = member.sign("watch", bytes(5 << 20))
    assert (await refusal(member.stub.Watch(too_large)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def no_messages(member: Any) -> None:
    """Bytes that are not even a signed message, alone and in a stream."""
    watch = member.channel.unary_unary("/hocket.Coordinator/Watch")
    code, text = await refusal(watch(b"\xff\xff\xff"))
    assert code is grpc.StatusCode.UNAUTHENTICATED and text.startswith("H308")

    async def stream() -> Any:
        yield b"\xff\xff\xff"

    submit = member.channel.stream_unary("/hocket.Coordinator/SubmitUpdate")
    code, text = await refusal(submit(stream()))
    assert code is grpc.StatusCode.ABORTED and text.startswith("H306")


def good_receiver(ticket: Any) -> str:
    return member_id(ticket.coordinator_key)


async def joining(world: Any, scripted: SimpleNamespace) -> None:
    """Strangers, false peer proofs, a peer id of somebody else; joining again is fine."""
    first = world.members[0]
    stranger = type(first)(first.ticket, first.store, world)
    await stranger.connect()
    code, text = await refusal(stranger.stub.Watch(stranger.sign("watch", pb.WatchRequest())))
    assert code is grpc.StatusCode.NOT_FOUND and "join first" in text
    assert (await refusal(stranger.stub.Lease(stranger.sign("lease", pb.LeaseRequest()))))[0] is grpc.StatusCode.NOT_FOUND
    assert (await refusal(stranger.stub.Leave(stranger.sign("leave", pb.LeaveRequest()))))[0] is grpc.StatusCode.NOT_FOUND
    forged = pb.JoinRequest(peer_id=first.peer.peer_id, peer_public_key=first.peer.public_key_bytes,
                            peer_signature=first.peer.prove(first.key.public))  # fmt: skip
    assert (await refusal(stranger.stub.Join(stranger.sign("join", forged))))[0] is grpc.StatusCode.UNAUTHENTICATED
    forged.peer_signature = first.peer.prove(stranger.key.public)
    code, text = await refusal(stranger.stub.Join(stranger.sign("join", forged)))
    assert code is grpc.StatusCode.PERMISSION_DENIED and "peer id" in text
    while first.entry is None:
        await first.watch()
    generation = first.entry.generation
    reply = await first.join()
    while first.entry is None:
        await first.watch()
    assert first.entry.generation == generation + 1
    assert reply.run_toml == (scripted.folder / "run.toml").read_text()
    assert json.loads(reply.model_config_json)["n_codebooks"] == 4 and reply.dataset_manifest_cid.startswith("baf")


async def crowds(member: Any, ticket: Any) -> None:
    """What many keys, many process numbers and impossible waits do: nothing to anybody else."""
    soon_ms = int(time.time() * 1000) + 50_000
    request = pb.WatchRequest(wait_s=0)
    messages = [
        make_signed(MemberKey.generate(), method="watch", payload=request, run_id=ticket.run_id, receiver=good_receiver(ticket),
                    now_ms=soon_ms)
        for _ in range(1000)
    ]  # fmt: skip
    met = set()
    for start in range(0, len(messages), 100):
        answers = await asyncio.gather(*(member.stub.Watch(one) for one in messages[start : start + 100]), return_exceptions=True)
        assert all(isinstance(one, grpc.aio.AioRpcError) for one in answers)
        met |= {one.code() for one in answers}
    # The coordinator soon looks at none of them any more, and at the member's own calls as ever, though they share an address.
    assert met == {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED}
    await member.stub.Watch(member.sign("watch", request))  # what was remembered of members is all there still
    for pid in range(1, 200):
        report = pb.MemberReport(pid=pid, bytes_sent_updates=1 << 40)
        await member.stub.Watch(member.sign("watch", pb.WatchRequest(wait_s=0, report=report)))
    status = json.loads((await member.stub.Status(pb.StatusRequest())).json)
    assert status["bytes"]["updates"] <= 64 << 40
    for wait_s in (math.nan, math.inf, -1.0):
        await member.stub.Watch(member.sign("watch", pb.WatchRequest(wait_s=wait_s, known_revision=1 << 62)))


async def updates_out_of_phase(member: Any) -> None:
    receipt = await member.submit(member.update())
    assert not receipt.accepted and "CLOSING" in receipt.reason


async def updates(first: Any, last: Any, state_dir: Any) -> None:
    """A cut stream is an error and leaves nothing; heads that do not fit are refused; what is acknowledged is there, once."""
    tensors = first.update()
    folder = state_dir / f"updates/round-{first.view.round}/stage-0"
    for cut in (0, 1):
        code, text = await refusal(first.submit(tensors, cut=cut))
        assert code is grpc.StatusCode.ABORTED and text.startswith("H306")
    code, text = await refusal(first.submit(tensors, sha256=hashlib.sha256(b"other").digest()))
    assert code is grpc.StatusCode.ABORTED and "signed" in text
    for changes, reason in (({"round": 7}, "phase"), ({"generation": 99}, "assignment"), ({"stage": 1}, "assignment")):
        receipt = await first.submit(tensors, **changes)
        assert not receipt.accepted and reason in receipt.reason
    assert list(folder.glob("*")) == []
    mismatched = first.sign("submit_update", pb.UpdateHead(round=first.view.round), round=5)
    headless = first.stub.SubmitUpdate(iter_of(pb.UpdateChunk(head=mismatched)))
    assert (await refusal(headless))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert (await refusal(first.stub.SubmitUpdate(iter_of(pb.UpdateChunk(data=b"x")))))[0] is grpc.StatusCode.ABORTED
    assert (await refusal(first.stub.SubmitUpdate(iter_of())))[0] is grpc.StatusCode.ABORTED
    stranger = make_signed(MemberKey.generate(), method="submit_update", payload=pb.UpdateHead(), run_id=first.ticket.run_id,
                           now_ms=int(time.time() * 1000), receiver=good_receiver(first.ticket))  # fmt: skip
    assert (await refusal(first.stub.SubmitUpdate(iter_of(pb.UpdateChunk(head=stranger)))))[0] is grpc.StatusCode.NOT_FOUND

    # A full disk: said so, nothing kept, and it can be sent again.
    folder.mkdir(parents=True, exist_ok=True)
    code = grpc.StatusCode.INTERNAL
    for _ in range(20):
        if code is not grpc.StatusCode.INTERNAL:
            break
        # One that is still sending when it is refused now and then hears only that; a worker asks again, and so does this.
        (folder / f"{first.id}.safetensors.part").symlink_to("/dev/full")
        code, text = await refusal(first.submit(tensors))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith("H402")
    receipt = await first.submit(tensors)
    assert receipt.accepted and receipt.round == first.view.round
    (path,) = folder.glob("*")
    assert hashlib.sha256(path.read_bytes()).digest() == receipt.sha256
    # Sent again, because the receipt was lost: acknowledged, from the head alone.
    assert (await first.submit(tensors, cut=0)).accepted
    other = {name: array + np.float32(1) for name, array in tensors.items()}
    receipt = await first.submit(other)
    assert not receipt.accepted and "acknowledged before" in receipt.reason
    assert [one.name for one in folder.glob("*")] == [path.name]
    assert last.view.phase == pb.CLOSING


async def iter_of(*chunks: pb.UpdateChunk) -> Any:
    for chunk in chunks:
        yield chunk
