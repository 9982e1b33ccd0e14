"""The way into the swarm: bootstrap peers and peers met before, all dialled at once; one that answers is enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from common.errors import Code, HocketError
from swarm.carrier import PeerAddress
from swarm.daemon import Daemon, LibP2POptions

logger = logging.getLogger(__name__)

OTHERS_S = 2.0  # a frozen peer among those met before must not hold up a join


async def reach(daemon: Daemon, peers: Sequence[PeerAddress], options: LibP2POptions) -> list[PeerAddress]:
    """Dial each of `peers` at once; those that answered, without those that take much longer than the first.

    Raises:
        HocketError: CARRIER_FAILED, OPTION_INVALID.
    """

    async def dial(peer: PeerAddress) -> PeerAddress | None:
        try:
            async with asyncio.timeout(options.dial_timeout_s):
                await daemon.connect(peer.peer_id, peer.multiaddrs)
        except (HocketError, TimeoutError) as error:
            if isinstance(error, HocketError) and error.code is not Code.PEER_UNREACHABLE:
                raise
            logger.warning("peer %s does not answer: %s", peer.multiaddrs[0], error)
            return None
        return peer

    dials = {asyncio.create_task(dial(peer)) for peer in peers}
    pending, reached = set(dials), list[PeerAddress]()
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=OTHERS_S if reached else None, return_when=asyncio.FIRST_COMPLETED
            )  # fmt: skip
            if not done:
                break
            reached += [peer for task in done if (peer := task.result()) is not None]
    finally:
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
    return reached


async def reach_bootstrap(
    daemon: Daemon, bootstrap: Sequence[PeerAddress], remembered: Sequence[PeerAddress], options: LibP2POptions
) -> list[PeerAddress]:
    """Connect to the bootstrap peers and to those met before; those that answered.

    Again, a bounded number of times, while none has. Without a bootstrap peer we are the first, and nobody needs to answer.
    The daemon is not told of them at its start: there, one list without a living peer ends it for good.

    Raises:
        HocketError: BOOTSTRAP_UNREACHABLE.
    """
    peers = merged([*bootstrap, *remembered])
    attempts = options.bootstrap_attempts if bootstrap else 1
    for attempt in range(1, attempts + 1):
        reached = await reach(daemon, peers, options)
        if reached or not bootstrap:
            return reached
        logger.warning("no bootstrap peer answers, attempt %d of %d", attempt, attempts)
        if attempt < attempts:
            await asyncio.sleep(options.bootstrap_wait_s)
    raise HocketError(Code.BOOTSTRAP_UNREACHABLE, f"none of {', '.join(peer.multiaddrs[0] for peer in peers)}")


def merged(peers: Sequence[PeerAddress]) -> list[PeerAddress]:
    """One address for each peer, with all its multiaddresses in their order."""
    addresses: dict[str, dict[str, None]] = {}
    for peer in peers:
        addresses.setdefault(peer.peer_id, {}).update(dict.fromkeys(peer.multiaddrs))
    return [PeerAddress(peer_id, tuple(multiaddrs)) for peer_id, multiaddrs in addresses.items()]
