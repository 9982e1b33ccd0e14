"""The directory in hivemind's DHT, run inside our own event loop over the carrier's daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgpack
from google.protobuf.message import DecodeError
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from swarm.carrier import PeerAddress
from swarm.daemon import Daemon, parse_peer_id
from swarm.records import MAX_RECORD_BYTES, MAX_STAGES, Directory, check_announcement, check_record, record_key, wall_clock_ms

logger = logging.getLogger(__name__)

ANSWER_S = 20.0
JOIN_S = 60.0
REJOIN_S = 5.0
MAX_KEYS = 4096
EXPIRY_SLACK_S = 0.001  # a double holds milliseconds since the epoch, but not exactly


class PeerRecordValidator(RecordValidatorBase):
    """Lets only good peer records into the DHT: what we are asked to store, and what we are given.

    Args:
        run_id: of the only run whose records are taken; empty: of any run.
    """

    def __init__(self, run_id: str, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._run_id = run_id
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
        peer_id, data = msgpack.unpackb(record.subkey), msgpack.unpackb(record.value)
        if not isinstance(peer_id, str) or not isinstance(data, bytes):
            raise ValueError("neither a peer id nor a signed record")
        signed = pb.Signed.FromString(data)
        header = pb.SignedHeader.FromString(signed.header)
        if self._run_id and header.run_id != self._run_id:
            raise ValueError("of another run")
        if header.stage >= MAX_STAGES or DHTID.generate(record_key(header.run_id, header.stage)).to_bytes() != record.key:
            raise ValueError("under another key than that of its run and stage")
        found = check_record(signed, run_id=header.run_id, stage=header.stage, peer_id=peer_id, now_ms=self._now_ms())
        if record.expiration_time > found.expires_ms / 1000 + EXPIRY_SLACK_S:
            raise ValueError("stored for longer than it says")


class DhtDirectory(Directory):
    """See `Directory`. Make it with `join`."""

    def __init__(
        self, node: DHTNode, daemon: Daemon, bootstrap: Sequence[PeerAddress], run_id: str, now_ms: Callable[[], int]
    ) -> None:
        self._node = node
        self._daemon = daemon
        self._bootstrap = list(bootstrap)
        self._run_id = run_id
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
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> DhtDirectory:
        """Take part in the DHT of the bootstrap peers, or begin one of our own if there are none.

        Args:
            bootstrap: all of them; each announcement makes us known to them again.
            reached: those that the daemon is connected to.

        Raises:
            HocketError: BOOTSTRAP_UNREACHABLE if none of them answers as a DHT node.
        """
        try:
            node = await _take_part(daemon, reached, run_id, now_ms)
        except RuntimeError as error:
            raise HocketError(Code.BOOTSTRAP_UNREACHABLE, "the bootstrap peers answer, but not as nodes of the DHT") from error
        return cls(node, daemon, bootstrap, run_id, now_ms)

    def suspend(self) -> None:
        """The daemon died: whoever asks waits for `rejoin`."""
        self._joined.clear()

    async def rejoin(self, daemon: Daemon, reached: Sequence[PeerAddress]) -> None:
        """Go on over a daemon that took the place of one that died: as the same node, with the records that it held.

        Peers that do not answer are no error: announcements make us known to the bootstrap peers again. CARRIER_FAILED.
        """
        old = self._node
        try:
            node = await _take_part(daemon, reached, self._run_id, self._now_ms, node_id=old.node_id)
        except RuntimeError:
            logger.warning("the peers that were dialled again do not answer as nodes of the DHT")
            node = await _take_part(daemon, (), self._run_id, self._now_ms, node_id=old.node_id)
        node.protocol.storage = old.protocol.storage
        _leave(old)
        self._node, self._daemon = node, daemon
        self._joined.set()

    async def announce(self, record: pb.Signed, run_id: str, stage: int, peer_id: str, expires_ms: int) -> None:
        check_announcement(record, run_id, stage, peer_id, expires_ms, self._now_ms())
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._joined.wait()
                await asyncio.gather(*map(self._meet_again, self._bootstrap))
                stored = await self._node.store(
                    record_key(run_id, stage), record.SerializeToString(), expires_ms / 1000, subkey=peer_id
                )
        except TimeoutError as error:
            raise HocketError(Code.PEER_SILENT, f"the DHT took no record within {ANSWER_S:g} s") from error
        if not stored:
            logger.warning("the DHT did not take our record of stage %d: it holds one that expires later", stage)

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

    async def find(self, run_id: str, stage: int) -> list[pb.PeerRecord]:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._joined.wait()
                entry = await self._node.get(record_key(run_id, stage), latest=True)
        except TimeoutError as error:
            raise HocketError(Code.PEER_SILENT, f"the DHT gave no records within {ANSWER_S:g} s") from error
        now_ms = self._now_ms()
        found = []
        entries = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        for peer_id, (data, _) in sorted(entries.items()):
            try:
                record = check_record(pb.Signed.FromString(data), run_id=run_id, stage=stage, peer_id=peer_id, now_ms=now_ms)
            except (HocketError, DecodeError) as error:
                logger.info("a record of stage %d is left out: %s", stage, error)
                continue
            if record.expires_ms > now_ms:
                found.append(record)
        return found

    async def close(self) -> None:
        """Leave. The carrier stops the daemon after this."""
        _leave(self._node)


async def _take_part(
    daemon: Daemon, reached: Sequence[PeerAddress], run_id: str, now_ms: Callable[[], int], *, node_id: DHTID | None = None
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
                record_validator=PeerRecordValidator(run_id, now_ms),
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
