"""How much an origin sends when many peers want its data at once: libp2p peers, each with a daemon and a block store of its own.

The origin has the data; the others fetch it as the members of a run do, and serve on what they have. What the origin sends is
counted in the bytes of the block protocol, frames and heads included.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result import BenchResult, machine_facts
from common.errors import Code, HocketError
from protocol.content import cid_of
from swarm.block_service import BLOCKS_PROTOCOL
from swarm.block_swarm import BlockSwarm, Providers
from swarm.blocks import BlockStore

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
ROWS = {
    "file": "one file, all peers at once",
    "shards": "shards, all peers at once",
    "late": "one file, each peer later than the one before",
    "strangers": "one file, peers that do not know of one another",
}


@dataclass(frozen=True)
class SwarmBench:
    """What is measured.

    Args:
        peers: that fetch. data_bytes: of all files together. shard_bytes: of one shard.
        repeats: how often each row is measured, each time with other data and empty stores.
    """

    peers: int = 8
    data_bytes: int = 64 << 20
    shard_bytes: int = 1 << 20
    repeats: int = 3


@dataclass
class _Peer:
    carrier: Any
    store: BlockStore
    swarm: BlockSwarm

    @property
    def sent_bytes(self) -> int:
        return int(self.carrier.traffic.answers[BLOCKS_PROTOCOL])


@contextlib.asynccontextmanager
async def _peer(folder: Path, bootstrap: Sequence[str]) -> AsyncIterator[_Peer]:
    """A libp2p peer that serves what it has and what it is fetching."""
    from swarm.libp2p import LibP2PCarrier

    folder.mkdir(parents=True)
    carrier = await LibP2PCarrier.create(folder / "peer.key", bootstrap=bootstrap, listen=LISTEN, state_dir=folder)
    try:
        store = BlockStore(folder / "blocks")
        peer = _Peer(carrier, store, BlockSwarm(carrier, store))
        await peer.swarm.serve()
        yield peer
    finally:
        await carrier.close()


def _files(settings: SwarmBench, row: str, seed: int) -> list[bytes]:
    """Random bytes, cut into shards where the row wants shards."""
    data = np.random.default_rng(seed).bytes(settings.data_bytes)
    size = settings.shard_bytes if row == "shards" else len(data)
    return [data[start : start + size] for start in range(0, len(data), size)]


async def _measure_once(settings: SwarmBench, row: str, seed: int, folder: Path) -> dict[str, float]:
    """One row once: what the origin sent and how long it took until every peer had everything."""
    files = _files(settings, row, seed)
    async with contextlib.AsyncExitStack() as stack:
        origin = await stack.enter_async_context(_peer(folder / "origin", ()))
        bootstrap = origin.carrier.multiaddrs
        peers = [await stack.enter_async_context(_peer(folder / f"peer{number}", bootstrap)) for number in range(settings.peers)]
        roots = [await asyncio.to_thread(origin.store.add_bytes, data) for data in files]
        everyone = () if row == "strangers" else tuple(peer.carrier.address for peer in peers)
        providers = Providers(everyone, (origin.carrier.address,))
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        async def fetch_all(number: int, peer: _Peer) -> None:
            if row == "late":
                while origin.sent_bytes < settings.data_bytes * number / settings.peers:
                    await asyncio.sleep(0.005)
            # Each begins elsewhere, as workers with leases of their own do.
            first = number * len(roots) // settings.peers
            for root, data in [*zip(roots, files, strict=True)][first:] + [*zip(roots, files, strict=True)][:first]:
                await peer.swarm.fetch(root, providers, max_bytes=len(data))

        await asyncio.gather(*(fetch_all(number, peer) for number, peer in enumerate(peers)))
        seconds = loop.time() - began_s
        for peer in peers:
            for root in roots:
                if cid_of(await asyncio.to_thread(peer.store.read_file, root)) != root:
                    raise HocketError(Code.BLOCK_DAMAGED, root)
        sent = [peer.sent_bytes / settings.data_bytes for peer in peers]
        return {
            "origin_over_data": origin.sent_bytes / settings.data_bytes,
            "peer_least": min(sent),
            "peer_most": max(sent),
            "seconds": seconds,
        }


def measure(settings: SwarmBench, *, rows: Sequence[str] = tuple(ROWS), say: Callable[[str], None]) -> BenchResult:
    """Measure the rows.

    Args:
        say: gets a line for each measurement.

    Raises:
        HocketError: OPTION_INVALID for a row that there is not; what fetching raises.
    """
    if unknown := [row for row in rows if row not in ROWS]:
        raise HocketError(Code.OPTION_INVALID, f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    result = BenchResult("swarm", machine_facts(sorted(os.sched_getaffinity(0))))
    for row in rows:
        found = []
        for repeat in range(settings.repeats):
            with tempfile.TemporaryDirectory() as folder:
                found.append(asyncio.run(_measure_once(settings, row, repeat, Path(folder))))
            latest = found[-1]
            say(f"{ROWS[row]}: the origin sent {latest['origin_over_data']:.3f} times the data in {latest['seconds']:.1f} s")
        medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
        spread = {"least": min(one["origin_over_data"] for one in found), "most": max(one["origin_over_data"] for one in found)}
        result.rows.append({"row": row, "what": ROWS[row], **medians, **spread})
    # The worst of the ways in which members fetch; strangers are there for comparison.
    shared = [one["origin_over_data"] for one in result.rows if one["row"] != "strangers"]
    if shared:
        result.ratios["origin_egress_over_data"] = max(shared)
    return result
