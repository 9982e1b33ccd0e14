"""Files by CID from many peers at once, served on while they come.

A file is asked for at those that have it, the nearest first by what their answers took, and at an origin only for what nobody
else has. Peers that fetch the same file at the same time share it out (see `swarm.turns`), so that its source sends each block
about once and not once for each of them. Every block is checked; what is on disk is not asked for again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.errors import Code, HocketError
from swarm.block_plan import FetchPlan
from swarm.block_service import MAX_CIDS, SILENCE_S, BlockAnswer, ask_for_blocks, ask_for_heads, serve_blocks
from swarm.blocks import BlockStore
from swarm.carrier import MEBIBYTE, Carrier, PeerAddress
from swarm.fetch_loop import Requests, carry_out, take_from_store
from swarm.incoming import Incoming
from swarm.pace import Paces
from swarm.turns import Turns

logger = logging.getLogger(__name__)

BATCH_BYTES = 4 * MEBIBYTE
BATCH_S = 2.0
MAX_REQUESTS = 8
MAX_REQUESTS_OF_A_PROVIDER = 2
MAX_PEERS = 16
MAX_FAILURES = 2
LOOK_S = 1.0
LOOK_AGAIN_S = 0.25
WAIT_S = 2.0
_OUR_FAULTS = (Code.DISK_FULL, Code.STATE_UNREADABLE, Code.CARRIER_FAILED)


@dataclass(frozen=True)
class Providers:
    """Who may be asked for a file.

    Args:
        peers: may have it, or be fetching it too: they are asked first of all whether they do.
        origins: have it, and are to be spared where there are peers.
    """

    peers: tuple[PeerAddress, ...] = ()
    origins: tuple[PeerAddress, ...] = ()


@dataclass(frozen=True)
class _Errand:
    """A request under way: at whom, whether for blocks that the peer is to bring first, and since when."""

    peer: str
    awaited: bool
    began_s: float


class BlockSwarm:
    """The files of one block store, fetched from peers and served to them.

    Args:
        carrier: connected. store: takes what is fetched; its blocks are served.
    """

    def __init__(self, carrier: Carrier, store: BlockStore) -> None:
        self._carrier = carrier
        self.store = store
        self.incoming = Incoming()
        self.paces = Paces()
        self._late: set[str] = set()

    async def serve(self) -> None:
        """Serve what is in the store, and what is on its way there."""
        await serve_blocks(self._carrier, self.store, self.incoming)

    async def fetch(self, root: str, providers: Providers, *, max_bytes: int) -> None:
        """Bring all blocks of a file into the store, going on from what is there already.

        Whoever sends something else than it was asked for is left out at once, and a peer for ten minutes, for two if it only
        kept us waiting; a peer that fails is left out of this file at its first failure, an origin at its second.

        Args:
            root: CID of the file.
            max_bytes: of the file: what its root declares is checked before anything more is fetched.

        Raises:
            HocketError: BLOCK_NOT_FOUND if no peer left has a block; BLOCK_DAMAGED if the blocks form no proper file, or
                if a block is missing after a peer lied; MESSAGE_TOO_LARGE; CID_INVALID; DISK_FULL, STATE_UNREADABLE.
        """
        now = self._now()
        everyone = {peer.peer_id: peer for peer in [*providers.origins, *providers.peers]}
        origins = self._usable(providers.origins, now)
        honest = [peer for peer in self._usable(providers.peers, now) if not self.paces.left_out(peer, now)]
        turns = Turns(self._carrier.peer_id, honest[:MAX_PEERS])
        plan = FetchPlan(root, (), max_bytes=max_bytes, origins=origins, turns=turns)
        await take_from_store(plan, self.store)
        if plan.finished:
            return
        # One that failed of late, or whose address is not known, may still ask us, and is then met as well.
        known = [peer for peer in turns.candidates if everyone[peer].multiaddrs and not self.paces.shunned(peer, now)]
        looks = {peer: asyncio.create_task(self._look(plan, everyone[peer])) for peer in known}
        try:
            with self.incoming.running(plan):
                await self._meet(looks)
                await _Fetch(self._carrier, self.store, self.incoming, self.paces, plan, everyone, looks.values()).run()
        finally:
            for look in looks.values():
                look.cancel()
            if looks:
                await asyncio.wait(looks.values())

    def _usable(self, peers: Iterable[PeerAddress], now_s: float) -> list[str]:
        """Their ids, the nearest first, without ourselves."""
        return self.paces.nearest((peer.peer_id for peer in peers if peer.peer_id != self._carrier.peer_id), now_s)

    async def _meet(self, looks: Mapping[str, asyncio.Task[None]]) -> None:
        """Wait for the answers of peers, a second at most; one that took longer is not waited for again until it has answered."""
        prompt = [look for peer, look in looks.items() if peer not in self._late]
        if prompt:
            await asyncio.wait(prompt, timeout=LOOK_S)
        self._late.update(peer for peer, look in looks.items() if not look.done())

    async def _look(self, plan: FetchPlan, peer: PeerAddress) -> None:
        """Ask a peer whether it has a file or is fetching it, and tell the plan."""
        began_s = self._now()
        try:
            answer = await ask_for_heads(self._carrier, peer, [plan.root], within_s=SILENCE_S)
        except HocketError as error:  # what is our own fault comes up again when blocks are asked for
            self.paces.failed(peer.peer_id, self._now(), lied=error.code is Code.BLOCK_DAMAGED)
            logger.debug("peer %s is not asked for %s: %s", peer.peer_id, plan.root, error)
            return
        self._late.discard(peer.peer_id)
        self.paces.answered(peer.peer_id, self._now() - began_s, 0)
        plan.met(
            peer.peer_id,
            has_root=answer.blocks[plan.root] is not None,
            fetching=plan.root in answer.fetching,
            coming=plan.root in answer.coming,
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class _Fetch:
    """The requests of one fetch."""

    def __init__(
        self,
        carrier: Carrier,
        store: BlockStore,
        incoming: Incoming,
        paces: Paces,
        plan: FetchPlan,
        addresses: dict[str, PeerAddress],
        looks: Collection[asyncio.Task[None]],
    ) -> None:
        self._carrier = carrier
        self._store = store
        self._incoming = incoming
        self._paces = paces
        self._plan = plan
        self._addresses = addresses
        self._looks = looks
        self._now = asyncio.get_running_loop().time

    async def run(self) -> None:
        await carry_out(self._plan, self._store, self._ask, self._settle, self._pause)

    def _pause(self) -> float | None:
        pause_s = self._plan.turns.look_again_s(self._now())
        if pause_s is None and not all(look.done() for look in self._looks):
            return LOOK_AGAIN_S  # one of them may have it
        return pause_s

    def _ask(self, under_way: Sequence[_Errand]) -> Requests[_Errand, BlockAnswer]:
        plan, now = self._plan, self._now()
        for peer in plan.turns.give_up(now):
            self._paces.stalled(peer, now)
            logger.info("peer %s has brought nothing of %s for a while, others are asked", peer, plan.root)
        asked = [errand.peer for errand in under_way if not errand.awaited]
        for peer, share in self._next_requests(asked):
            if len(asked) == MAX_REQUESTS:
                break
            if batch := plan.take(peer, max_blocks=share, max_bytes=BATCH_BYTES):
                asked.append(peer)
                yield _Errand(peer, False, now), batch, self._bring(peer, batch)
        waited_for = {errand.peer for errand in under_way if errand.awaited}
        for peer in plan.turns.free(now):
            if peer not in waited_for and (batch := plan.take_awaited(peer, max_blocks=MAX_CIDS, max_bytes=BATCH_BYTES)):
                plan.turns.asked(peer, now)
                yield _Errand(peer, True, now), batch, self._bring(peer, batch, WAIT_S)

    def _next_requests(self, asked: Sequence[str]) -> list[tuple[str, int]]:
        """Who is asked next, and for how many blocks at most: idle providers first, so that all of them share the work.

        Args:
            asked: the provider of each request under way.
        """
        providers = [*self._plan.providers, *(peer for peer in self._plan.turns.fellows if peer not in self._plan.providers)]
        free = [peer for turn in range(MAX_REQUESTS_OF_A_PROVIDER) for peer in providers if asked.count(peer) <= turn]
        share = min(MAX_CIDS, -(-self._plan.wanted // max(1, min(len(free), MAX_REQUESTS))))
        return [(peer, max(1, min(share, self._at_once(peer)))) for peer in free]

    def _at_once(self, peer: str) -> int:
        """How many blocks a provider should be able to send in two seconds, so that a slow one does not hold up the end."""
        block_s = self._paces.expected_s(peer, MEBIBYTE)
        return MAX_CIDS if block_s * MAX_CIDS <= BATCH_S else int(BATCH_S / block_s)

    async def _bring(self, peer: str, cids: list[str], wait_s: float = 0.0) -> BlockAnswer:
        answer = await ask_for_blocks(self._carrier, self._addresses[peer], cids, wait_s=wait_s, root=self._plan.root)
        for cid, data in answer.blocks.items():
            if data is not None:
                await asyncio.to_thread(self._store.put, cid, data)
        return answer

    def _settle(self, errand: _Errand, cids: list[str], task: asyncio.Task[BlockAnswer]) -> None:
        fault = task.exception()
        if fault is not None:
            self._record_fault(errand, cids, fault)
            return
        plan, answer, now = self._plan, task.result(), self._now()
        took_s = now - errand.began_s
        plan.put_back([cid for cid in cids if cid not in answer.blocks])
        for cid, data in answer.blocks.items():
            if data is not None:
                plan.arrived(cid, data)
            elif errand.awaited and cid in answer.fetching:
                plan.still_fetching(cid, coming=cid in answer.coming)
            else:
                plan.lacks(errand.peer, cid)
        if any(data is not None for data in answer.blocks.values()):
            plan.turns.brought(errand.peer, now)
            self._incoming.tell()
        elif errand.awaited:
            plan.turns.still_fetching(errand.peer, now, took_s)
        if not errand.awaited:
            self._paces.answered(errand.peer, took_s, answer.size_bytes)
            plan.turns.took(took_s)

    def _record_fault(self, errand: _Errand, cids: list[str], fault: BaseException) -> None:
        if not isinstance(fault, HocketError) or fault.code in _OUR_FAULTS:
            raise fault
        self._plan.put_back(cids)
        lied = fault.code in (Code.BLOCK_DAMAGED, Code.MESSAGE_TOO_LARGE)
        self._paces.failed(errand.peer, self._now(), lied=lied)
        allowed = MAX_FAILURES if errand.peer in self._plan.origins else 1
        if self._plan.failed(errand.peer, str(fault), lied=lied, max_failures=allowed):
            logger.warning("peer %s is asked for no more blocks: %s", errand.peer, fault)


async def fetch(carrier: Carrier, store: BlockStore, root_cid: str, providers: Sequence[PeerAddress], *, max_bytes: int) -> None:
    """Bring one file into `store` from peers that have it; see `BlockSwarm.fetch`."""
    await BlockSwarm(carrier, store).fetch(root_cid, Providers(origins=tuple(providers)), max_bytes=max_bytes)
