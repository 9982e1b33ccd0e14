"""The witness: computes a pass of another replica of the same stage again, with the round's base, and says what came out here.

It is given what came into the pass and not what the other one said of it, so that there is nothing to copy. Its answer is its own
as soon as the signed head with the file's digest has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import Code, HocketError
from node.context import RoundContext
from node.engine import Engine, Priority
from node.local_sgd import LocalStage
from node.openings import OpeningSender
from node.replica import EventSink
from node.session import Session
from protocol.generated import hocket_pb2 as pb
from protocol.openings import Group, OpenedPass, opening_tensors, read_pass
from protocol.tensors import ENCODINGS
from swarm.block_swarm import Providers
from swarm.carrier import PeerAddress
from tts.replay import PassInput, PassOutput, replay_pass

logger = logging.getLogger(__name__)

MAX_WAITING = 64
ANSWER_WITHIN_S = 60.0
_OURS = (Code.DISK_FULL, Code.STATE_UNREADABLE, Code.CARRIER_FAILED)

Fetch = Callable[[str, Providers], Awaitable[Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class Stand:
    """What a witness computes with: a stage that holds the round's base.

    Args:
        local, engine: the stage and its thread. context: of the round.
    """

    local: LocalStage
    engine: Engine
    context: RoundContext

    def recompute(self, opened: OpenedPass, microbatch_id: int) -> PassOutput:
        """Run a pass on the base, on the engine's thread.

        Raises:
            HocketError: INPUT_INVALID, NOT_FINITE when the inputs do not fit the stage.
        """
        stage, settings = self.local.stage, self.context.settings
        grad = opened.gradient_in.arrays.get("grad")
        inputs = PassInput.from_arrays(opened.input.arrays, grad, stage.config, stage.spec)
        back = opened.microbatch.wire if opened.microbatch.wire in ENCODINGS else ""
        return replay_pass(
            stage, self.local.base, inputs, settings.seed, microbatch_id, wire=settings.wire or "fp32", grad_wire=back
        )


def witness_tensors(context: RoundContext, opened: OpenedPass, output: PassOutput) -> dict[str, np.ndarray]:
    """The tensors of a WITNESS file."""
    arrays = output.arrays()
    grad = arrays.pop("grad", None)
    groups: dict[str, Group] = {"output": arrays}
    if grad is not None:
        groups["gradient_out"] = {"grad": grad}
    return opening_tensors(context.about(0, [opened.microbatch]), groups)


class Witness:
    """Answers witness tasks of the round that is served, one at a time.

    Args:
        session: with the coordinator. fetch: brings the tensors of an opening by CID.
        path: of the file that holds an answer while it is sent. event: writes to the worker's event log.
    """

    def __init__(self, session: Session, fetch: Fetch, path: Path, event: EventSink) -> None:
        self._fetch = fetch
        self._sender = OpeningSender(session, path, event)
        self._event = event
        self._stand: Stand | None = None
        self._known: set[str] = set()
        self._waiting: asyncio.Queue[tuple[pb.WitnessTask, Providers]] = asyncio.Queue()

    def open(self, stand: Stand) -> None:
        """Answer tasks of this round from now on."""
        self._stand = stand
        self._known = set()
        self._waiting = asyncio.Queue()

    def close(self) -> None:
        """The base will not be there any more; whoever runs `run` ends it."""
        self._stand = None

    def asked(self, tasks: Sequence[pb.WitnessTask], origins: Sequence[pb.PeerAddress]) -> None:
        """The tasks that the coordinator's view holds; each is taken up once.

        Args:
            origins: the coordinator's block peers, which hold the inputs.
        """
        stand = self._stand
        if stand is None:
            return
        context = stand.context
        providers = Providers((), tuple(PeerAddress(one.peer_id, tuple(one.multiaddrs)) for one in origins))
        for task in tasks:
            place = (task.round, task.stage, task.base_cid)
            if task.audit_id in self._known or place != (context.round, context.stage, context.base_cid):
                continue
            if self._waiting.qsize() >= MAX_WAITING:
                logger.warning("%d witness tasks wait; one more is left out", MAX_WAITING)
                continue
            self._known.add(task.audit_id)
            self._waiting.put_nowait((task, providers))

    async def run(self) -> None:
        """Answer tasks until cancelled.

        Raises:
            HocketError: DISK_FULL and other faults of our own machine.
        """
        stand = self._stand
        if stand is None:
            raise RuntimeError("no round is served")
        while True:
            task, providers = await self._waiting.get()
            try:
                await self._answer(stand, task, providers)
            except HocketError as error:
                if error.code in _OURS:
                    raise
                logger.warning("microbatch %d is not witnessed: %s", task.microbatch_id, error.line())
                self._told(task, error.line())

    async def _answer(self, stand: Stand, task: pb.WitnessTask, providers: Providers) -> None:
        opened = await asyncio.to_thread(read_pass, await self._fetch(task.input_cid, providers))
        about = opened.about
        if (about.round, about.stage, about.base_cid, opened.microbatch.id) != (
            task.round, task.stage, task.base_cid, task.microbatch_id,
        ):  # fmt: skip
            raise HocketError(Code.OPENING_INVALID, "it is of another pass than the task")
        output = await stand.engine.run(Priority.EVALUATION, stand.recompute, opened, task.microbatch_id)
        tensors = witness_tensors(stand.context, opened, output)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_WITHIN_S
        head = pb.OpeningHead(
            kind=pb.WITNESS, round=task.round, stage=task.stage, generation=stand.context.generation,
            microbatch_id=task.microbatch_id, audit_id=task.audit_id, input_cid=task.input_cid,
        )  # fmt: skip
        if await self._sender.send(head, tensors, lambda: loop.time() < deadline):
            self._told(task, "")

    def _told(self, task: pb.WitnessTask, fault: str) -> None:
        self._event("witnessed", round=task.round, stage=task.stage, id=task.microbatch_id, audit=task.audit_id, fault=fault)
