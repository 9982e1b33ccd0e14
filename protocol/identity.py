"""Who is who: the member key (Ed25519), the libp2p peer key (RSA), and the proof that one belongs to the other.

A member is known by its Ed25519 public key; every signature that matters is made with it. The libp2p carrier has a
key of its own, from which its peer id follows. When a member joins, the peer key signs the member key, so that nobody
can claim another's peer id.

Sources: RFC 8032 (Ed25519); the libp2p peer id specification (key protobuf, multihash, base58).
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from common.errors import Code, HocketError
from common.files import atomic_write
from protocol.wire import WireError, iter_fields, put_bytes_field, put_uint_field

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
PEER_PROOF_PREFIX = b"hocket-peer-proof:"

FIELD_PRIME = 2**255 - 19
CURVE_D = (-121665 * pow(121666, -1, FIELD_PRIME)) % FIELD_PRIME
# The y coordinates of the eight points whose order divides 8; the sign bit makes no other point small.
_Y_OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
SMALL_ORDER_Y = frozenset({0, 1, FIELD_PRIME - 1, _Y_OF_ORDER_8, FIELD_PRIME - _Y_OF_ORDER_8})

_KEY_TYPE_RSA = 0
_MAX_KEY_FILE_BYTES = 16_384
_MAX_PEER_PUBLIC_KEY_BYTES = 2048
_RSA_BITS = 2048
_RSA_BITS_ALLOWED = range(2048, 8193)
_MULTIHASH_SHA2_256 = b"\x12\x20"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def _refused(reason: str) -> HocketError:
    return HocketError(Code.SIGNATURE_INVALID, reason)


@functools.lru_cache(maxsize=4096)
def _public_key_fault(public: bytes) -> str:
    """Why `public` is no usable Ed25519 key; empty when it is one."""
    if len(public) != PUBLIC_KEY_BYTES:
        return f"a public key of {len(public)} bytes instead of {PUBLIC_KEY_BYTES}"
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= FIELD_PRIME:
        return "the public key is not in canonical form"
    if y in SMALL_ORDER_Y:
        return "the public key has small order"
    # x^2 = (y^2 - 1) / (d y^2 + 1) must be a square; numerator times denominator is one exactly when the quotient is.
    x_squared = (y * y - 1) * (CURVE_D * y * y + 1)
    if pow(x_squared, (FIELD_PRIME - 1) // 2, FIELD_PRIME) != 1:
        return "the public key is not a point of the curve"
    return ""


def check_public_key(public: bytes) -> None:
    """Refuse what is no Ed25519 public key, or one for which signatures can be made up.

    Raises:
        HocketError: SIGNATURE_INVALID for another length, y >= p, a point of small order, or no point at all.
    """
    fault = _public_key_fault(bytes(public))
    if fault:
        raise _refused(fault)


def member_id(public: bytes) -> str:
    """The name of a member: its 32 raw key bytes in lower-case base32 without padding (52 characters)."""
    if len(public) != PUBLIC_KEY_BYTES:
        raise _refused(f"a public key of {len(public)} bytes instead of {PUBLIC_KEY_BYTES}")
    return base64.b32encode(public).decode("ascii").rstrip("=").lower()


def public_from_member_id(name: str) -> bytes:
    """The raw public key of a member id.

    Raises:
        HocketError: SIGNATURE_INVALID when it is not the one way to write a usable key.
    """
    try:
        public = base64.b32decode(name.upper().encode("ascii") + b"====")
    except (binascii.Error, UnicodeEncodeError) as error:
        raise _refused(f"{name[:60]!r} is not a member id") from error
    if len(public) != PUBLIC_KEY_BYTES or member_id(public) != name:
        raise _refused(f"{name[:60]!r} is not a member id")
    check_public_key(public)
    return public


def verify(public: bytes, signature: bytes, data: bytes) -> None:
    """Check an Ed25519 signature over `data`.

    Raises:
        HocketError: SIGNATURE_INVALID for a refused key or a signature that does not fit.
    """
    check_public_key(public)
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except InvalidSignature as error:
        raise _refused(f"it was not made by member {member_id(public)[:12]}") from error


def _read_key_file(path: Path) -> bytes | None:
    """The bytes of a key file that only its owner can read; None when there is no file."""
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(_MAX_KEY_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{path} ({error.strerror})") from error
    if mode & 0o077:
        raise HocketError(
            Code.IDENTITY_UNREADABLE, f"{path} can be read by others", remedy=f"run chmod 600 {path}, or make a new key"
        )
    if len(data) > _MAX_KEY_FILE_BYTES:
        raise HocketError(Code.IDENTITY_UNREADABLE, f"{path} is too large for a key")
    return data


class MemberKey:
    """An Ed25519 key pair: what a member, the coordinator included, signs with."""

    def __init__(self, private: ed25519.Ed25519PrivateKey) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()
        self.member_id: str = member_id(self.public)

    @classmethod
    def generate(cls) -> MemberKey:
        """A fresh key from the system's randomness."""
        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> MemberKey:
        """The key that follows from 32 seed bytes (RFC 8032's private key)."""
        return cls(ed25519.Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load_or_create(cls, path: Path) -> MemberKey:
        """Read the key at `path` (PKCS #8 in PEM, mode 0600), or make one there.

        The owner of the state directory holds its lock, so two processes never make the key at once.

        Raises:
            HocketError: IDENTITY_UNREADABLE for a damaged file, another kind of key, or one that others can read.
        """
        data = _read_key_file(path)
        if data is None:
            key = cls.generate()
            pem = key._private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            atomic_write(path, pem, mode=0o600)
            return key
        return cls.from_pem(data, str(path))

    @classmethod
    def from_pem(cls, data: bytes, name: str) -> MemberKey:
        """The key in the content of a key file; `name` is used in errors. IDENTITY_UNREADABLE."""
        try:
            private = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise HocketError(Code.IDENTITY_UNREADABLE, f"{name} holds no private key in PEM") from error
        if not isinstance(private, ed25519.Ed25519PrivateKey):
            raise HocketError(Code.IDENTITY_UNREADABLE, f"{name} holds a key of another kind than Ed25519")
        return cls(private)

    def sign(self, data: bytes) -> bytes:
        """The 64-byte signature over `data`."""
        return self._private.sign(data)

    def derive(self, purpose: bytes) -> bytes:
        """32 secret bytes for one purpose, the same whenever they are asked for; they tell nothing of the key (RFC 5869)."""
        kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=b"hocket-derived-1", info=purpose)
        return kdf.derive(self._private.private_bytes_raw())


def base58_encode(data: bytes) -> str:
    """Base58 with Bitcoin's alphabet, as libp2p writes peer ids."""
    number = int.from_bytes(data, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits


def peer_id_of(public_key: bytes) -> str:
    """The peer id of a libp2p public key: base58 of the sha2-256 multihash of the key's protobuf.

    Keys of at most 42 bytes have another form of peer id (the identity multihash); RSA keys are always longer.
    """
    return base58_encode(_MULTIHASH_SHA2_256 + hashlib.sha256(public_key).digest())


def _key_protobuf(data: bytes) -> bytes:
    return put_uint_field(1, _KEY_TYPE_RSA) + put_bytes_field(2, data)


def _parse_key_protobuf(data: bytes) -> bytes:
    """The DER bytes in a libp2p key protobuf, public or private; WireError unless it is an RSA key in canonical form."""
    fields = list(iter_fields(data))
    if [number for number, _ in fields] != [1, 2] or fields[0][1] != _KEY_TYPE_RSA or not isinstance(fields[1][1], bytes):
        raise WireError("not an RSA key in libp2p's form")
    return fields[1][1]


class PeerKey:
    """The RSA key of the libp2p carrier, in the file that its daemon reads."""

    def __init__(self, private: rsa.RSAPrivateKey) -> None:
        self._private = private
        spki = private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.public_key_bytes: bytes = _key_protobuf(spki)
        self.peer_id: str = peer_id_of(self.public_key_bytes)

    @classmethod
    def generate(cls) -> PeerKey:
        """A fresh 2048-bit key; takes some tenths of a second."""
        return cls(rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS))

    @classmethod
    def load_or_create(cls, path: Path) -> PeerKey:
        """Read the identity file at `path`, or make one: libp2p's private key protobuf around PKCS #1 in DER, mode 0600.

        Raises:
            HocketError: IDENTITY_UNREADABLE for a damaged file, another kind of key, or one that others can read.
        """
        data = _read_key_file(path)
        if data is None:
            key = cls.generate()
            der = key._private.private_bytes(
                serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
            atomic_write(path, _key_protobuf(der), mode=0o600)
            return key
        try:
            private = serialization.load_der_private_key(_parse_key_protobuf(data), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise HocketError(Code.IDENTITY_UNREADABLE, f"{path} is not a libp2p identity file") from error
        if not isinstance(private, rsa.RSAPrivateKey):
            raise HocketError(Code.IDENTITY_UNREADABLE, f"{path} holds a key of another kind than RSA")
        return cls(private)

    def sign(self, data: bytes) -> bytes:
        """An RSA signature over `data` (PKCS #1 v1.5 with SHA-256, libp2p's scheme)."""
        return self._private.sign(data, padding.PKCS1v15(), hashes.SHA256())

    def prove(self, member_public: bytes) -> bytes:
        """The proof, for `verify_peer_proof`, that the holder of this key speaks for the member."""
        return self.sign(PEER_PROOF_PREFIX + member_public)


def verify_peer_proof(peer_id: str, peer_public_key: bytes, signature: bytes, member_public: bytes) -> None:
    """Check that the holder of the libp2p key behind `peer_id` signed the member's public key.

    Args:
        peer_id: base58.
        peer_public_key: libp2p's public key protobuf.
        signature: over `hocket-peer-proof:` and the member's 32 raw key bytes.
        member_public: raw Ed25519 key.

    Raises:
        HocketError: SIGNATURE_INVALID with the reason.
    """
    check_public_key(member_public)
    if len(peer_public_key) > _MAX_PEER_PUBLIC_KEY_BYTES:
        raise _refused("the peer key is too long")
    if peer_id_of(peer_public_key) != peer_id:
        raise _refused("the peer key does not belong to the peer id")
    try:
        public = serialization.load_der_public_key(_parse_key_protobuf(peer_public_key))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _refused("the peer key cannot be read") from error
    if not isinstance(public, rsa.RSAPublicKey) or public.key_size not in _RSA_BITS_ALLOWED:
        raise _refused(f"the peer key is not RSA of {_RSA_BITS_ALLOWED.start} to {_RSA_BITS_ALLOWED.stop - 1} bits")
    try:
        public.verify(signature, PEER_PROOF_PREFIX + member_public, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature as error:
        raise _refused("the peer key did not sign this member") from error
