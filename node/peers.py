"""Where the peers of the roster are: addresses from the directory, looked up at the round's start and when a call fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from common.errors import HocketError
from swarm.carrier import PeerAddress
from swarm.directory import Directory

logger = logging.getLogger(__name__)

LEARN_AGAIN_S = 10.0
FIND_EVERY_S = 0.5


class AddressBook:
    """Last known addresses of peers, by peer id.

    The roster says who may be called; the directory only says where. A peer without a record is called by its id alone,
    which works while it is connected.

    Args:
        directory: of the run. run_id: of the run.
    """

    def __init__(self, directory: Directory, run_id: str) -> None:
        self._directory = directory
        self._run_id = run_id
        self._known: dict[str, PeerAddress] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._looking: set[asyncio.Future[None]] = set()
        self._learnt: dict[int, float] = {}

    def address(self, peer_id: str) -> PeerAddress:
        return self._known.get(peer_id, PeerAddress(peer_id))

    def remember(self, address: PeerAddress) -> None:
        self._known[address.peer_id] = address

    async def refresh(self, stage: int) -> None:
        """Read the records of a stage; a directory that cannot be read leaves what is known. Calls at once share one look-up."""
        running = self._running.get(stage)
        if running is None:
            running = asyncio.ensure_future(self._read(stage))
            self._running[stage] = running
            running.add_done_callback(lambda _: self._running.pop(stage, None))
        await asyncio.shield(running)

    def refresh_soon(self, stage: int) -> asyncio.Future[None]:
        """Read the records of a stage beside whatever else is done: a dead peer makes a look-up slow. The future ends with it."""
        looking = asyncio.ensure_future(self.refresh(stage))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)
        return looking

    async def _read(self, stage: int) -> None:
        began = time.monotonic()
        try:
            records = await self._directory.find(self._run_id, stage)
        except HocketError as error:
            logger.warning("the directory of stage %d cannot be read: %s", stage, error.line())
            return
        for record in records:
            self._known[record.peer_id] = PeerAddress(record.peer_id, tuple(record.multiaddrs))
        logger.debug("%d records of stage %d in %.2f s", len(records), stage, time.monotonic() - began)

    async def find(self, stage: int, peer_ids: Iterable[str], *, within_s: float) -> None:
        """Read the records of a stage until all of these peers are known, within bounds; the others are looked up on failure."""
        missing = list(peer_ids)
        deadline = time.monotonic() + within_s
        while missing := [peer for peer in missing if not self.address(peer).multiaddrs]:
            await self.refresh(stage)
            if all(self.address(peer).multiaddrs for peer in missing):
                return
            if time.monotonic() > deadline:
                logger.warning("no address is known of %s after %.0f s", ", ".join(missing), within_s)
                return
            await asyncio.sleep(FIND_EVERY_S)

    async def learn(self, stage: int, peer_ids: Iterable[str], *, within_s: float) -> list[PeerAddress]:
        """Where these peers of a stage are.

        If one of them is not known, the directory is read: no longer than `within_s`, and not again for some seconds, since a
        peer that never announced itself stays unknown.
        """
        wanted = list(peer_ids)
        now = time.monotonic()
        if any(peer not in self._known for peer in wanted) and now - self._learnt.get(stage, -LEARN_AGAIN_S) >= LEARN_AGAIN_S:
            self._learnt[stage] = now
            await asyncio.wait({self.refresh_soon(stage)}, timeout=within_s)
        return [self.address(peer) for peer in wanted]
