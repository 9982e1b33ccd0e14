"""Gateways of IPFS for what no peer has: asked once peers have failed for a while, and never waited for without end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from common.errors import Code, HocketError
from swarm.blocks import BlockStore
from swarm.ipfs_fetch import Gateway, fetch_from_ipfs
from swarm.ipfs_http import base_url, is_loopback
from swarm.ipfs_sources import ASK_S, source_at

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
FORGET_S = 600.0
MAX_GATEWAYS = 8


def gateway_address(address: str) -> str:
    """The address of a gateway that a stranger names: OPTION_INVALID unless it is `https://`, or on this machine itself.

    Otherwise whoever writes a run file could have its members ask machines of their own networks.
    """
    url = base_url(address)
    if not url.startswith("https://") and not is_loopback(url):
        raise HocketError(Code.OPTION_INVALID, f"gateway {url} must be https://, or on the loopback interface")
    return url


class Patience:
    """When to ask elsewhere for files that peers do not have. A decider: `now_s` comes in."""

    def __init__(self) -> None:
        self._since_s: dict[str, tuple[float, float]] = {}  # by file: when peers failed first, and last

    def failed(self, root: str, now_s: float) -> bool:
        """Peers do not have a file; True if they have not had it for so long that a coordinator would have come back."""
        self._since_s = {one: times for one, times in self._since_s.items() if now_s - times[1] < FORGET_S}
        first_s = self._since_s.get(root, (now_s, now_s))[0]
        self._since_s[root] = (first_s, now_s)
        return now_s - first_s >= PATIENCE_S

    def came(self, root: str) -> None:
        self._since_s.pop(root, None)


class IpfsFallback:
    """The gateways that a worker may ask. Close it with `close`.

    Args:
        own: addresses that the volunteer has chosen, asked first: any gateways, or nodes, as of `source_at`.

    Raises:
        HocketError: OPTION_INVALID for an address that is none; EXTRA_MISSING if `own` has one and the HTTP client is not there.
    """

    def __init__(self, own: Sequence[str] = ()) -> None:
        self._own = [source_at(address) for address in own]
        self._told: list[str] = []
        self._opened: dict[str, Gateway] = {}
        self._refused: set[str] = set()
        self._patience = Patience()

    def use(self, addresses: Sequence[str]) -> None:
        """The gateways that the run names now; one that cannot be used is told in the log once, and left out."""
        self._told = list(dict.fromkeys(addresses))[:MAX_GATEWAYS]
        for address in self._told:
            if address in self._opened or address in self._refused:
                continue
            try:
                self._opened[address] = Gateway(gateway_address(address))
            except HocketError as error:
                self._refused.add(address)
                logger.warning("a gateway of the run is not used: %s", error.line())

    async def after(self, fault: HocketError, store: BlockStore, root: str, *, max_bytes: int) -> None:
        """Peers do not have a file: fetch it from gateways, if it is time for that.

        Args:
            fault: what the peers' fetch ended with; raised again where gateways are not asked, or have no better answer in time.

        Raises:
            HocketError: `fault`; BLOCK_NOT_FOUND, BLOCK_DAMAGED, MESSAGE_TOO_LARGE, DISK_FULL, STATE_UNREADABLE of the gateways.
        """
        gateways = [*self._own, *(self._opened[address] for address in self._told if address in self._opened)]
        if not gateways or not self._patience.failed(root, asyncio.get_running_loop().time()):
            raise fault
        logger.info("no peer has %s, %d gateways are asked", root, len(gateways))
        try:
            async with asyncio.timeout(ASK_S):
                await fetch_from_ipfs(store, root, gateways, max_bytes=max_bytes)
        except TimeoutError:
            raise fault from None  # what has come is in the store, and the next try goes on
        self._patience.came(root)

    def came(self, root: str) -> None:
        """Peers had a file."""
        self._patience.came(root)

    async def close(self) -> None:
        """Give up the connections."""
        for source in [*self._own, *self._opened.values()]:
            await source.close()
