"""Keeps a worker's record in the DHT fresh, so that others find where it is and what it holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from common.errors import HocketError
from node.session import now_ms
from node.station import Station
from protocol.identity import MemberKey
from swarm.libp2p import LibP2PCarrier
from swarm.records import MAX_LIFE_MS, make_record

logger = logging.getLogger(__name__)

ANNOUNCE_EVERY_S = 20.0


class Announcer:
    """Announces the stage that a worker serves.

    Args:
        key: of the member. run_id: of the run. carrier: connected.
        station: gives the stage served now, if there is one.
    """

    def __init__(self, key: MemberKey, run_id: str, carrier: LibP2PCarrier, station: Callable[[], Station | None]) -> None:
        self._key = key
        self._run_id = run_id
        self._carrier = carrier
        self._station = station
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """The stage or the version has changed: announce it at once."""
        self._wanted.set()

    async def run(self) -> None:
        """Announce again and again, until cancelled."""
        while True:
            station = self._station()
            if station is not None:
                await self._announce(station)
            try:
                async with asyncio.timeout(ANNOUNCE_EVERY_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # time for the next one
            self._wanted.clear()

    async def _announce(self, station: Station) -> None:
        made_ms = now_ms()
        record = make_record(
            self._key,
            run_id=self._run_id,
            stage=station.stage,
            peer_id=self._carrier.peer_id,
            multiaddrs=await self._carrier.refresh_multiaddrs(),
            version_cid=station.base_cid,
            throughput=station.throughput,
            now_ms=made_ms,
        )
        try:
            await self._carrier.dht.announce(record, self._run_id, station.stage, self._carrier.peer_id, made_ms + MAX_LIFE_MS)
        except HocketError as error:
            logger.warning("our record could not be published, tried again in %.0f s: %s", ANNOUNCE_EVERY_S, error.line())
