"""The core of a coordinator in a forked process, without sockets: its real door, driver, uploads, assembly, journal and files.

Calls come one at a time over a pipe, and the driver has decided before the next one is read, so that one script of calls
meets the same points in the same order however often it is played.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
import numpy as np
from crash_points import Points

from common.errors import HocketError
from common.faults import Faults
from common.lock import locked
from coordinator.assembly import Assembly
from coordinator.audit_secret import AuditSecrets
from coordinator.auditing import Auditing
from coordinator.core import Core
from coordinator.door import Door
from coordinator.driver import Driver
from coordinator.entrance import Entrance
from coordinator.journal import Journal
from coordinator.run_config import RunConfig
from coordinator.start import fold, found
from coordinator.uploads import Uploads
from coordinator.versions import Versions
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.tensor_files import write_tensors
from swarm.blocks import BlockStore

KEY = MemberKey.from_seed(b"crash sweep's own coordinator ..")
FAILED = 70
ENDED = 65  # with one numbered line
SHAPES = ({"embed": (3, 4), "scale": (5,)}, {"head": (4, 6)})


class Gone(Exception):
    """The process at the other end has ended."""


class Refusal(Exception):
    """The door refused a call."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


@dataclass(frozen=True)
class Frame:
    """One message on the pipe."""

    head: dict[str, Any]
    parts: list[bytes]


def send(pipe: socket.socket, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    text = json.dumps({**head, "sizes": [len(part) for part in parts]}).encode()
    try:
        pipe.sendall(len(text).to_bytes(4, "little") + text + b"".join(parts))
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Gone from error


def receive(pipe: socket.socket) -> Frame:
    head = json.loads(_exactly(pipe, int.from_bytes(_exactly(pipe, 4), "little")))
    return Frame(head, [_exactly(pipe, size) for size in head["sizes"]])


def _exactly(pipe: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            piece = pipe.recv(size - len(data))
        except ConnectionResetError as error:
            raise Gone from error
        if not piece:
            raise Gone
        data += piece
    return data


class Clock:
    """The time that the caller says it is."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Answering:
    """What the door needs of a call's context."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, status: grpc.StatusCode, detail: str, metadata: tuple[tuple[str, str], ...] = ()) -> NoReturn:
        raise Refusal(status.name, detail)


def write_first(folder: Path) -> None:
    """Version 0: weights that follow from their names."""
    for stage, shapes in enumerate(SHAPES):
        tensors = {name: np.full(shape, len(name), np.float32) for name, shape in shapes.items()}
        write_tensors(folder / f"stage-{stage}.safetensors", tensors)


@dataclass
class Pieces:
    """One start of a coordinator, without its sockets and children."""

    journal: Journal
    core: Core
    driver: Driver
    door: Door
    auditing: Auditing


async def put_together(
    folder: Path, run_toml: Path, clock: Callable[[], float], faults: Faults, wall: Callable[[], float]
) -> Pieces:  # fmt: skip
    """What a coordinator does at its start, up to the point where members can join."""
    config, text = RunConfig.load(run_toml)
    store = BlockStore(folder / "blocks")
    journal = Journal(folder / "journal.sqlite", faults)
    core = Core(config, journal, fold(journal), faults, clock)
    found(core, config, text, run_toml.parent, store)

    async def first_weights(at: Path) -> None:
        write_first(at)

    versions, secrets = Versions(folder / "versions", store, KEY), AuditSecrets(KEY, core.state.run_id)
    assembly = Assembly(core, versions, folder, first_weights=first_weights, secrets=secrets)
    auditing = Auditing(core, versions, store, KEY, secrets, folder)
    await assembly.genesis()
    auditing.resume()
    core.emit("started", pid=1)
    door = Door(core, Uploads(core, folder, auditing), Entrance(core, KEY, wall=wall), list, auditing)
    return Pieces(journal, core, Driver(core, assembly), door, auditing)


async def serve(pipe: socket.socket, folder: Path, run_toml: Path, clock: Clock, points: Points) -> None:
    """One start of a coordinator, until it is told to stop or dies."""
    pieces = await put_together(folder, run_toml, clock, points, clock)
    send(pipe, {"up": True})
    while True:
        frame = receive(pipe)
        if frame.head["method"] == "stop":
            pieces.journal.close()
            return
        clock.now = frame.head["now"]
        send(pipe, *await answer(pieces.door, frame, points))
        await pieces.driver.step()


async def answer(door: Door, frame: Frame, points: Faults) -> tuple[dict[str, Any], list[bytes]]:
    context: Any = Answering()
    try:
        if frame.head["method"] == "SubmitUpdate":
            reply = await door.SubmitUpdate(arriving(frame.parts, points), context)
        else:
            reply = await getattr(door, frame.head["method"])(pb.Signed.FromString(frame.parts[0]), context)
    except Refusal as refusal:
        return {"status": refusal.status, "detail": str(refusal)}, []
    return {"status": "OK"}, [reply.SerializeToString()]


async def arriving(parts: Sequence[bytes], points: Faults) -> AsyncIterator[pb.UpdateChunk]:
    for part in parts:
        points.reach("chunk")
        yield pb.UpdateChunk.FromString(part)


def start(
    folder: Path, run_toml: Path, now: float, *, at: int, failure: int | None = None, names: Path | None = None
) -> tuple[int, socket.socket]:  # fmt: skip
    """Fork a coordinator; its process id and our end of the pipe. The caller has one thread and no running event loop.

    Args:
        at, failure: see `Points`.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    status = FAILED
    try:
        ours.close()
        points = Points(folder, at=at, failure=failure, names=names)
        with locked(folder):
            asyncio.run(serve(theirs, folder, run_toml, Clock(now), points))
        status = 0
    except HocketError as error:
        print(error.line(), file=sys.stderr, flush=True)
        status = ENDED
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)  # nothing of the parent's is torn down here
