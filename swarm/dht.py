"""The directory in hivemind's DHT, run inside our own event loop over the carrier's daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgpack
from google.protobuf.message import DecodeError
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from swarm.carrier import PeerAddress
from swarm.daemon import Daemon, parse_peer_id
from swarm.directory import Directory
from swarm.records import MAX_RECORD_BYTES, MAX_STAGES, check_announcement, check_record, record_key, wall_clock_ms
from swarm.records import METHOD as PEER_METHOD
from swarm.whereabouts import METHOD, Whereabouts, check_whereabouts, entry_name, whereabouts_key

logger = logging.getLogger(__name__)

ANSWER_S = 20.0
JOIN_S = 60.0
REJOIN_S = 5.0
MAX_KEYS = 4096
EXPIRY_SLACK_S = 0.001  # a double holds milliseconds since the epoch, but not exactly


class RecordValidator(RecordValidatorBase):
    """Lets only good records into the DHT: what we are asked to store, and what we are given.

    Args:
        run_id: of the only run whose records are taken; empty: of any run.
        coordinator_key: raw public key of the only one whose word about the coordinator is taken; empty: of anybody, each
            under its own name.
    """

    def __init__(self, run_id: str, coordinator_key: bytes = b"", now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._run_id = run_id
        self._coordinator_key = coordinator_key
        self._now_ms = now_ms

    def validate(self, record: DHTRecord) -> bool:
        try:
            self._check(record)
        except (HocketError, DecodeError, ValueError) as error:
            logger.info("a DHT record is refused: %s", error)
            return False
        return True

    def _check(self, record: DHTRecord) -> None:
        if len(record.value) > MAX_RECORD_BYTES + 8 or len(record.subkey) > 128:
            raise ValueError("too long")
        name, data = msgpack.unpackb(record.subkey), msgpack.unpackb(record.value)
        if not isinstance(name, str) or not isinstance(data, bytes):
            raise ValueError("neither a name nor a signed record")
        signed = pb.Signed.FromString(data)
        header = pb.SignedHeader.FromString(signed.header)
        if self._run_id and header.run_id != self._run_id:
            raise ValueError("of another run")
        expires_ms = self._check_whereabouts(record, name, signed, header) if header.method == METHOD else (
            self._check_peer(record, name, signed, header)
        )
        if record.expiration_time > expires_ms / 1000 + EXPIRY_SLACK_S:
            raise ValueError("stored for longer than it says")

    def _check_peer(self, record: DHTRecord, peer_id: str, signed: pb.Signed, header: pb.SignedHeader) -> int:
        if header.stage >= MAX_STAGES or DHTID.generate(record_key(header.run_id, header.stage)).to_bytes() != record.key:
            raise ValueError("under another key than that of its run and stage")
        return check_record(signed, run_id=header.run_id, stage=header.stage, peer_id=peer_id, now_ms=self._now_ms()).expires_ms

    def _check_whereabouts(self, record: DHTRecord, name: str, signed: pb.Signed, header: pb.SignedHeader) -> int:
        if DHTID.generate(whereabouts_key(header.run_id)).to_bytes() != record.key:
            raise ValueError("under another key than that of its run's coordinator")
        if self._coordinator_key and header.public_key != self._coordinator_key:
            raise ValueError("not signed by the run's coordinator")
        found = check_whereabouts(signed, run_id=header.run_id, now_ms=self._now_ms())
        if name != entry_name(found):
            raise ValueError("under another name than its signer's")
        return found.expires_ms


class DhtDirectory(Directory):
    """See `Directory`. Make it with `join`."""

    def __init__(
        self,
        node: DHTNode,
        daemon: Daemon,
        bootstrap: Sequence[PeerAddress],
        validator: RecordValidator,
        now_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._daemon = daemon
        self._bootstrap = list(bootstrap)
        self._validator = validator
        self._now_ms = now_ms
        self._joined = asyncio.Event()
        self._joined.set()

    @classmethod
    async def join(
        cls,
        daemon: Daemon,
        bootstrap: Sequence[PeerAddress],
        reached: Sequence[PeerAddress],
        *,
        run_id: str = "",
        coordinator_key: bytes = b"",
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> DhtDirectory:
        """Take part in the DHT of the peers reached, or begin one of our own if there are no bootstrap peers.

        Args:
            bootstrap: all of them; each announcement makes us known to them again.
            reached: those that the daemon is connected to.
            run_id, coordinator_key: see `RecordValidator`.

        Raises:
            HocketError: BOOTSTRAP_UNREACHABLE if none of them answers as a DHT node.
        """
        validator = RecordValidator(run_id, coordinator_key, now_ms)
        try:
            node = await _take_part(daemon, reached, validator)
        except RuntimeError as error:
            if bootstrap:
                raise HocketError(Code.BOOTSTRAP_UNREACHABLE, "peers answer, but not as nodes of the DHT") from error
            node = await _take_part(daemon, (), validator)
        return cls(node, daemon, bootstrap, validator, now_ms)

    def suspend(self) -> None:
        """The daemon died: whoever asks waits for `rejoin`."""
        self._joined.clear()

    async def rejoin(self, daemon: Daemon, reached: Sequence[PeerAddress]) -> None:
        """Go on over a daemon that took the place of one that died: as the same node, with the records that it held.

        Peers that do not answer are no error: announcements make us known to the bootstrap peers again. CARRIER_FAILED.
        """
        old = self._node
        try:
            node = await _take_part(daemon, reached, self._validator, node_id=old.node_id)
        except RuntimeError:
            logger.warning("the peers that were dialled again do not answer as nodes of the DHT")
            node = await _take_part(daemon, (), self._validator, node_id=old.node_id)
        node.protocol.storage = old.protocol.storage
        _leave(old)
        self._node, self._daemon = node, daemon
        self._joined.set()

    async def announce(self, record: pb.Signed, run_id: str, stage: int, peer_id: str, expires_ms: int) -> None:
        check_announcement(record, run_id, stage, peer_id, expires_ms, self._now_ms())
        if not await self._store(record_key(run_id, stage), peer_id, record, expires_ms):
            logger.warning("the DHT did not take our record of stage %d: it holds one that expires later", stage)

    async def announce_coordinator(self, record: pb.Signed, run_id: str) -> None:
        found = check_whereabouts(record, run_id=run_id, now_ms=self._now_ms())
        if not await self._store(whereabouts_key(run_id), entry_name(found), record, found.expires_ms):
            logger.warning("the DHT did not take the coordinator's record: it holds one that expires later")

    async def _store(self, key: str, name: str, record: pb.Signed, expires_ms: int) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._joined.wait()
                await asyncio.gather(*map(self._meet_again, self._bootstrap))
                return bool(await self._node.store(key, record.SerializeToString(), expires_ms / 1000, subkey=name))
        except TimeoutError as error:
            raise HocketError(Code.PEER_SILENT, f"the DHT took no record within {ANSWER_S:g} s") from error

    async def _meet_again(self, peer: PeerAddress) -> None:
        """Make ourselves known to a bootstrap peer.

        One that was restarted has forgotten everybody: newcomers that join through it would find a DHT of their own.
        """
        try:
            async with asyncio.timeout(REJOIN_S):
                await self._daemon.connect(peer.peer_id, peer.multiaddrs)
                await self._node.protocol.call_ping(parse_peer_id(peer.peer_id))
        except TimeoutError:
            logger.info("bootstrap peer %s does not answer", peer.multiaddrs[0])
        except HocketError as error:
            if error.code is not Code.PEER_UNREACHABLE:
                raise
            logger.info("bootstrap peer %s cannot be reached: %s", peer.multiaddrs[0], error.detail)

    def recorded(self) -> list[PeerAddress]:
        """Where peers say that they are, in the records that we hold for others."""
        found = []
        for _, (entries, _) in list(self._node.protocol.storage.items()):
            for _, (data, _) in list(entries.items()) if isinstance(entries, DictionaryDHTValue) else ():
                signed = pb.Signed.FromString(msgpack.unpackb(data))  # checked before it was stored
                if pb.SignedHeader.FromString(signed.header).method == PEER_METHOD:
                    record = pb.PeerRecord.FromString(signed.payload)
                    found.append(PeerAddress(record.peer_id, tuple(record.multiaddrs)))
        return sorted(found, key=lambda peer: peer.peer_id)

    async def find(self, run_id: str, stage: int) -> list[pb.PeerRecord]:
        now_ms = self._now_ms()
        found = []
        for peer_id, signed in await self._entries(record_key(run_id, stage)):
            try:
                record = check_record(signed, run_id=run_id, stage=stage, peer_id=peer_id, now_ms=now_ms)
            except HocketError as error:
                logger.info("a record of stage %d is left out: %s", stage, error)
                continue
            if record.expires_ms > now_ms:
                found.append(record)
        return found

    async def find_coordinator(self, run_id: str) -> list[Whereabouts]:
        now_ms = self._now_ms()
        found = []
        for name, signed in await self._entries(whereabouts_key(run_id)):
            try:
                record = check_whereabouts(signed, run_id=run_id, now_ms=now_ms)
            except HocketError as error:
                logger.info("a coordinator's record is left out: %s", error)
                continue
            if record.expires_ms > now_ms and name == entry_name(record):
                found.append(record)
        return found

    async def _entries(self, key: str) -> list[tuple[str, pb.Signed]]:
        """What the DHT holds under a key, by name: unchecked, but readable. PEER_SILENT."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._joined.wait()
                entry = await self._node.get(key, latest=True)
        except TimeoutError as error:
            raise HocketError(Code.PEER_SILENT, f"the DHT gave no records within {ANSWER_S:g} s") from error
        entries = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        found = []
        for name, (data, _) in sorted(entries.items()):
            try:
                found.append((name, pb.Signed.FromString(data)))
            except DecodeError as error:
                logger.info("a record of %s is left out: %s", name, error)
        return found

    async def close(self) -> None:
        """Leave. The carrier stops the daemon after this."""
        _leave(self._node)


async def _take_part(
    daemon: Daemon, reached: Sequence[PeerAddress], validator: RecordValidator, *, node_id: DHTID | None = None
) -> DHTNode:
    """A node of our own beside those of the peers `reached`.

    Raises:
        RuntimeError: there are some, and none of them answers.
        HocketError: CARRIER_FAILED when the daemon does not take the node's handlers; one that died would never answer.
    """
    try:
        async with asyncio.timeout(JOIN_S):
            node = await DHTNode.create(
                p2p=daemon.p2p,
                node_id=node_id,
                initial_peers=[f"/p2p/{peer.peer_id}" for peer in reached],
                record_validator=validator,
                cache_locally=False,  # a cached stage would hide who came since
                cache_nearest=0,
                cache_on_store=False,
                strict=False,
            )
    except (TimeoutError, P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
        raise HocketError(Code.CARRIER_FAILED, f"the daemon does not take part in the DHT ({error!r})") from error
    node.protocol.storage.maxsize = MAX_KEYS
    return node


def _leave(node: DHTNode) -> None:
    node.is_alive = False
    if node.cache_refresh_task is not None:
        node.cache_refresh_task.cancel()
