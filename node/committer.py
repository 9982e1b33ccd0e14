"""Sends a replica's commits to the coordinator, in order and beside the training, opens what is drawn, and bears witness.

A commit that is refused ends the recording of its round: the coordinator would refuse all that follow. One that cannot be
delivered is tried again for as long as the round lasts here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from node.commitments import HeldStep, Recorder
from node.context import RoundContext
from node.openings import OpeningSender, Tensors, pass_input, pass_output, signed_messages, step_opening
from node.replica import EventSink, Replica
from node.session import Session
from node.witness import Fetch, Stand, Witness
from protocol.commitments import MOMENTS_ROUNDS
from protocol.generated import hocket_pb2 as pb

logger = logging.getLogger(__name__)

OPEN_WITHIN_S = 120.0
AGAIN_S = 20.0
MOST_TIMES = 5
LOOK_AGAIN_S = 0.5
ACKNOWLEDGED_S = 1.0
ROUNDS_KEPT = 4


Answered = Callable[[], None]


@dataclass(frozen=True)
class CommittedMoments:
    """The newest moments of the optimizer that the coordinator has taken a commit to.

    Args:
        round, stage: in which. steps_taken: by the optimizer until then.
    """

    round: int
    stage: int
    steps_taken: int

    def beside(self, stage: int, steps_taken: int) -> CommittedMoments:
        """What is still to be remembered once a stage begins with the moments after `steps_taken`: not those of another past."""
        return self if (self.stage, self.steps_taken) == (stage, steps_taken) else NO_MOMENTS_COMMITTED


NO_MOMENTS_COMMITTED = CommittedMoments(-1, -1, 0)


def may_begin(steps_taken: int, committed: CommittedMoments, context: RoundContext) -> str:
    """Why a chain of the round may not begin with the moments that a stage has; empty: it may. Pure.

    The coordinator takes those that it has a commit to, of this stage and of the rounds just before, or none.

    Args:
        steps_taken: by the optimizer that has them.
    """
    if steps_taken == 0:
        return ""
    if (committed.stage, committed.steps_taken) != (context.stage, steps_taken):
        return f"the moments after step {steps_taken} were never committed to"
    if context.round - committed.round > MOMENTS_ROUNDS:
        return f"they were committed to in round {committed.round}"
    return ""


@dataclass
class _Drawn:
    """What has been drawn of one step, until it is sent."""

    held: HeldStep
    openings: list[tuple[pb.OpeningHead, Callable[[], Tensors]]]
    deadline: float
    answered: Answered


class Committer:
    """The talk of one worker with the coordinator about what it has committed to, through all rounds.

    Args:
        session: with the coordinator. fetch: brings the tensors of an opening by CID, for the witness.
        folder: holds what is sent. event: writes to the worker's event log. wake: makes the worker look at `failures`.
    """

    def __init__(
        self, session: Session, fetch: Fetch, folder: Path, event: EventSink, wake: Callable[[], None]
    ) -> None:
        self._session = session
        self._event = event
        self._wake = wake
        self._sender = OpeningSender(session, folder / "opening.safetensors", event)
        self._witness = Witness(session, fetch, folder / "witness.safetensors", event)
        self._recorder: Recorder | None = None
        self._begun: dict[tuple[int, int], int] = {}  # chains by (round, generation), of the newest rounds
        self._round_tasks: list[asyncio.Task[None]] = []
        self._sending: asyncio.Task[None] | None = None
        self._drawn: asyncio.Queue[_Drawn] = asyncio.Queue()
        self._owed = 0
        self._sent: dict[tuple[int, int, int], tuple[float, int]] = {}  # by kind, step, microbatch: when, and how often
        self._failures: list[BaseException] = []
        self._moments = NO_MOMENTS_COMMITTED

    # ---- a round ----------------------------------------------------------------------------------------------------

    async def open(self, replica: Replica, previous: bytes) -> None:
        """Begin to record a round of a replica that takes no pass yet.

        Args:
            previous: the last link of the progress that it has resumed; empty: it begins at its base.
        """
        await self.close()
        context = replica.context
        self._moments = self._moments.beside(context.stage, replica.local.steps_taken)
        place = (context.round, context.generation)
        # Two chains under one name would be two words for one step: no number is used again.
        kept = {known: part for known, part in self._begun.items() if known[0] >= context.round - ROUNDS_KEPT}
        self._begun = {**kept, place: kept.get(place, -1) + 1}
        recorder = Recorder(replica.local, replica.engine, context, previous=previous, part=self._begun[place])
        await recorder.begin()
        self._recorder = replica.recorder = recorder
        self._sent.clear()
        self._witness.open(Stand(replica.local, replica.engine, context))
        self._round_tasks = [self._begin(self._commit_all(recorder)), self._begin(self._witness.run())]
        if self._sending is None:
            self._sending = self._begin(self._send_all())

    def stale(self, replica: Replica) -> str:
        """Why the moments of a replica that resumes nothing cannot be those that a round begins with; empty: they can."""
        return may_begin(replica.local.steps_taken, self._moments, replica.context)

    async def close(self) -> None:
        """The round is over here: commit nothing more of it; what has been drawn is still sent."""
        tasks, self._round_tasks = self._round_tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._witness.close()
        if self._recorder is not None:
            await self._recorder.close()
            self._recorder = None

    async def end(self, within_s: float) -> None:
        """Nothing is recorded any more; what has been drawn may still be sent, for so many seconds."""
        await self.close()
        if self._sending is None:
            return
        await self.delivered(within_s)
        self._sending.cancel()
        await asyncio.wait([self._sending])
        self._sending = None

    @property
    def owes(self) -> bool:
        """Whether something that was drawn is still to be sent."""
        return self._owed > 0

    async def delivered(self, within_s: float) -> None:
        """Wait until all that has been drawn is sent, for so long at most."""
        try:
            async with asyncio.timeout(within_s):
                await self._drawn.join()
        except TimeoutError:
            logger.warning("what was drawn of %d steps is not sent", self._owed)

    def failures(self) -> list[BaseException]:
        """What broke the committing or the sending; told once."""
        found, self._failures = self._failures, []
        return found

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failures.append(error)
                self._wake()

        task.add_done_callback(ended)
        return task

    # ---- commits ----------------------------------------------------------------------------------------------------

    async def _commit_all(self, recorder: Recorder) -> None:
        while recorder.on:
            held = await recorder.steps.get()
            commit = await held.commit
            try:
                reply = await self._session.persist(
                    "commit", lambda: self._session.commit(commit, held.about.base_cid), while_=lambda: recorder.on  # noqa: B023
                )
            except HocketError as error:
                self._refused(recorder, commit, error)
                return
            if reply is None:
                return
            held.acknowledged.set()
            self._moments = CommittedMoments(held.about.round, held.about.stage, held.steps_taken)
            self._draw(recorder, held, reply.open_step, list(reply.open_microbatches))

    def _refused(self, recorder: Recorder, commit: pb.StepCommit, error: HocketError) -> None:
        """No commit of this round will be taken from now on."""
        if error.code is not Code.PEER_REFUSED:  # a coordinator that takes none at all is no news
            logger.warning("step %d of round %d is not taken: %s", commit.step, commit.round, error.line())
        self._event(
            "commit_refused", round=commit.round, stage=commit.stage, step=commit.step, reason=error.line()
        )
        recorder.stop()

    def _draw(self, recorder: Recorder, held: HeldStep, step: bool, microbatches: list[int]) -> None:
        """Queue what the coordinator wants to see of a step; the step is answered once that is sent."""
        head = self._head(recorder, held)
        openings: list[tuple[pb.OpeningHead, Callable[[], Tensors]]] = []
        if step and held.before is not None:
            openings.append((_with(head, kind=pb.STEP), lambda: step_opening(held)))
        for identifier in microbatches:
            openings += self._pass_openings(head, held, identifier)
        if not openings:
            recorder.answered(held.step)
            return
        self._event(
            "drawn", round=head.round, stage=head.stage, step=head.step, open_step=step, open_microbatches=microbatches
        )
        self._queue(held, openings, lambda: recorder.answered(held.step))

    def _queue(self, held: HeldStep, openings: list[tuple[pb.OpeningHead, Callable[[], Tensors]]], answered: Answered) -> None:
        now = asyncio.get_running_loop().time()
        for head, _ in openings:
            key = (head.kind, head.step, head.microbatch_id)
            self._sent[key] = (now, self._sent.get(key, (0.0, 0))[1] + 1)
        self._owed += 1
        self._drawn.put_nowait(_Drawn(held, openings, now + OPEN_WITHIN_S, answered))

    @staticmethod
    def _head(recorder: Recorder, held: HeldStep) -> pb.OpeningHead:
        about = held.about
        return pb.OpeningHead(
            round=about.round, stage=about.stage, generation=about.generation, step=about.step, part=recorder.part
        )

    @staticmethod
    def _pass_openings(
        head: pb.OpeningHead, held: HeldStep, identifier: int
    ) -> list[tuple[pb.OpeningHead, Callable[[], Tensors]]]:
        trace = held.traces.get(identifier)
        if trace is None or not trace.output:
            logger.warning("microbatch %d of step %d is drawn, but it is not held here", identifier, held.step)
            return []
        return [
            (_with(head, kind=pb.PASS_INPUT, microbatch_id=identifier), lambda: pass_input(held, trace)),
            (_with(head, kind=pb.PASS_OUTPUT, microbatch_id=identifier), lambda: pass_output(held.about, trace)),
        ]

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            drawn = await self._drawn.get()
            try:
                for head, tensors in drawn.openings:
                    await self._sender.send(head, tensors(), lambda: loop.time() < drawn.deadline)  # noqa: B023
            finally:
                drawn.answered()
                self._owed -= 1
                self._drawn.task_done()

    # ---- what others ask --------------------------------------------------------------------------------------------

    async def settled(self, wanted: Callable[[], bool]) -> pb.StepCommit | None:
        """The last commit of the round, once the coordinator has it; None when it has not.

        Args:
            wanted: whether it still waits for this round's update, as far as is known.
        """
        recorder = self._recorder
        last = recorder.last() if recorder is not None else None
        if recorder is None or last is None:
            return None
        while not last.acknowledged.is_set():
            if not recorder.on or not wanted():
                return None
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await last.acknowledged.wait()
            except TimeoutError:
                pass  # refused meanwhile, or not wanted any more?
        return await last.commit

    async def saved_link(self) -> bytes | None:
        """The link of the newest step, once the coordinator has it; empty: nothing is recorded, None: it takes too long."""
        recorder = self._recorder
        last = recorder.last() if recorder is not None else None
        if last is None:
            return b""
        try:
            async with asyncio.timeout(ACKNOWLEDGED_S):
                await last.acknowledged.wait()
        except TimeoutError:
            return None
        return bytes((await last.commit).link)

    def draw_last(self) -> None:
        """The last step of the round has been drawn."""
        recorder = self._recorder
        last = recorder.last() if recorder is not None else None
        if recorder is not None and last is not None and (pb.STEP, last.step, 0) not in self._sent:
            self._draw(recorder, last, True, [])

    def asked(self, view: pb.RunView) -> None:
        """Take up what the coordinator's view asks for: to open, as far as it is held, and to witness."""
        self._witness.asked(view.witness, view.providers)
        recorder = self._recorder
        if recorder is None:
            return
        now = asyncio.get_running_loop().time()
        for task in view.openings:
            when, times = self._sent.get((task.kind, task.step, task.microbatch_id), (-AGAIN_S, 0))
            # The view goes on asking until it has come, and what is on its way need not go twice.
            if task.round == recorder.context.round and now - when >= AGAIN_S and times < MOST_TIMES:
                self._answer(recorder, task)

    def _answer(self, recorder: Recorder, task: pb.OpeningTask) -> None:
        openings: list[tuple[pb.OpeningHead, Callable[[], Tensors]]] = []
        held = recorder.last() if task.kind == pb.REQUEST else recorder.held(task.step)
        signed = recorder.signed(task.microbatch_id)
        if held is not None:
            head = _with(self._head(recorder, held), audit_id=task.audit_id, microbatch_id=task.microbatch_id)
            if task.kind == pb.REQUEST and signed is not None:
                head = _with(head, kind=pb.REQUEST, step=task.step)
                about = held.about.model_copy(update={"step": task.step, "microbatches": ()})
                openings = [(head, lambda: signed_messages(about, *signed))]
            elif task.kind == pb.STEP and held.before is not None:
                openings = [(_with(head, kind=pb.STEP), lambda: step_opening(held))]
            elif task.kind in (pb.PASS_INPUT, pb.PASS_OUTPUT):
                openings = [one for one in self._pass_openings(head, held, task.microbatch_id) if one[0].kind == task.kind]
        if not openings or held is None:
            self._sent[task.kind, task.step, task.microbatch_id] = (0.0, MOST_TIMES)
            logger.warning("%s of step %d is asked for, but it is not held here", pb.OpeningKind.Name(task.kind), task.step)
            return
        self._queue(held, openings, lambda: None)


def _with(head: pb.OpeningHead, **changes: Any) -> pb.OpeningHead:
    made = pb.OpeningHead(**changes)
    whole = pb.OpeningHead()
    whole.CopyFrom(head)
    whole.MergeFrom(made)
    return whole
