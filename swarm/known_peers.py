"""A memory of peers met, so that a restart needs none of the ticket's bootstrap peers: `peers.json` in the state directory.

Only addresses are remembered, and whoever is dialled there must still prove its peer id: a false entry costs one dial.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import HocketError
from common.files import atomic_write
from swarm.carrier import PeerAddress
from swarm.records import MAX_MULTIADDR_CHARACTERS

logger = logging.getLogger(__name__)

MAX_PEERS = 64
MAX_ADDRESSES = 8
MAX_FILE_BYTES = 1 << 18


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    multiaddrs: tuple[str, ...] = Field(min_length=1, max_length=MAX_ADDRESSES, strict=False)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    peers: tuple[_Entry, ...] = Field(max_length=MAX_PEERS, strict=False)


def _fits(multiaddr: str, peer_id: str) -> bool:
    return len(multiaddr) <= MAX_MULTIADDR_CHARACTERS and multiaddr.startswith("/") and multiaddr.endswith(f"/p2p/{peer_id}")


class KnownPeers:
    """At most 64 peers, those met last first, each with at most 8 addresses, the newest first.

    Args:
        path: of the file. One that is damaged, or too large, is begun anew: it is a help, not a state.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._peers: dict[str, tuple[str, ...]] = {}
        self._written: list[PeerAddress] = []
        for address in _read(path):
            self._peers.setdefault(address.peer_id, address.multiaddrs)
        self._written = self.newest()

    def newest(self, count: int = MAX_PEERS) -> list[PeerAddress]:
        """Those met last."""
        return [PeerAddress(peer_id, multiaddrs) for peer_id, multiaddrs in list(self._peers.items())[:count]]

    def met(self, peers: Iterable[PeerAddress]) -> None:
        """They answered at one of these addresses; what does not look like an address of the peer is left out."""
        fresh: dict[str, tuple[str, ...]] = {}
        for peer in peers:
            told = [one for one in peer.multiaddrs if _fits(one, peer.peer_id)]
            known = fresh.get(peer.peer_id) or self._peers.get(peer.peer_id, ())
            addresses = tuple(dict.fromkeys([*told, *known]))[:MAX_ADDRESSES]
            if addresses:
                fresh[peer.peer_id] = addresses
        kept = {**fresh, **{peer_id: known for peer_id, known in self._peers.items() if peer_id not in fresh}}
        self._peers = dict(list(kept.items())[:MAX_PEERS])

    def save(self) -> None:
        """Write the file if anything has changed, whole or not at all; a disk that does not take it is logged."""
        newest = self.newest()
        if newest == self._written:
            return
        told = _File(peers=tuple(_Entry(multiaddrs=peer.multiaddrs) for peer in newest))
        try:
            atomic_write(self._path, (json.dumps(told.model_dump(mode="json"), indent=1) + "\n").encode(), mode=0o600)
        except HocketError as error:
            logger.warning("the peers met are not remembered: %s", error.line())
            return
        self._written = newest


def _read(path: Path) -> list[PeerAddress]:
    """The peers in a file; none if it is absent, damaged, or not ours."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("%s cannot be read, and is begun anew (%s)", path, error)
        return []
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        addresses = [PeerAddress.from_multiaddrs(entry.multiaddrs) for entry in _File.model_validate_json(data).peers]
        for address in addresses:
            if not all(_fits(one, address.peer_id) for one in address.multiaddrs):
                raise ValueError(f"{address.multiaddrs[0][:80]!r} is no address of a peer")
    except (ValidationError, ValueError, HocketError) as error:
        logger.warning("%s is damaged, and is begun anew (%s)", path, str(error).splitlines()[0])
        return []
    return addresses
