"""Says in the DHT where the coordinator is, so that members whose ticket names an address it has left can find it.

The coordinator signs; its bootstrap peer, which is a node of the DHT, publishes.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Sequence

from coordinator.children import Child
from protocol.identity import MemberKey
from swarm.whereabouts import make_whereabouts

logger = logging.getLogger(__name__)

ANNOUNCE_EVERY_S = 20.0


class Announcing:
    """Renews the record for as long as the coordinator runs.

    Args:
        child: the bootstrap peer.
        key: of the coordinator; signs.
        run_id: of the run.
        addresses: `host:port` at which members reach the gRPC server.
        bootstrap: multiaddresses of the bootstrap peer, asked each time.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        child: Child,
        key: MemberKey,
        run_id: str,
        addresses: Sequence[str],
        bootstrap: Callable[[], Sequence[str]],
        clock: Callable[[], float],
    ) -> None:
        self._child = child
        self._key = key
        self._run_id = run_id
        self._addresses = tuple(addresses)
        self._bootstrap = bootstrap
        self._clock = clock
        self._soon = asyncio.Event()

    def soon(self) -> None:
        """The bootstrap peer came up: it knows nothing yet."""
        self._soon.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._soon.clear()
            signed = make_whereabouts(
                self._key, run_id=self._run_id, addresses=self._addresses, bootstrap_multiaddrs=self._bootstrap(),
                now_ms=int(self._clock() * 1000),
            )  # fmt: skip
            if not self._child.tell({"coordinator_record": base64.b64encode(signed.SerializeToString()).decode()}):
                logger.info("the bootstrap peer is not told where we are: it does not listen now")
            try:
                async with asyncio.timeout(ANNOUNCE_EVERY_S):
                    await self._soon.wait()
            except TimeoutError:
                pass  # time for the next record
