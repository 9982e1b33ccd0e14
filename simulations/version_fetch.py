"""A version by its CID from wherever it is: the peers of its run, or gateways of IPFS. Nothing is trusted unchecked."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import Code, HocketError
from common.files import atomic_write
from protocol.identity import public_from_member_id
from protocol.manifest import DatasetManifest, VersionManifest, read_manifest
from protocol.ticket import Ticket
from simulations.version_export import MAX_MANIFEST_BYTES, read_dataset
from swarm.blocks import BlockStore
from swarm.carrier import PeerAddress

logger = logging.getLogger(__name__)

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
_ELSEWHERE = (
    Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED, Code.BOOTSTRAP_UNREACHABLE, Code.PEER_SILENT, Code.PEER_UNREACHABLE,
    Code.PEER_REFUSED,
)  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where a version may be had, and who must have signed it.

    Args:
        ticket: of its run: peers are asked, and the coordinator's key must have signed.
        gateways: addresses of gateways, or of nodes, as of `swarm.ipfs_sources.source_at`; asked after the peers.
        signer: member id that must have signed; it must be the ticket's where both are given. Empty and no ticket: anybody.
    """

    ticket: str = ""
    gateways: tuple[str, ...] = ()
    signer: str = ""

    def key(self) -> bytes | None:
        """The raw public key that must have signed. SIGNATURE_INVALID, TICKET_INVALID; MANIFEST_INVALID for two of them."""
        wanted = public_from_member_id(self.signer) if self.signer else None
        own = Ticket.decode(self.ticket).coordinator_key if self.ticket else None
        if wanted is not None and own is not None and wanted != own:
            raise HocketError(Code.MANIFEST_INVALID, f"the ticket's coordinator has not the key {self.signer}")
        return wanted or own


@dataclass
class Fetched:
    """A version whose blocks are all there; its stage files are checked against the signed manifest when they are read."""

    manifest: VersionManifest
    dataset: DatasetManifest
    providers: list[str]
    seconds: float
    size_bytes: int


Bring = Callable[[str, int, int | None], Awaitable[None]]
"""Brings a file into the store, by CID and largest size in bytes; of a stage, or None."""


async def fetch_version(origin: Origin, cid: str, store: BlockStore, state: Path, *, heldout: bool = False) -> Fetched:
    """Fetch a version's manifest, its stage files, the dataset's manifest and, if wanted, the held-out shards into `store`.

    Args:
        state: an existing folder for what a peer needs while it runs.

    Raises:
        HocketError: BLOCK_NOT_FOUND, BLOCK_DAMAGED, MANIFEST_INVALID, EXTRA_MISSING, or what the carrier raises.
    """
    started, key = time.monotonic(), origin.key()
    if origin.ticket:
        try:
            manifest, names = await _from_peers(Ticket.decode(origin.ticket), key, cid, store, state, heldout=heldout)
        except HocketError as error:
            if not origin.gateways or error.code not in _ELSEWHERE:
                raise
            logger.warning("the peers of the run do not have it, gateways are asked: %s", error.line())
        else:
            return _fetched(manifest, names, store, started, heldout=heldout)
    manifest, names = await _from_gateways(origin.gateways, key, cid, store, heldout=heldout)
    if origin.ticket:
        _check_run(manifest, Ticket.decode(origin.ticket))
    return _fetched(manifest, names, store, started, heldout=heldout)


def _fetched(manifest: VersionManifest, names: list[str], store: BlockStore, started: float, *, heldout: bool) -> Fetched:
    dataset = read_dataset(manifest, store)
    size = sum(part.size_bytes for part in manifest.stages)
    size += sum(shard.size_bytes for shard in dataset.heldout) if heldout else 0
    return Fetched(manifest, dataset, names, time.monotonic() - started, size)


async def _bring_all(bring: Bring, key: bytes | None, cid: str, store: BlockStore, *, heldout: bool) -> VersionManifest:
    """All files of a version, each with the limit that what names it sets."""
    await bring(cid, MAX_MANIFEST_BYTES, None)
    manifest = read_manifest(VersionManifest, store.read_file(cid, max_bytes=MAX_MANIFEST_BYTES), signer=key)
    for part in manifest.stages:
        await bring(part.cid, part.size_bytes, part.stage)
    await bring(manifest.dataset_cid, MAX_MANIFEST_BYTES, None)
    for shard in read_dataset(manifest, store).heldout if heldout else ():
        await bring(shard.cid, shard.size_bytes, None)
    return manifest


def _check_run(manifest: VersionManifest, ticket: Ticket) -> None:
    if manifest.run_id != ticket.run_id:
        raise HocketError(Code.MANIFEST_INVALID, f"it is of run {manifest.run_id}, the ticket of {ticket.run_id}")


async def _from_peers(
    ticket: Ticket, key: bytes | None, cid: str, store: BlockStore, state: Path, *, heldout: bool
) -> tuple[VersionManifest, list[str]]:
    """From the coordinator's block peer, and from the workers that the DHT names; and the ids of those asked."""
    from swarm.block_swarm import BlockSwarm, Providers
    from swarm.daemon import LibP2POptions
    from swarm.libp2p import LibP2PCarrier

    carrier = await LibP2PCarrier.create(
        state / "peer.key",
        bootstrap=ticket.bootstrap_multiaddrs,
        listen=LISTEN,
        state_dir=state,
        options=LibP2POptions.for_listen(LISTEN, run_id=ticket.run_id),
    )
    known = {address.rpartition("/p2p/")[2]: address for address in ticket.bootstrap_multiaddrs}
    coordinators = tuple(PeerAddress.from_multiaddrs([address]) for address in known.values())
    names = [peer.peer_id for peer in coordinators]
    swarm = BlockSwarm(carrier, store)

    async def bring(root: str, max_bytes: int, stage: int | None) -> None:
        holders: tuple[PeerAddress, ...] = ()
        if stage is not None:
            records = await carrier.dht.find(ticket.run_id, stage)
            holders = tuple(PeerAddress(one.peer_id, tuple(one.multiaddrs)) for one in records if one.version_cid == cid)
            names.extend(peer.peer_id for peer in holders)
        await swarm.fetch(root, Providers(holders, coordinators), max_bytes=max_bytes)

    try:
        manifest = await _bring_all(bring, key, cid, store, heldout=heldout)
    finally:
        await carrier.close()
    _check_run(manifest, ticket)
    return manifest, names


async def _from_gateways(
    addresses: tuple[str, ...], key: bytes | None, cid: str, store: BlockStore, *, heldout: bool
) -> tuple[VersionManifest, list[str]]:
    from swarm.ipfs_fetch import fetch_from_ipfs
    from swarm.ipfs_sources import source_at

    gateways = [source_at(address) for address in addresses]

    async def bring(root: str, max_bytes: int, stage: int | None) -> None:
        await fetch_from_ipfs(store, root, gateways, max_bytes=max_bytes)

    try:
        manifest = await _bring_all(bring, key, cid, store, heldout=heldout)
    finally:
        for gateway in gateways:
            await gateway.close()
    return manifest, [gateway.address for gateway in gateways]


def write_version(folder: Path, cid: str, manifest: VersionManifest, store: BlockStore) -> Path:
    """Put a fetched version's manifest where `kept_versions` finds it; its path. DISK_FULL, STATE_UNREADABLE."""
    path = folder / "versions" / f"v{manifest.version}" / "manifest.json"
    atomic_write(path, store.read_file(cid, max_bytes=MAX_MANIFEST_BYTES))
    return path
