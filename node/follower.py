"""Follows a run: compares what the coordinator's view asks for with what is, and closes the gap.

The view is level-triggered: whatever was missed, the latest one says what should be. One loop does the work that it calls
for; the talk with the coordinator, the records in the DHT and the services run beside it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from common.log import EventLog
from node.announcer import Announcer
from node.committer import Committer
from node.context import RoundContext
from node.engine import Engine, Priority
from node.farewell import Farewell, Part
from node.peers import AddressBook
from node.receipts import Receipts
from node.recycling import RecyclePlan
from node.session import Session
from node.stage_service import StageService
from node.station import Station, build_local
from node.versions import Versions
from node.waiting import first_of
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, VersionManifest
from protocol.roster import RosterView
from protocol.ticket import Ticket
from swarm.block_swarm import BlockSwarm, Providers
from swarm.blocks import BlockStore
from swarm.carrier import PeerAddress
from swarm.ipfs_fallback import IpfsFallback
from swarm.libp2p import LibP2PCarrier
from swarm.store_keeper import DEFAULT_LIMIT_BYTES
from tokenizer.reader import DatasetReader
from tts.config import ModelConfig

logger = logging.getLogger(__name__)

RETRY_S = 1.0
LOOK_UP_S = 1.0
FINISH_S = 5.0
STOP_HEARD_S = 0.5
_TRY_AGAIN = (Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED, Code.PEER_SILENT, Code.PEER_UNREACHABLE, Code.STREAM_BROKEN)
_WAIT_FOR_ANOTHER = (Code.MANIFEST_INVALID, Code.VERSION_ROLLED_BACK, Code.CHECKPOINT_INVALID, Code.NOT_FINITE, Code.CID_INVALID)
_ROUND_PHASES = (pb.PREPARING, pb.OPEN, pb.CLOSING)


class Follower:
    """One member of one run.

    Args:
        ticket: of the run. key: of the member. carrier: connected.
        state_dir: blocks, events and what is sent.
        events: the event log. faults: of the fault plan.
        store_limit_bytes: of the blocks that are kept. fallback: asked for what no peer has; closed by us.
        recycle_every: rounds after which the compute engine is started anew; 0: only after a fault.
    """

    def __init__(
        self,
        ticket: Ticket,
        key: MemberKey,
        carrier: LibP2PCarrier,
        state_dir: Path,
        events: EventLog,
        *,
        store_limit_bytes: int = DEFAULT_LIMIT_BYTES,
        fallback: IpfsFallback | None = None,
        recycle_every: int = 0,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._ticket = ticket
        self._key = key
        self._carrier = carrier
        self._state_dir = state_dir
        self._events = events
        self._faults = faults
        self._session = Session(ticket, key, directory=carrier.dht, faults=faults)
        self._swarm = BlockSwarm(carrier, BlockStore(state_dir / "blocks"))
        self._book = AddressBook(carrier.dht, ticket.run_id)
        self._service = StageService(carrier, key, ticket.run_id, faults=faults)
        self._fallback = fallback if fallback is not None else IpfsFallback()
        self._versions = Versions(
            self._swarm, ticket.coordinator_key, ticket.run_id, state_dir, limit_bytes=store_limit_bytes, fallback=self._fallback
        )
        self._changed = asyncio.Event()
        self._engine = self._make_engine()
        self._committer = Committer(self._session, self._versions.opening, state_dir, events.write, self._changed.set)
        self._recycling = RecyclePlan(recycle_every)
        self._view = pb.RunView()
        self._receipts = Receipts(state_dir, ticket, key.member_id)
        self._report_wanted = asyncio.Event()
        self._announcer = Announcer(key, ticket.run_id, carrier, lambda: self._station)
        self._station: Station | None = None
        self._joined = False
        self._stopping = False
        self._farewell = Farewell()
        self._handed_over = asyncio.Event()
        self._config: ModelConfig | None = None
        self._dataset_cid = ""
        self._dataset: DatasetManifest | None = None
        self._reader: DatasetReader | None = None

    async def run(self, request: pb.JoinRequest, stop: asyncio.Event) -> None:
        """Work until the run is finished or `stop` is set.

        Raises:
            HocketError: JOIN_REFUSED, CARRIER_FAILED, DISK_FULL and other faults that waiting does not mend.
        """
        await self._swarm.serve()
        await self._service.start()
        tasks = [
            asyncio.create_task(self._work(request)),
            asyncio.create_task(self._carrier_failure(stop)),
            asyncio.create_task(self._stopped(stop)),
        ]
        try:
            await first_of(tasks)
        finally:
            await self._leave(stop)

    async def _work(self, request: pb.JoinRequest) -> None:
        """Join, and follow the run to its end."""
        reply = await self._session.persist("join", lambda: self._session.join(request))
        if reply is None:
            return
        self._joined = True
        self._config = ModelConfig.from_json(reply.model_config_json)
        self._dataset_cid = reply.dataset_manifest_cid
        self._see(reply.view)
        await first_of(
            [
                asyncio.create_task(self._session.watch_views(self._report, self._see)),
                asyncio.create_task(self._report_soon()),
                asyncio.create_task(self._announcer.run()),
                asyncio.create_task(self._follow()),
            ]
        )

    async def _stopped(self, stop: asyncio.Event) -> None:
        """Return once we are to stop and what is in hand has been handed over, or that has taken too long."""
        await stop.wait()
        self._farewell.began = time.monotonic()
        self._stopping = True
        self._changed.set()
        if not self._committer.owes and (self._station is None or not self._station.unsent):
            return
        logger.info("asked to stop: handing over what is in flight")
        left_s = self._left_s(Part.HAND_OVER)
        try:
            async with asyncio.timeout(left_s):
                await self._handed_over.wait()
        except TimeoutError:
            logger.warning("what was in flight could not be handed over within %.0f s", left_s)

    def _left_s(self, part: Part) -> float:
        return self._farewell.left_s(part, time.monotonic())

    async def _hand_over(self) -> None:
        if self._station is not None:
            await self._station.hand_over(FINISH_S, lambda: self._view.phase in (pb.OPEN, pb.CLOSING))
        # Before the good-bye: of one that is gone nobody waits for an opening, and its update would be left out.
        await self._committer.delivered(FINISH_S)
        self._handed_over.set()

    async def _carrier_failure(self, stop: asyncio.Event) -> None:
        failure = await self._carrier.wait_failed()
        try:
            # A terminal sends its signals to the daemon as well as to us: then this is no fault.
            async with asyncio.timeout(STOP_HEARD_S):
                await stop.wait()
        except TimeoutError:
            raise failure from None
        await self._handed_over.wait()

    async def _leave(self, stop: asyncio.Event) -> None:
        """Say good-bye, if it can be done quickly, and stop."""
        if self._joined:
            try:
                async with asyncio.timeout(self._left_s(Part.GOOD_BYE)):
                    await self._session.leave("asked to stop" if stop.is_set() else "finished")
            except (HocketError, TimeoutError) as error:
                logger.info("left without a word to the coordinator: %s", error)
        if self._station is not None:
            await self._station.close()
        await self._committer.end(self._left_s(Part.OPENINGS))
        await self._session.close()
        await self._fallback.close()
        self._engine.close()

    # ---- what comes in and goes out ---------------------------------------------------------------------------------

    def _see(self, view: pb.RunView) -> None:
        self._committer.asked(view)
        if view != self._view:
            if (view.phase, view.round) != (self._view.phase, self._view.round):
                logger.info("round %d: %s (%s)", view.round, pb.Phase.Name(view.phase), view.reason)
            self._fallback.use(view.gateways)
            self._view = view
            self._receipts.take(view.receipt)
            self._changed.set()

    def _report(self) -> pb.MemberReport:
        if self._station is not None:
            return self._station.report()
        return pb.MemberReport(pid=os.getpid())

    async def _report_soon(self) -> None:
        """Send a report beside the long poll when something has happened that the coordinator waits for."""
        while True:
            await self._report_wanted.wait()
            self._report_wanted.clear()
            await self._report_now()

    async def _report_now(self) -> None:
        try:
            self._see(await self._session.watch(self._report(), known_revision=0, wait_s=0.0))
        except HocketError as error:
            logger.info("a report was not taken, the next one will be: %s", error.line())

    # ---- the loop ---------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Close the gap between what should be and what is, whenever one of them changes; returns when the run is finished."""
        retry_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(retry_s):
                    await self._changed.wait()
            except TimeoutError:
                pass  # the gap is still there: try again
            self._changed.clear()
            retry_s = None
            if self._engine.fault:
                await self._recycle()
            for failure in [*self._committer.failures(), *(self._station.failures() if self._station is not None else [])]:
                raise failure
            if self._stopping:
                await self._hand_over()
                return
            view = self._view
            if view.phase == pb.FINISHED:
                logger.info("the run is finished")
                return
            try:
                await self._reconcile(view)
            except HocketError as error:
                if error.code is Code.DEVICE_FAILED:
                    self._changed.set()
                elif error.code in _TRY_AGAIN:
                    retry_s = RETRY_S
                    logger.warning("round %d: tried again in %.0f s: %s", view.round, RETRY_S, error.line())
                elif error.code in _WAIT_FOR_ANOTHER:
                    logger.error("round %d: not taken over, waiting for another version: %s", view.round, error.line())
                else:
                    raise

    def _make_engine(self) -> Engine:
        return Engine(on_fault=self._changed.set, faults=self._faults)

    async def _recycle(self) -> None:
        """After a fault of the device: give up what is in flight, and build the stage anew from its base and what was saved.

        Raises:
            HocketError: DEVICE_FAILED when that has been done three times within ten minutes.
        """
        failed = self._engine
        decision = self._recycling.after_fault(failed.fault, time.monotonic())
        if not decision.recycle:
            raise HocketError(Code.DEVICE_FAILED, decision.reason)
        await self._drop_station()
        self._new_engine(failed, decision.reason, wait=False)

    def _new_engine(self, old: Engine, reason: str, *, wait: bool) -> None:
        logger.warning("the compute engine is started anew: %s", reason)
        old.close(wait=wait)
        self._engine = self._make_engine()
        self._recycling.recycled()
        self._events.write("engine_recycled", round=self._view.round, reason=reason)

    async def _renew(self, station: Station, context: RoundContext) -> Station:
        """Between two rounds, where it is time for that: a new engine and stage, with the optimizer's state of those before."""
        decision = self._recycling.between_rounds()
        if not decision.recycle:
            return station
        optimizer_state = await station.optimizer_state()
        await self._drop_station()
        self._new_engine(self._engine, decision.reason, wait=True)
        renewed = await self._station_for(context)
        await renewed.carry_on(*optimizer_state)
        return renewed

    async def _reconcile(self, view: pb.RunView) -> None:
        roster = RosterView(view.roster)
        entry = roster.by_member(self._key.member_id)
        await self._mind_place(entry, view)
        if entry is None or self._config is None:
            if self._station is not None:
                logger.info("no stage is assigned to us any more")
                await self._drop_station()
            return
        context = RoundContext(
            run_id=self._ticket.run_id,
            round=view.round,
            base_cid=view.base_cid,
            member_id=self._key.member_id,
            peer_id=self._carrier.peer_id,
            stage=entry.stage,
            stages=view.stages,
            generation=entry.generation,
            roster=roster,
            settings=view.settings,
            config=self._config,
        )
        station = await self._station_for(context)
        if view.phase not in _ROUND_PHASES:
            if view.phase == pb.GATHERING:
                await station.leave_round()
            return
        if view.phase != pb.CLOSING and view.base_cid:
            await self._take_place(station, context, entry.role)
        if self._station is None or self._station.round != view.round:
            return
        station = self._station  # it may be a renewed one
        if view.phase == pb.CLOSING:
            await station.close_round(lambda: self._view.round == context.round and self._view.phase in (pb.OPEN, pb.CLOSING))
            self._report_wanted.set()
            return
        station.follow(context, view.phase)
        if context.is_first:
            reader = await self._dataset_reader()
            if view.phase == pb.OPEN:
                station.feed(reader, self._languages())
            if view.evaluate:
                station.evaluate(reader, self._languages())

    async def _mind_place(self, entry: pb.RosterEntry | None, view: pb.RunView) -> None:
        """Stop the round's work at once where the coordinator has given our place up: it would be refused."""
        station = self._station
        if station is None or not station.has_place or (entry is not None and entry.generation == station.generation):
            return
        if entry is not None and station.standby:
            return  # promoted, or to stand by elsewhere
        logger.warning("generation %d of stage %d is not ours any more", station.generation, station.stage)
        self._events.write("fenced", round=view.round, stage=station.stage, generation=station.generation)
        await station.leave_round()

    async def _take_place(self, station: Station, context: RoundContext, role: pb.Role) -> None:
        """Load the base where it is not loaded, and serve the round or stand by."""
        if role == pb.STANDBY:
            if not (station.has_place and station.holds(context.base_cid) and station.generation == context.generation):
                await self._load(station, context)
                if context.is_first:
                    await self._dataset_reader()
                station.stand_by(context)
                self._report_wanted.set()
        elif (station.round, station.base_cid, station.generation) != (context.round, context.base_cid, context.generation):
            if not station.holds(context.base_cid):
                station = await self._renew(station, context)
                await self._load(station, context)
            await station.open_round(context)
            self._recycling.opened()
            self._report_wanted.set()

    async def _station_for(self, context: RoundContext) -> Station:
        """The station of our stage; a new one when the coordinator has moved us."""
        station = self._station
        if station is not None and (station.stage, station.stages) == (context.stage, context.stages):
            return station
        await self._drop_station()
        self._events.write(
            "assigned", stage=context.stage, stages=context.stages, generation=context.generation, round=context.round
        )
        logger.info("stage %d of %d is assigned to us", context.stage, context.stages)
        was_standby = station is not None and station.standby
        local = await self._engine.run(Priority.STEP, build_local, context)
        self._station = Station(
            local,
            context,
            carrier=self._carrier,
            key=self._key,
            session=self._session,
            committer=self._committer,
            engine=self._engine,
            service=self._service,
            book=self._book,
            state_dir=self._state_dir,
            event=self._events.write,
            poke=self._report_wanted.set,
            wake=self._changed.set,
            report_now=self._report_now,
            faults=self._faults,
        )
        self._station.standby = was_standby
        self._announcer.soon()
        return self._station

    async def _drop_station(self) -> None:
        if self._station is not None:
            await self._station.close()
            self._station = None
            self._report_wanted.set()

    # ---- versions and data ------------------------------------------------------------------------------------------

    async def _providers(self, stage: int) -> Providers:
        """Who may have what members of a stage fetch: its other members; and the coordinator's block peers, to be spared."""
        entries = [one for one in self._view.roster.entries if one.stage == stage and one.peer_id != self._carrier.peer_id]
        peers = await self._book.learn(stage, [one.peer_id for one in entries], within_s=LOOK_UP_S)
        origins = [PeerAddress(one.peer_id, tuple(one.multiaddrs)) for one in self._view.providers]
        return Providers(tuple(peers), tuple(origins))

    async def _load(self, station: Station, context: RoundContext) -> None:
        """Fetch the round's base and make it the stage's weights."""
        self._book.refresh_soon(context.stage)
        providers = await self._providers(context.stage)
        manifest = await self._versions.manifest(context.base_cid, providers)
        self._check_version(manifest, context)
        weights, sha256 = await self._versions.weights(context.base_cid, manifest, context.stage, station.expected(), providers)
        await station.adopt(context, weights, sha256)
        self._announcer.soon()

    def _check_version(self, manifest: VersionManifest, context: RoundContext) -> None:
        if len(manifest.stages) != context.stages or ModelConfig.from_dict(manifest.model) != context.config:
            raise HocketError(
                Code.MANIFEST_INVALID, f"version {manifest.version} is of another model or of another number of stages"
            )

    async def _dataset_reader(self) -> DatasetReader:
        if self._reader is None:
            self._dataset = await self._versions.dataset(self._dataset_cid, await self._providers(0))
            self._reader = DatasetReader(self._dataset, self._shard)
        return self._reader

    async def _shard(self, cid: str) -> bytes:
        return await self._versions.file(cid, await self._providers(0))

    def _languages(self) -> Sequence[str]:
        return tuple(self._dataset.languages) if self._dataset is not None else ()
