"""A worker's stage: what it holds from round to round, and how it opens, follows and closes one round."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from node.arrivals import Arrivals
from node.committer import Committer
from node.context import RoundContext
from node.downstream import Downstream
from node.edge_checks import EdgeChecks
from node.engine import Engine, Priority
from node.feeder import Feeder, FeederTotals, Reader
from node.local_sgd import LocalStage
from node.member_report import tell_round, tell_traffic
from node.pace import Pace
from node.peers import AddressBook
from node.progress import ProgressKeeper
from node.replica import EventSink, Replica, RoundTotals, no_boundary
from node.session import Session
from node.stage_service import Serving, StageService
from node.submission import Submission
from node.wire import Losses
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.tensor_files import TensorInfo
from swarm.carrier import Carrier
from tts.stages import build_stage

logger = logging.getLogger(__name__)

LeaseCall = Callable[[], Awaitable["pb.LeaseReply | None"]]

BEFORE_THIS_STATION = (-1, "")
CLOSE_GRACE_S = 10.0
ADDRESSES_WAIT_S = 10.0


def build_local(context: RoundContext) -> LocalStage:
    """Build our stage with its optimizer; takes a while, so it belongs on the engine's thread."""
    settings = context.settings
    return LocalStage(
        build_stage(context.config, context.stage, context.stages),
        ordered=settings.accumulation != "free",
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )


class Station:
    """One stage of the model on this worker, for as long as the coordinator leaves it assigned.

    Args:
        local: the stage's weights and optimizer, made by `build_local`.
        first: the context in which the stage was assigned.
        carrier, key, session, committer, engine, service, book: the worker's own.
        state_dir: holds the update while it is sent, and the inner progress in `progress/`.
        event: writes to the worker's event log. poke: makes the worker report soon.
        wake: makes the worker look at `failures`.
        report_now: sends a report and returns when it has been taken, or has failed.
    """

    def __init__(
        self,
        local: LocalStage,
        first: RoundContext,
        *,
        carrier: Carrier,
        key: MemberKey,
        session: Session,
        committer: Committer,
        engine: Engine,
        service: StageService,
        book: AddressBook,
        state_dir: Path,
        event: EventSink,
        poke: Callable[[], None],
        wake: Callable[[], None],
        report_now: Callable[[], Awaitable[None]],
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.local = local
        self._carrier = carrier
        self._key = key
        self._session = session
        self._engine = engine
        self._service = service
        self._book = book
        self._event = event
        self._poke = poke
        self._wake = wake
        self._report_now = report_now
        self._faults = faults
        self._committer = committer
        self._submission = Submission(session, committer, state_dir / "update.safetensors", event)
        self.progress = ProgressKeeper(state_dir / "progress", local, engine, event, faults=faults)
        self._opened: tuple[int, str] | None = None  # round and base that were served last
        self._leases = FeederTotals()
        self._resumed: list[int] = []
        self.stage = first.stage
        self.stages = first.stages
        self.generation = first.generation
        self._late = first.settings.frames_before > 0
        self.base_cid = ""
        self.weights_sha256 = b""
        self.standby = False
        self._untouched = False  # by training, since the base was adopted
        self._warm = False  # standing by on the adopted base
        self.serving: Serving | None = None
        self._arrivals, self._pace, self._edges = Arrivals(), Pace(), EdgeChecks()
        self._feeder: Feeder | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._submitted_round = self._sent_round = -1
        self._opened_for_training = False
        self._heldout: Losses | None = None
        self._evaluating = False
        self._before = (0.0, 0)  # seconds of computing and frames when the round opened
        self.throughput = 0.0  # frames per second of computing, in the last round

    @property
    def round(self) -> int:
        return self.serving.context.round if self.serving is not None else -1

    def expected(self) -> list[TensorInfo]:
        """The tensors that the stage's file must hold."""
        return [TensorInfo(name, "float32", shape) for name, shape in self.local.stage.shapes().items()]

    @property
    def has_place(self) -> bool:
        """Whether we serve a round or stand by for one, under our generation."""
        return self.serving is not None or self._warm

    # ---- a round ----------------------------------------------------------------------------------------------------

    def holds(self, base_cid: str) -> bool:
        """Whether the weights are those of this version, untouched by training."""
        return self._untouched and self.base_cid == base_cid

    async def adopt(self, context: RoundContext, weights: dict[str, np.ndarray], sha256: bytes) -> None:
        """Make a version the stage's weights; nothing is served meanwhile.

        Args:
            weights: of the base's stage file, already checked. sha256: of that file.
        """
        await self.leave_round()
        self._untouched = self._warm = False
        await self._engine.run(Priority.STEP, self.local.adopt, weights)
        self.base_cid, self.weights_sha256 = context.base_cid, sha256
        self._untouched = True

    async def optimizer_state(self) -> tuple[dict[str, np.ndarray], int]:
        """A copy of the stage's moments, named as by `LocalStage.live_tensors`, and how many inner steps made them."""
        await self.leave_round()
        return await self._engine.run(Priority.STEP, self.local.copied_moments), self.local.steps_taken

    async def carry_on(self, moments: dict[str, np.ndarray], steps_taken: int) -> None:
        """Begin with the optimizer's state of the stage before, of `optimizer_state`, instead of what was saved on disk."""
        await self._engine.run(Priority.STEP, partial(self.local.restore, moments, steps_taken, weights=False))
        self._opened = BEFORE_THIS_STATION

    def stand_by(self, context: RoundContext) -> None:
        """Keep the adopted base ready, and the addresses that a promotion would need."""
        self.standby = self._warm = True
        self.generation = context.generation
        if not context.is_last:
            self._book.refresh_soon(context.stage + 1)
        self._event("standby_ready", round=context.round, stage=context.stage, base=context.base_cid)

    async def open_round(self, context: RoundContext) -> None:
        """Serve the round on the base that was adopted."""
        promoted, warm = self.standby, self._warm
        self.standby = self._warm = self._untouched = False
        self.generation = context.generation
        self._heldout, self._opened_for_training, self._submitted_round, self._sent_round = None, False, -1, -1
        downstream = None
        if not context.is_last:
            for known in (self._arrivals, self._pace):
                known.keep({entry.peer_id for entry in context.next_replicas()})
            downstream = Downstream(
                self._carrier, self._key, context, self._book, self._event,
                arrivals=self._arrivals, pace=self._pace, poke=self._poke, edges=self._edges,
            )  # fmt: skip
            self._book.refresh_soon(context.stage + 1)
            if not warm:  # others wait for a promoted standby; it looked the addresses up while it stood by
                peers = [entry.peer_id for entry in context.next_replicas()]
                await self._book.find(context.stage + 1, peers, within_s=ADDRESSES_WAIT_S)
        # In stage 0 a step belongs to a lease, so that a snapshot is taken when both are finished.
        boundary = no_boundary if context.is_first else self._boundary
        replica = Replica(self.local, self._engine, context, self._event, ramp=self._late, boundary=boundary)
        self._leases, self._resumed = FeederTotals(), []
        await self._committer.open(replica, await self._begin_with(replica))
        self._before = (self._engine.busy_s, replica.totals.frames)
        self._edges.begin_round()
        self.serving = Serving(context, replica, downstream, self._edges)
        if not context.is_first:
            self._service.serve(self.serving)
        if promoted:
            self._event("promoted", round=context.round, stage=context.stage, generation=context.generation)
        self._event(
            "ready", round=context.round, stage=context.stage, base=context.base_cid, weights_sha256=self.weights_sha256.hex()
        )

    async def _begin_with(self, replica: Replica) -> bytes:
        """As `_resume`; where nothing is resumed, without moments that the coordinator would not take."""
        before = self.local.steps_taken
        link = await self._resume(replica)
        if not link and self.local.steps_taken == before and (why := self._committer.stale(replica)):
            await self._engine.run(Priority.STEP, self.local.forget_moments)
            replica.ramp = self._late = True
            logger.info("round %d begins without the optimizer's moments: %s", replica.context.round, why)
            self._event("moments_dropped", round=replica.context.round, stage=replica.context.stage, reason=why)
        return link

    async def _resume(self, replica: Replica) -> bytes:
        """Go on where an earlier process of this member was, or where we were before our place was given up and back.

        Returns: the link of what is resumed; empty when the round begins at its base.

        In later rounds of the same process the moments in memory are the newest.
        """
        begins, self._opened = self._opened, (replica.context.round, replica.context.base_cid)
        if begins is not None and begins != self._opened:
            return b""
        saved = await self.progress.take_up(replica.context, self.weights_sha256.hex(), moments=begins is None)
        if saved is None:
            return b""
        totals = RoundTotals(saved.frames, saved.inner_steps, saved.losses)
        replica.resume(totals, saved.settled(), duplicates=saved.duplicates, dropped=saved.dropped)
        self._leases.leases.extend(pb.LeaseDone(**one.model_dump()) for one in saved.leases)
        self._resumed = sorted({*saved.resumed, saved.generation} - {self.generation})
        self._event(
            "resumed", round=saved.round, stage=saved.stage, inner_steps=saved.inner_steps, frames=saved.frames,
            microbatches=sum(one.counted for one in saved.microbatches),
        )  # fmt: skip
        return bytes.fromhex(saved.chain_link)

    async def _boundary(self) -> None:
        if self.serving is not None:
            await self.progress.at_boundary(
                self.serving.replica, self.weights_sha256.hex(), self._resumed, self._leases.leases, self._committer.saved_link
            )

    def follow(self, context: RoundContext, phase: pb.Phase) -> None:
        """Take over a new roster within the round; the settings stay those with which the round opened."""
        if self.serving is None:
            return
        if not self._opened_for_training:
            self._opened_for_training = phase == pb.OPEN
            settings = context.settings
        else:
            settings = self.serving.context.settings
        self.serving.follow(replace(context, settings=settings))
        if any(not self._book.address(entry.peer_id).multiaddrs for entry in context.next_replicas()):
            self._book.refresh_soon(context.stage + 1)
        if self._feeder is not None:
            self._feeder.follow(self.serving.context)

    def feed(self, reader: Reader, languages: Sequence[str]) -> None:
        """Begin to take leases, once a round."""
        if self.serving is None or self._feeder is not None:
            return
        context = self.serving.context

        async def lease() -> pb.LeaseReply | None:
            return await self._session.persist(
                "lease", lambda: self._session.lease(context.round, context.generation), while_=lambda: not self._draining()
            )

        self._feeder = self._make_feeder(reader, languages, lease)
        self._feeding = self._begin(self._feeder.run())

    def _make_feeder(self, reader: Reader, languages: Sequence[str], lease: LeaseCall) -> Feeder:
        serving = self.serving
        if serving is None:
            raise RuntimeError("no round is served")
        return Feeder(
            serving.context,
            serving.replica,
            serving.downstream,
            reader,
            languages,
            lease,
            self._event,
            self._report_now,
            totals=self._leases,
            boundary=self._boundary,
            faults=self._faults,
        )

    def _draining(self) -> bool:
        return self.serving is None or self.serving.replica.draining

    def evaluate(self, reader: Reader, languages: Sequence[str]) -> None:
        """Evaluate the base on the held-out set, once a round, beside the training."""
        if self.serving is None or self._evaluating or self._heldout is not None:
            return

        async def nothing() -> pb.LeaseReply | None:
            return None

        feeder = self._feeder or self._make_feeder(reader, languages, nothing)
        self._evaluating = True
        self._begin(self._evaluate(feeder))

    async def _evaluate(self, feeder: Feeder) -> None:
        try:
            self._heldout = await feeder.evaluate()
            self._poke()
        except HocketError as error:
            if error.code is Code.CARRIER_FAILED:
                raise
            logger.warning("the evaluation of round %d failed: %s", self.round, error.line())
        finally:
            self._evaluating = False

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._wake())
        self._tasks.append(task)
        return task

    def failures(self) -> list[BaseException]:
        """What broke a feeder or an evaluation of this round; finished tasks are forgotten."""
        done = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if not task.done()]
        return [error for task in done if not task.cancelled() and (error := task.exception()) is not None]

    async def close_round(self, wanted: Callable[[], bool]) -> None:
        """Drain, take the last inner step, and send the update; once a round.

        Args:
            wanted: whether the coordinator still waits for this round's update, as far as is known.
        """
        serving = self.serving
        if serving is None or self._submitted_round == serving.context.round:
            return
        self._submitted_round = serving.context.round
        serving.replica.drain()
        if serving.downstream is not None:
            serving.downstream.close()
        grace_s = min(CLOSE_GRACE_S, serving.context.settings.step_deadline_s)
        if not await serving.replica.idle(grace_s):
            logger.warning(
                "%d microbatches are not back %.0f s after the round closed; they are given up",
                serving.replica.in_flight,
                grace_s,
            )
            self._service.break_off()
        await self._stop_tasks()
        await serving.replica.settled()
        busy_s, frames = self._engine.busy_s - self._before[0], serving.replica.totals.frames - self._before[1]
        if busy_s > 0 and frames:
            self.throughput = frames / busy_s
        await self._submission.send(serving, wanted)
        self._sent_round = serving.context.round

    @property
    def unsent(self) -> bool:
        """Whether this round has been trained in and its update is not sent, or is being sent."""
        return self.serving is not None and self._opened_for_training and self._sent_round != self.serving.context.round

    async def hand_over(self, grace_s: float, wanted: Callable[[], bool]) -> None:
        """Leave in good order: finish what is in flight or hand it back, and send the update before the round closes.

        Args:
            grace_s: for what is in flight; what is not back by then is broken off, and its callers go elsewhere.
            wanted: as in `close_round`.
        """
        serving = self.serving
        if serving is None or not self.unsent or self._submitted_round == serving.context.round:
            return
        self._submitted_round = serving.context.round
        deadline = time.monotonic() + grace_s
        in_flight = serving.replica.in_flight
        if self._feeder is not None and self._feeding is not None:
            self._feeder.finish()
            await asyncio.wait([self._feeding], timeout=grace_s)
        serving.replica.drain()
        if serving.downstream is not None:
            serving.downstream.close()
        if not await serving.replica.idle(max(0.0, deadline - time.monotonic())):
            self._service.break_off()
        await self._stop_tasks()
        await serving.replica.settled()
        await self._report_now()
        submitted = bool(serving.replica.ledger.counted()) and await self._submission.send(serving, wanted, leaving=True)
        self._sent_round = serving.context.round
        self._event(
            "drained", round=serving.context.round, stage=serving.context.stage, in_flight=in_flight, submitted=submitted
        )

    async def _stop_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def leave_round(self) -> None:
        """Stop working for the round, whatever is in flight; its gradients are lost unless its update was sent."""
        self._service.serve(None)
        await self._stop_tasks()
        if self.serving is not None:
            self.serving.replica.drain()
            await self.serving.replica.settled()
        await self._committer.close()
        self._feeder = self._feeding = None
        self.serving = None

    async def close(self) -> None:
        """Leave the round for good; what was to be saved is on disk then."""
        try:
            await self.leave_round()
        finally:
            await self.progress.close()

    # ---- reports ----------------------------------------------------------------------------------------------------

    def report(self) -> pb.MemberReport:
        """The member's state of this moment."""
        report = pb.MemberReport(
            stage=self.stage,
            generation=self.generation,
            ready_base_cid=self.base_cid if self.has_place else "",
            weights_sha256=self.weights_sha256 if self.has_place else b"",
            throughput=self.throughput,
        )
        tell_traffic(report, self._carrier, self._session)
        if self.serving is not None:
            tell_round(report, self.serving, self._leases, self._resumed, self._heldout)
        return report
