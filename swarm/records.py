"""Peer records: where the members of a stage are. Signed by the member, short-lived, kept in the DHT.

The roster says who serves a stage; a record says only where. Under the key of (run, stage) each peer has one entry, named by
its peer id: a serialized `Signed` with method "peer_record" around a `PeerRecord`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, member_id
from protocol.messages import make_signed, open_signed

METHOD = "peer_record"
MAX_LIFE_MS = 60_000
MAX_MULTIADDRS = 16
MAX_MULTIADDR_CHARACTERS = 256
MAX_RECORD_BYTES = 8192
MAX_STAGES = 1024

Record = TypeVar("Record", pb.PeerRecord, pb.CoordinatorRecord)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def record_key(run_id: str, stage: int) -> str:
    """The DHT key under which the peers of a stage are found."""
    return f"hocket/peers/1/{stage}/{run_id}"


def open_record(
    signed: pb.Signed, kind: type[Record], *, method: str, run_id: str, life_ms: int, now_ms: int
) -> tuple[pb.SignedHeader, Record]:
    """The record inside, whose size and signature were checked; what it says is not.

    Args:
        life_ms: that a record of this kind has at most; clocks may differ by as much besides.

    Raises:
        HocketError: SIGNATURE_INVALID with the reason.
    """
    if signed.ByteSize() > MAX_RECORD_BYTES:
        raise refused(method, f"{signed.ByteSize()} bytes long")
    header, payload = open_signed(
        signed, method=method, run_id=run_id, receiver="", now_ms=now_ms, nonces=None, window_ms=2 * life_ms
    )
    try:
        record = kind.FromString(payload)
    except DecodeError as error:
        raise refused(method, "it cannot be read") from error
    return header, record


def refused(method: str, why: str) -> HocketError:
    """The error for a record that is not believed."""
    return HocketError(Code.SIGNATURE_INVALID, f"{method.replace('_', ' ')}: {why}")


def make_record(
    key: MemberKey,
    *,
    run_id: str,
    stage: int,
    peer_id: str,
    multiaddrs: Sequence[str],
    version_cid: str,
    throughput: float,
    now_ms: int,
    life_ms: int = MAX_LIFE_MS,
) -> pb.Signed:
    """A signed record of ours.

    Args:
        multiaddrs: each ending in `/p2p/<peer_id>`; the first 16 are taken.
        version_cid: manifest CID of the version held; empty if none.
        throughput: frames per second.
        life_ms: until it expires, at most a minute.
    """
    record = pb.PeerRecord(
        member_id=key.member_id,
        peer_id=peer_id,
        multiaddrs=list(multiaddrs)[:MAX_MULTIADDRS],
        version_cid=version_cid,
        throughput=throughput,
        expires_ms=now_ms + life_ms,
        stage=stage,
    )
    return make_signed(key, method=METHOD, payload=record, run_id=run_id, receiver="", stage=stage, now_ms=now_ms)


def check_record(signed: pb.Signed, *, run_id: str, stage: int, peer_id: str, now_ms: int) -> pb.PeerRecord:
    """The record inside, if everything about it holds. Whether its member is on the roster is the caller's question.

    Expiry is left to the reader: a record that runs out between two looks is old, not false.

    Raises:
        HocketError: SIGNATURE_INVALID with the reason.
    """
    header, record = open_record(signed, pb.PeerRecord, method=METHOD, run_id=run_id, life_ms=MAX_LIFE_MS, now_ms=now_ms)
    if record.member_id != member_id(header.public_key):
        raise refused(METHOD, "it was signed by another member")
    if not record.peer_id or record.peer_id != peer_id:
        raise refused(METHOD, f"it is of peer {record.peer_id[:60]!r}, stored under {peer_id[:60]!r}")
    if not record.stage == header.stage == stage:
        raise refused(METHOD, "it is of another stage")
    if not header.time_ms < record.expires_ms <= header.time_ms + MAX_LIFE_MS:
        raise refused(METHOD, "it lives longer than a minute")
    if len(record.multiaddrs) > MAX_MULTIADDRS:
        raise refused(METHOD, f"{len(record.multiaddrs)} addresses")
    for address in record.multiaddrs:
        if len(address) > MAX_MULTIADDR_CHARACTERS or not address.endswith(f"/p2p/{peer_id}"):
            raise refused(METHOD, f"{address[:80]!r} is no address of its peer")
    if not 0 <= record.throughput < float("inf"):
        raise refused(METHOD, "its throughput is no number of frames")
    return record


def check_announcement(record: pb.Signed, run_id: str, stage: int, peer_id: str, expires_ms: int, now_ms: int) -> None:
    """SIGNATURE_INVALID unless the record is good now and is what the announcement says."""
    found = check_record(record, run_id=run_id, stage=stage, peer_id=peer_id, now_ms=now_ms)
    if found.expires_ms != expires_ms:
        raise refused(METHOD, "it expires at another time than announced")
