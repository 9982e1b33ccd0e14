"""Where the coordinator is: a record that it signs, kept in the DHT for members whose ticket names an address it has left.

Under the key of the run each signer has one entry, named by its member id: a serialized `Signed` with method
"coordinator_record" around a `CoordinatorRecord`. Only the entry of the key that the ticket pins counts; the newest one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey, member_id
from protocol.messages import make_signed
from protocol.ticket import split_address
from swarm.records import MAX_MULTIADDR_CHARACTERS, MAX_MULTIADDRS, open_record, refused

METHOD = "coordinator_record"
LIFE_MS = 120_000
MAX_ADDRESSES = 8
MAX_ADDRESS_CHARACTERS = 256


@dataclass(frozen=True)
class Whereabouts:
    """A record that was checked.

    Args:
        addresses: `host:port` of the gRPC server, in the order in which to try them.
        bootstrap_multiaddrs: of its bootstrap peer.
        time_ms, expires_ms: when it was signed and when it runs out, milliseconds since the epoch.
        signer: raw public key.
    """

    addresses: tuple[str, ...]
    bootstrap_multiaddrs: tuple[str, ...]
    time_ms: int
    expires_ms: int
    signer: bytes


def whereabouts_key(run_id: str) -> str:
    """The DHT key under which the coordinator of a run is found."""
    return f"hocket/coordinator/1/{run_id}"


def make_whereabouts(
    key: MemberKey, *, run_id: str, addresses: Sequence[str], bootstrap_multiaddrs: Sequence[str], now_ms: int
) -> pb.Signed:
    """The coordinator's own record, good for two minutes; of too many addresses the first are taken."""
    record = pb.CoordinatorRecord(
        addresses=list(addresses)[:MAX_ADDRESSES],
        bootstrap_multiaddrs=list(bootstrap_multiaddrs)[:MAX_MULTIADDRS],
        expires_ms=now_ms + LIFE_MS,
    )
    return make_signed(key, method=METHOD, payload=record, run_id=run_id, receiver="", now_ms=now_ms)


def check_whereabouts(signed: pb.Signed, *, run_id: str, now_ms: int) -> Whereabouts:
    """What a record says, if everything about it holds. Whether its signer is the run's coordinator is the caller's question.

    Expiry is left to the reader, as with peer records.

    Raises:
        HocketError: SIGNATURE_INVALID with the reason.
    """
    header, record = open_record(signed, pb.CoordinatorRecord, method=METHOD, run_id=run_id, life_ms=LIFE_MS, now_ms=now_ms)
    if not header.time_ms < record.expires_ms <= header.time_ms + LIFE_MS:
        raise refused(METHOD, "it lives longer than two minutes")
    if not 0 < len(record.addresses) <= MAX_ADDRESSES or len(record.bootstrap_multiaddrs) > MAX_MULTIADDRS:
        raise refused(METHOD, f"{len(record.addresses)} addresses and {len(record.bootstrap_multiaddrs)} bootstrap peers")
    for address in record.addresses:
        if len(address) > MAX_ADDRESS_CHARACTERS:
            raise refused(METHOD, "an address is too long")
        try:
            split_address(address)
        except HocketError as error:
            raise refused(METHOD, error.detail) from error
    for multiaddr in record.bootstrap_multiaddrs:
        if len(multiaddr) > MAX_MULTIADDR_CHARACTERS or not multiaddr.startswith("/") or "/p2p/" not in multiaddr:
            raise refused(METHOD, f"{multiaddr[:80]!r} is not a peer's multiaddress")
    return Whereabouts(
        tuple(record.addresses), tuple(record.bootstrap_multiaddrs), header.time_ms, record.expires_ms, header.public_key
    )


def newest_of(signer: bytes, records: Sequence[Whereabouts], *, now_ms: int, not_before_ms: int = 0) -> Whereabouts | None:
    """The record to follow: signed by `signer`, not run out, the newest, and not older than one that was followed before.

    Args:
        signer: the coordinator's raw public key, of the ticket.
        not_before_ms: time of the newest record seen so far: an older one is a replay.
    """
    good = [one for one in records if one.signer == signer and one.expires_ms > now_ms and one.time_ms >= not_before_ms]
    return max(good, key=lambda one: one.time_ms, default=None)


def entry_name(record: Whereabouts) -> str:
    """The name of a record's entry under the key of the run."""
    return member_id(record.signer)
