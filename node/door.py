"""The way to the coordinator's gRPC door: TLS with the certificate that the ticket pins, or plain text on loopback.

The certificate is its own authority. It is fetched by a bare TLS handshake, compared with the ticket's SHA-256, and only
then made the one root that the gRPC channel trusts; so the channel cannot reach anybody who lacks its private key.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Sequence

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from common.errors import Code, HocketError
from protocol.ticket import Ticket, is_loopback, split_address

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 4 << 20
OPEN_TIMEOUT_S = 10.0

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.min_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


async def fetch_certificate(host: str, port: int, *, timeout_s: float = OPEN_TIMEOUT_S) -> bytes:
    """The DER certificate that a server shows; nothing about it is trusted yet.

    Raises:
        HocketError: COORDINATOR_UNREACHABLE.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError) as error:
        raise HocketError(Code.COORDINATOR_UNREACHABLE, f"{host}:{port} ({error or 'no answer'})") from error
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    if not shown:
        raise HocketError(Code.COORDINATOR_UNREACHABLE, f"{host}:{port} shows no certificate")
    return shown


def name_in(certificate: x509.Certificate) -> str:
    """A name that the certificate is made out to, for the channel's own name check."""
    try:
        names = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
        assert isinstance(names, x509.SubjectAlternativeName)
        dns = names.get_values_for_type(x509.DNSName)
        if dns:
            return dns[0]
        addresses = names.get_values_for_type(x509.IPAddress)
        if addresses:
            return str(addresses[0])
    except x509.ExtensionNotFound:
        pass
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(common[0].value) if common else "hocket"


async def _channel_to(address: str, tls_sha256: bytes) -> grpc.aio.Channel:
    host, port = split_address(address)
    if not tls_sha256:
        if not is_loopback(host):
            raise HocketError(Code.TICKET_INVALID, f"it has no TLS fingerprint, and {address} is not on this machine")
        logger.warning("the connection to the coordinator at %s is plain text: the ticket has no TLS fingerprint", address)
        channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
    else:
        der = await fetch_certificate(host, port)
        if hashlib.sha256(der).digest() != tls_sha256:
            raise HocketError(Code.COORDINATOR_KEY_MISMATCH, f"{address} shows a certificate other than the ticket's")
        certificate = x509.load_der_x509_certificate(der)
        credentials = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(der).encode())
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", name_in(certificate))]
        channel = grpc.aio.secure_channel(address, credentials, options=options)
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            await channel.channel_ready()
    except TimeoutError as error:
        await channel.close()
        raise HocketError(
            Code.COORDINATOR_UNREACHABLE, f"{address} does not open a gRPC channel in {OPEN_TIMEOUT_S:.0f} s"
        ) from error
    return channel


async def open_channel(ticket: Ticket, addresses: Sequence[str] | None = None) -> grpc.aio.Channel:
    """Open a channel to the first of the ticket's addresses that answers.

    Args:
        addresses: these instead of the ticket's; what the ticket pins, they must show too.

    Raises:
        HocketError: COORDINATOR_KEY_MISMATCH as soon as one address shows another certificate; TICKET_INVALID for plain
            text beyond this machine; COORDINATOR_UNREACHABLE when none answers.
    """
    unreachable: list[str] = []
    for candidate in ticket.coordinator_addresses if addresses is None else addresses:
        try:
            return await _channel_to(candidate, ticket.tls_sha256)
        except HocketError as error:
            if error.code is not Code.COORDINATOR_UNREACHABLE:
                raise
            unreachable.append(error.detail)
    raise HocketError(Code.COORDINATOR_UNREACHABLE, "; ".join(unreachable) or "no address is known")
