"""A coordinator's door without sockets and children, and callers from any address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc
from core_members import RUN_ID
from forked_core import KEY, Clock, Pieces, put_together
from google.protobuf.message import Message
from scripted_run import RUN, write_run

from common.errors import HocketError, error_of_line
from common.faults import NO_FAULTS
from coordinator.door import Door
from coordinator.entrance import Entrance
from coordinator.nonce_file import NonceFile
from coordinator.rate_limits import Limits
from coordinator.uploads import Uploads
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, PeerKey
from protocol.messages import make_signed, open_signed

HOME = "ipv4:127.0.0.1:40000"


class Aborted(Exception):
    """A call ended with a status instead of an answer."""

    def __init__(self, status: grpc.StatusCode, detail: str, metadata: Mapping[str, str]) -> None:
        super().__init__(f"{status.name}: {detail}")
        self.status, self.detail, self.metadata = status, detail, metadata

    @property
    def error(self) -> HocketError:
        told = error_of_line(self.detail)
        assert told is not None, self.detail
        return told


@dataclass
class Context:
    """What the door needs of a call's context."""

    name: str = HOME

    def peer(self) -> str:
        return self.name

    async def abort(self, status: grpc.StatusCode, detail: str, metadata: Any = ()) -> NoReturn:
        raise Aborted(status, detail, dict(metadata))


@dataclass
class House:
    """A coordinator that is up, at a time that the test sets."""

    folder: Path
    pieces: Pieces
    door: Door
    clock: Clock
    answers: dict[str, type[Message]] = field(default_factory=lambda: {
        "join": pb.JoinReply, "watch": pb.RunView, "lease": pb.LeaseReply, "leave": pb.LeaveReply, "manage": pb.ManageReply,
    })  # fmt: skip

    @property
    def state(self) -> Any:
        return self.pieces.core.state

    def signed(self, key: MemberKey, method: str, payload: Message | bytes, **more: Any) -> pb.Signed:
        fields = {"run_id": RUN_ID, "receiver": KEY.member_id, "now_ms": int(self.clock.now * 1000), **more}
        return make_signed(key, method=method, payload=payload, **fields)

    async def send(self, method: str, signed: pb.Signed, peer: str = HOME) -> pb.Signed:
        reply: pb.Signed = await getattr(self.door, method.capitalize())(signed, Context(peer))
        return reply

    async def ask(self, key: MemberKey, method: str, payload: Message, peer: str = HOME) -> Any:
        """A call of a member, its answer checked."""
        reply = await self.send(method, self.signed(key, method, payload), peer)
        _, data = open_signed(
            reply, method=method, run_id=RUN_ID, receiver=key.member_id, now_ms=int(self.clock.now * 1000), nonces=None
        )
        return self.answers[method].FromString(data)

    async def refused(self, calling: Any) -> HocketError:
        """The numbered error that a call is refused with."""
        try:
            await calling
        except Aborted as aborted:
            return aborted.error
        raise AssertionError("it was answered")

    async def restarted(self) -> House:
        """The same state directory, after a restart."""
        self.pieces.journal.close()
        return await _open(self.folder, self.clock, Limits(), dict)


def join_request(key: MemberKey, peer: PeerKey, **more: Any) -> pb.JoinRequest:
    return pb.JoinRequest(
        peer_id=peer.peer_id, peer_public_key=peer.public_key_bytes, peer_signature=peer.prove(key.public), **more
    )


async def _open(folder: Path, clock: Clock, limits: Limits, listed: Callable[[], Mapping[str, str]]) -> House:
    (folder / "state").mkdir(exist_ok=True)
    pieces = await put_together(folder / "state", folder / "run.toml", clock, NO_FAULTS, clock)
    core = pieces.core
    nonce_file = NonceFile(folder / "state", int(clock.now * 1000))
    entrance = Entrance(core, KEY, limits=limits, nonce_file=nonce_file, wall=clock)
    uploads = Uploads(core, folder / "state", pieces.auditing)
    return House(folder, pieces, Door(core, uploads, entrance, list, pieces.auditing, listed=listed), clock)


def within(
    folder: Path, body: Callable[[House], Any], *, membership: str = "", audit: str = "", limits: Limits | None = None,
    listed: Callable[[], Mapping[str, str]] = dict, replicas: int = 2, dataset: Callable[[Path], None] = lambda folder: None,
) -> None:  # fmt: skip
    """Run `body` with a coordinator of its own.

    Args:
        membership, audit: further lines of these sections of the run file. replicas: wanted of each stage.
        dataset: puts another one into the folder of the dataset.
    """
    write_run(folder)
    dataset(folder / "dataset")
    text = RUN.replace("[audit]\nrate = 1.0\n", f"[audit]\n{audit}\n").replace("[membership]\n", f"[membership]\n{membership}\n")
    (folder / "run.toml").write_text(text.replace("replicas_wanted = 2", f"replicas_wanted = {replicas}"))

    async def main() -> None:
        house = await _open(folder, Clock(1_000_000.0), limits or Limits(), listed)
        try:
            await body(house)
        finally:
            house.pieces.journal.close()

    asyncio.run(main())


async def stream(*parts: pb.UpdateChunk) -> AsyncIterator[pb.UpdateChunk]:
    for part in parts:
        yield part
