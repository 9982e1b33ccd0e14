"""A whole run of processes under fire: the coordinator's door, and over libp2p the block and stage services of everybody.

The run has one replica a stage, so its versions are functions of the data and the seed: they must be those of the same run in
quiet, to the bit. Meanwhile a person asks for the status again and again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import atomic_write
from node.peers import AddressBook
from node.session import now_ms
from node.wire import REQUEST_METHOD, TRAIN_STEP_PROTOCOL
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import make_signed
from protocol.ticket import Ticket
from simulations.cluster import Cluster
from simulations.hostile.bulk import small_config, step_request
from simulations.hostile.call_storm import CallStorm, in_turn
from simulations.hostile.helper import asking, note_answers
from simulations.hostile.mutations import blind
from simulations.hostile.raw import RawLibP2P, half_open, odd_frames, throw
from simulations.hostile.tally import Tally, faults_in_text
from simulations.progress import Quiet
from simulations.simulate import SimulationSettings, prepare_data, read_manifests, run_file, start_workers
from swarm.block_service import BLOCKS_PROTOCOL, MAX_CIDS
from swarm.carrier import Message, PeerAddress
from swarm.daemon import LibP2POptions

AT_ONCE = 16
HALF_OPEN = 30
ASK_EVERY_S = 0.25
FOUND_WITHIN_S = 30.0
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
ANSWER_WITHIN_S = 0.3
RUN_LIMIT_S = 900.0
GROWTH_LIMIT_BYTES = 192 << 20
SETTINGS = SimulationSettings(
    name="fuzz", stages=2, replicas=1, rounds=3, inner_steps=3, preset="test", frames_per_inner_step=600,
    microbatches_per_inner_step=3, one_by_one=True,
    extra={
        "rounds": {"accumulation": "ordered", "evaluate": False, "deadline_floor_s": 300, "deadline_ceiling_s": 600},
        "membership": {"silence_s": 60},
    },
)  # fmt: skip


@dataclasses.dataclass
class _Outcome:
    """What a run came to.

    Args:
        versions: digests of the stage files, by version. peak_bytes: the most that each process and its children had.
    """

    versions: list[tuple[str, ...]]
    peak_bytes: dict[str, int]


class _Peers:
    """A hostile peer, and whom it speaks to."""

    def __init__(self, carrier: RawLibP2P, targets: list[tuple[PeerAddress, str]], tally: Tally, seed: int) -> None:
        self._carrier, self._targets, self._tally, self._seed = carrier, targets, tally, seed
        self._key = MemberKey.from_seed(b"p" * 32)
        self._config = small_config()

    async def one(self, number: int) -> None:
        """Send malformed message `number` to one of the services."""
        draw = random.Random(f"{self._seed}/peers/{number}")
        target, protocol = draw.choice(self._targets)
        message = self._message(draw, protocol)
        kind, data = odd_frames(draw, message) if draw.random() < 0.5 else ("", b"")
        try:
            if kind:
                stream = await self._carrier.raw(target, protocol)
                outcome = await throw(stream, data, pieces=draw.choice((1, 20)), within_s=ANSWER_WITHIN_S)
                self._tally.sent(f"{protocol} {kind}", outcome)
                return
            kind, head = blind(draw, message.head)
            await self._carrier.call(target, protocol, Message(head, message.body), silence_s=10.0, deadline_s=20.0)
        except HocketError as error:
            self._tally.sent(f"{protocol} {kind}", f"H{int(error.code)}")
            if getattr(error, "remote_code", 1) == 0:
                self._tally.fault(f"{protocol} {kind}: {error.line()}")
        else:
            self._tally.sent(f"{protocol} {kind}", "answered")

    def _message(self, draw: random.Random, protocol: str) -> Message:
        if protocol == BLOCKS_PROTOCOL:
            cids = ["bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"] * draw.choice((1, MAX_CIDS, MAX_CIDS + 1))
            return Message(pb.BlockRequest(cids=cids, wait_ms=draw.choice((0, 1))).SerializeToString())
        request, body = step_request(self._config, draw.randrange(1000), run_id="fuzz", base_cid="base")
        signed = make_signed(
            self._key, method=REQUEST_METHOD, payload=request, run_id="fuzz", receiver=self._key.member_id, now_ms=now_ms()
        )
        return Message(signed.SerializeToString(), body)


async def _storm(cluster: Cluster, line: str, messages: int, seed: int, folder: Path, tally: Tally) -> None:
    """All kinds of fire at once, until `messages` have been sent."""
    ticket = Ticket.decode(line)
    calls = CallStorm(ticket, tally, seed)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(calls.close)
        await calls.open()
        options = LibP2POptions.for_listen(LISTEN, run_id=ticket.run_id, coordinator_key=ticket.coordinator_key)
        carrier = await RawLibP2P.create(
            folder / "hostile.key", bootstrap=ticket.bootstrap_multiaddrs, listen=LISTEN, state_dir=folder / "hostile",
            options=options,
        )  # fmt: skip
        stack.push_async_callback(carrier.close)
        book = AddressBook(carrier.dht, ticket.run_id)
        targets = await _targets(await cluster.status(line), ticket, book)
        peers = _Peers(carrier, targets, tally, seed)
        await stack.enter_async_context(calls.half_open())
        await stack.enter_async_context(half_open(carrier, targets, HALF_OPEN))
        by_calls = messages * 6 // 10
        await asyncio.gather(
            in_turn(range(by_calls), AT_ONCE, calls.one), in_turn(range(messages - by_calls), AT_ONCE, peers.one)
        )


async def _targets(status: Mapping[str, Any], ticket: Ticket, book: AddressBook) -> list[tuple[PeerAddress, str]]:
    """The services that can be reached: blocks at everybody's, train_step at those of later stages."""
    found = [(PeerAddress.from_multiaddrs(ticket.bootstrap_multiaddrs[:1]), BLOCKS_PROTOCOL)]
    for stage in status["stages"]:
        peers = [replica["peer_id"] for replica in stage["replicas"]]
        await book.find(stage["stage"], peers, within_s=FOUND_WITHIN_S)
        for address in map(book.address, peers):
            if not address.multiaddrs:
                raise HocketError(Code.PEER_UNREACHABLE, f"{address.peer_id} has not said where it is")
            found.append((address, BLOCKS_PROTOCOL))
            if stage["stage"]:
                found.append((address, TRAIN_STEP_PROTOCOL))
    return found


async def _follow(cluster: Cluster, line: str, over: asyncio.Event) -> dict[str, Any]:
    """Look after the processes until the run is finished and the storm is over; the last status."""
    async with asyncio.timeout(RUN_LIMIT_S):
        while True:
            status = await cluster.status(line)
            cluster.sample_usage()
            await cluster.supervise(status)
            for end in cluster.unexpected_ends():
                raise HocketError(Code.CHILD_FAILED, end)
            if status["phase"] == "FINISHED" and over.is_set():
                return status
            await asyncio.sleep(ASK_EVERY_S)


async def _run(settings: SimulationSettings, out: Path, data: Path, messages: int, seed: int, tally: Tally) -> _Outcome:
    """One run; with a storm where there are messages."""
    out.mkdir(parents=True)
    run_toml = out / "run.toml"
    atomic_write(run_toml, run_file(settings, data).encode())
    over = asyncio.Event()
    async with Cluster(out) as cluster:
        line = await cluster.start_coordinator(run_toml)
        await start_workers(cluster, line, settings)
        following = asyncio.create_task(_follow(cluster, line, over))
        try:
            if messages:
                async with asking(line, ASK_EVERY_S, out / "asker.log") as asker:
                    await _storm(cluster, line, messages, seed, out, tally)
                    note_answers(tally, await asker.end())
            over.set()
            status = await following
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({following})
        peaks = {child.name: child.usage.total_bytes for child in cluster.children}
        for child in cluster.children:
            for fault in faults_in_text(child.log_path.read_text(encoding="utf-8", errors="replace")):
                tally.fault(f"in the log of {child.name}: {fault}")
        key = Ticket.decode(line).coordinator_key
        manifests = read_manifests(cluster.coordinator_state, status["rounds"], key)
    versions = [tuple(stage["sha256"] for stage in manifests[number]["stages"]) for number in sorted(manifests)]
    return _Outcome(versions, peaks)


async def fuzz_processes(
    messages: int, seed: int, out: Path, *, data: Path | None = None, say: Callable[[str], None] = lambda line: None
) -> Tally:
    """Throw malformed messages at a run of processes, and compare what it trains with the same run in quiet.

    Args:
        out: folder of both runs. data: made by `hocket tokenize`; otherwise the shipped corpus is tokenised first.
    """
    tally = Tally("processes", limit_bytes=GROWTH_LIMIT_BYTES)
    settings = dataclasses.replace(SETTINGS, seed=seed, data=data)
    found = await prepare_data(settings, out, Quiet())
    say("the run in quiet")
    quiet = await _run(settings, out / "quiet", found, 0, seed, tally)
    say("the run under fire")
    began = time.monotonic()
    stormy = await _run(settings, out / "storm", found, messages, seed, tally)
    tally.seconds = time.monotonic() - began
    tally.identical = stormy.versions == quiet.versions and len(quiet.versions) == settings.rounds
    tally.grown_bytes = {name: max(0, peak - quiet.peak_bytes.get(name, 0)) for name, peak in stormy.peak_bytes.items()}
    return tally
