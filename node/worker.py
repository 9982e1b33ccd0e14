"""The worker daemon: one process, one member, one run, from the ticket to the exit code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common.faults import NO_FAULTS, Faults
from common.heartbeat import keep_beating
from common.lock import locked
from common.log import EventLog
from common.stop import stop_signals
from node.engine import set_threads
from node.follower import Follower
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, PeerKey
from protocol.tensors import ENCODINGS
from protocol.ticket import Ticket, is_loopback, split_address
from swarm.daemon import LibP2POptions
from swarm.ipfs_fallback import IpfsFallback
from swarm.libp2p import LibP2PCarrier
from swarm.store_keeper import DEFAULT_LIMIT_BYTES
from tts.compute_class import compute_class

logger = logging.getLogger(__name__)


def software() -> str:
    try:
        return f"hocket {version('hocket')}"
    except PackageNotFoundError:
        return "hocket"


async def _run(
    ticket: Ticket,
    state_dir: Path,
    *,
    threads: int,
    memory_limit: int,
    store_limit: int,
    recycle_every: int,
    gateways: Sequence[str],
    listen: Sequence[str],
    announce: Sequence[str],
    faults: Faults,
    operator: str,
) -> int:
    fallback = IpfsFallback(gateways)
    key = MemberKey.load_or_create(state_dir / "member.key")
    peer_key = PeerKey.load_or_create(state_dir / "peer.key")
    events = EventLog(state_dir / "events.jsonl")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = stop_signals()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    options = LibP2POptions.for_listen(
        listen, announce=announce, run_id=ticket.run_id, coordinator_key=ticket.coordinator_key
    )
    creating = asyncio.create_task(
        LibP2PCarrier.create(
            state_dir / "peer.key", bootstrap=ticket.bootstrap_multiaddrs, listen=listen, state_dir=state_dir, options=options
        )
    )
    if not await _unless(stop, creating):
        events.write("stopped")
        events.close()
        return 0
    carrier = creating.result()
    beating = asyncio.create_task(keep_beating(state_dir))
    try:
        events.write("started", peer_id=carrier.peer_id, member_id=key.member_id, run=ticket.run_id)
        logger.info("member %s, peer %s", key.member_id, carrier.peer_id)
        request = pb.JoinRequest(
            peer_id=carrier.peer_id,
            peer_public_key=peer_key.public_key_bytes,
            peer_signature=peer_key.prove(key.public),
            operator=operator,
            memory_limit_bytes=memory_limit,
            invitation=ticket.invitation,
            software=software(),
            threads=threads,
            wire_encodings=ENCODINGS,
            device_class=compute_class(),
        )
        follower = Follower(
            ticket, key, carrier, state_dir, events, store_limit_bytes=store_limit, fallback=fallback,
            recycle_every=recycle_every, faults=faults
        )
        await follower.run(request, stop)
        events.write("stopped")
    finally:
        beating.cancel()
        await carrier.close()
        events.close()
        for number in numbers:
            loop.remove_signal_handler(number)
    return 0


async def _unless(stop: asyncio.Event, work: asyncio.Task[Any]) -> bool:
    """Wait for `work`; when `stop` is set before it is done, cancel it and return False."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
        return False
    return True


def default_listen(ticket: Ticket) -> tuple[str, ...]:
    """Where to listen by default: where members can reach us who reach the coordinator at the addresses in the ticket."""
    here = all(is_loopback(split_address(address)[0]) for address in ticket.coordinator_addresses)
    return (f"/ip4/{'127.0.0.1' if here else '0.0.0.0'}/tcp/0",)


def run_worker(
    ticket: Ticket | str,
    state_dir: Path,
    *,
    threads: int = 1,
    memory_limit: int = 0,
    store_limit: int = DEFAULT_LIMIT_BYTES,
    recycle_every: int = 0,
    gateways: Sequence[str] = (),
    listen: Sequence[str] = (),
    announce: Sequence[str] = (),
    faults: Faults = NO_FAULTS,
    operator: str = "",
) -> int:
    """Join a run and work for it until it is finished or the process is told to stop (SIGTERM, SIGINT, SIGHUP).

    Args:
        ticket: of the run, or its line.
        state_dir: made when absent; one worker at a time.
        threads: of tensor operations, for the whole process.
        memory_limit: bytes, told to the coordinator, which gives us a stage that takes no more; 0: not limited. Not enforced.
        store_limit: bytes of the blocks that are kept and served; what is used least goes first, what the round needs stays.
        recycle_every: rounds after which the compute engine is started anew; 0: only after a fault of the device.
        gateways: addresses of IPFS gateways that are asked for what no peer has, before those that the run names.
        listen: libp2p multiaddresses; none: those of `default_listen`.
        announce: multiaddresses at which others reach us, where those are not the ones listened on (a published port).
        operator: who runs this machine.

    Returns: the exit code, 0.

    Raises:
        HocketError: with the exit code of its number.
    """
    opened = Ticket.decode(ticket) if isinstance(ticket, str) else ticket
    set_threads(threads)
    with locked(state_dir):
        work = partial(
            _run,
            threads=threads,
            memory_limit=memory_limit,
            store_limit=store_limit,
            recycle_every=recycle_every,
            gateways=gateways,
            listen=listen or default_listen(opened),
            announce=announce,
            faults=faults,
            operator=operator,
        )
        return asyncio.run(work(opened, state_dir))
