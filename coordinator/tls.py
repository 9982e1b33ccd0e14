"""The coordinator's TLS certificate: self-signed, made once, pinned by the ticket."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import Code, HocketError
from common.files import atomic_write

VALID_FOR = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class Certificate:
    """PEM of the certificate and of its private key, and what the ticket pins."""

    pem: bytes
    key_pem: bytes
    sha256: bytes


def load_or_create(folder: Path, *hosts: str) -> Certificate:
    """Read `tls.pem` and `tls.key` in `folder`, or make them: ECDSA P-256, for `localhost` and the hosts by which it is
    reached: gRPC complains of every caller that asks for another name. An earlier certificate stays, as the ticket pins it.

    Raises:
        HocketError: IDENTITY_UNREADABLE for a damaged file; DISK_FULL, STATE_UNREADABLE.
    """
    certificate_path, key_path = folder / "tls.pem", folder / "tls.key"
    if not (certificate_path.exists() and key_path.exists()):
        pem, key_pem = _make(hosts)
        # The key first: a kill in between leaves a key without certificate, and both are made anew.
        atomic_write(key_path, key_pem, mode=0o600)
        atomic_write(certificate_path, pem)
    try:
        pem, key_pem = certificate_path.read_bytes(), key_path.read_bytes()
        if os.stat(key_path).st_mode & 0o077:
            raise HocketError(Code.IDENTITY_UNREADABLE, f"{key_path} can be read by others", remedy=f"run chmod 600 {key_path}")
        certificate = x509.load_pem_x509_certificate(pem)
        private = serialization.load_pem_private_key(key_pem, password=None)
    except OSError as error:
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{key_path} ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{certificate_path} or {key_path} is damaged") from error
    if certificate.public_key() != private.public_key():
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{certificate_path} does not belong to {key_path}")
    return Certificate(pem, key_pem, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).digest())


def _make(hosts: Sequence[str]) -> tuple[bytes, bytes]:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hocket coordinator")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if host != "localhost":
                names.append(x509.DNSName(host))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        # A day back, for members whose clocks are behind.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(private, hashes.SHA256())
    )
    key_pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key_pem
