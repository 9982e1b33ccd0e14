"""The ticket: one line of text with all that a volunteer needs to join a run.

`hocket1:` and, in lower-case base32 without padding, a serialized `Ticket` message followed by the first four bytes of
the SHA-256 over the prefix and that message. The checksum catches slips of copying, not malice: a ticket is trusted
because of who handed it over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import check_public_key

PREFIX = "hocket1:"
MAX_TICKET_CHARACTERS = 8192
WAITS_FOR_TICKET = "everything is loaded; waiting for a ticket on standard input"
"""What a worker logs that was started with `--ticket-from -`, when it begins to wait."""
_CHECKSUM_BYTES = 4


def _invalid(reason: str) -> HocketError:
    return HocketError(Code.TICKET_INVALID, reason)


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(PREFIX.encode("ascii") + data).digest()[:_CHECKSUM_BYTES]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[IPv6]:port`; TICKET_INVALID for anything else."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _invalid(f"the address {address[:80]!r} needs brackets around its IPv6 part")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536) or any(c.isspace() for c in host):
        raise _invalid(f"{address[:80]!r} is not host:port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine by its name or number alone (nothing is looked up)."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Ticket:
    """What a worker knows of a run before it joins.

    Args:
        run_id: name of the run.
        coordinator_addresses: `host:port` of the gRPC server, tried in order; at least one.
        coordinator_key: raw Ed25519 key, 32 bytes.
        tls_sha256: SHA-256 of the server's certificate in DER, 32 bytes; empty means plain text, on loopback only.
        bootstrap_multiaddrs: libp2p addresses, each ending in `/p2p/PEER_ID`.
        invitation: secret of a run that is not open to all.

    Raises:
        HocketError: TICKET_INVALID with the field that does not fit.
    """

    run_id: str
    coordinator_addresses: tuple[str, ...]
    coordinator_key: bytes
    tls_sha256: bytes
    bootstrap_multiaddrs: tuple[str, ...]
    invitation: str = ""

    def __post_init__(self) -> None:
        if not self.run_id or not self.run_id.isprintable():
            raise _invalid("it names no run")
        if not self.coordinator_addresses:
            raise _invalid("it has no coordinator address")
        hosts = [split_address(address)[0] for address in self.coordinator_addresses]
        try:
            check_public_key(self.coordinator_key)
        except HocketError as error:
            raise _invalid(f"the coordinator's key: {error.detail}") from error
        if len(self.tls_sha256) not in (0, 32):
            raise _invalid(f"a TLS fingerprint of {len(self.tls_sha256)} bytes")
        if not self.tls_sha256 and not all(map(is_loopback, hosts)):
            raise _invalid("it has no TLS fingerprint, which only loopback addresses may do without")
        for multiaddr in self.bootstrap_multiaddrs:
            if not multiaddr.startswith("/") or "/p2p/" not in multiaddr:
                raise _invalid(f"{multiaddr[:80]!r} is not a peer's multiaddress")

    def encode(self) -> str:
        """The ticket as one line."""
        data = self._message().SerializeToString(deterministic=True)
        line = PREFIX + base64.b32encode(data + _checksum(data)).decode("ascii").rstrip("=").lower()
        if len(line) > MAX_TICKET_CHARACTERS:
            raise _invalid(f"it has {len(line)} characters; at most {MAX_TICKET_CHARACTERS} are allowed")
        return line

    @classmethod
    def decode(cls, line: str) -> Ticket:
        """Read a ticket; white space around it and line breaks in it, with what surrounds them, do no harm.

        Raises:
            HocketError: TICKET_INVALID with the reason.
        """
        if len(line) > 2 * MAX_TICKET_CHARACTERS:
            raise _invalid("it is too long")
        text = "".join(part.strip() for part in line.strip().splitlines())
        if not text.startswith(PREFIX):
            raise _invalid(f"it does not begin with {PREFIX}")
        body = text.removeprefix(PREFIX)
        if len(text) > MAX_TICKET_CHARACTERS:
            raise _invalid("it is too long")
        try:
            data = base64.b32decode(body.upper().encode("ascii") + b"=" * (-len(body) % 8))
        except (binascii.Error, UnicodeEncodeError) as error:
            raise _invalid("a character is missing or does not belong there") from error
        data, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if not data or checksum != _checksum(data):
            raise _invalid("its checksum does not fit")
        try:
            message = pb.Ticket.FromString(data)
        except DecodeError as error:
            raise _invalid("its content cannot be read") from error
        ticket = cls(
            run_id=message.run_id,
            coordinator_addresses=tuple(message.coordinator_addresses),
            coordinator_key=message.coordinator_key,
            tls_sha256=message.tls_sha256,
            bootstrap_multiaddrs=tuple(message.bootstrap_multiaddrs),
            invitation=message.invitation,
        )
        if ticket.encode() != text:
            raise _invalid("it is not in its canonical form, or from a newer version")
        return ticket

    def _message(self) -> pb.Ticket:
        return pb.Ticket(
            run_id=self.run_id,
            coordinator_addresses=self.coordinator_addresses,
            coordinator_key=self.coordinator_key,
            tls_sha256=self.tls_sha256,
            bootstrap_multiaddrs=self.bootstrap_multiaddrs,
            invitation=self.invitation,
        )
