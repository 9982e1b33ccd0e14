"""Backups of keys: one text file, sealed under a passphrase.

The passphrase is stretched by scrypt (RFC 7914) with 64 MiB of memory, and the keys are sealed by ChaCha20-Poly1305 (RFC 8439)
with everything else in the file as associated data, so that no part of it can be changed unseen.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from common.errors import Code, HocketError

FORMAT = "hocket-key-backup/1"
MAX_BYTES = 256 << 10
# 2^16 * 128 * 8 bytes of memory. A file that asks for more than the bounds is not opened: it would only keep us busy.
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 16, 8, 1
_MOST_N, _MOST_R, _MOST_P = 1 << 20, 16, 4
_SALT_BYTES, _NONCE_BYTES = 16, 12


def _invalid(reason: str) -> HocketError:
    return HocketError(Code.IDENTITY_UNREADABLE, f"the backup {reason}", remedy="check the file and the passphrase")


def seal_keys(files: Mapping[str, bytes], passphrase: str, about: Mapping[str, str]) -> bytes:
    """A backup of key files.

    Args:
        files: content by name. about: what anybody may read in the backup, such as the member id.
    """
    head: dict[str, Any] = {
        "format": FORMAT,
        "about": dict(about),
        "scrypt": {"n": SCRYPT_N, "r": SCRYPT_R, "p": SCRYPT_P, "salt": secrets.token_hex(_SALT_BYTES)},
        "nonce": secrets.token_hex(_NONCE_BYTES),
    }
    inside = json.dumps({name: base64.b64encode(data).decode("ascii") for name, data in files.items()}).encode()
    sealed = ChaCha20Poly1305(_stretched(passphrase, head)).encrypt(bytes.fromhex(head["nonce"]), inside, _canonical(head))
    return json.dumps({**head, "sealed": base64.b64encode(sealed).decode("ascii")}, indent=1, sort_keys=True).encode() + b"\n"


def open_backup(data: bytes, passphrase: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """The key files in a backup, by name, and what it says of itself.

    Raises:
        HocketError: IDENTITY_UNREADABLE for what is no backup, is damaged, or was sealed under another passphrase.
    """
    if len(data) > MAX_BYTES:
        raise _invalid("is too large")
    try:
        head = json.loads(data)
        sealed = base64.b64decode(head.pop("sealed"), validate=True)
        if head.keys() != {"format", "about", "scrypt", "nonce"} or head["format"] != FORMAT:
            raise _invalid(f"is not in the form {FORMAT}")
        about = {str(name): str(value) for name, value in head["about"].items()}
        inside = ChaCha20Poly1305(_stretched(passphrase, head)).decrypt(bytes.fromhex(head["nonce"]), sealed, _canonical(head))
        files = {str(name): base64.b64decode(text, validate=True) for name, text in json.loads(inside).items()}
    except InvalidTag as error:
        raise _invalid("does not open: another passphrase, or damaged") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error) as error:
        raise _invalid("cannot be read") from error
    return files, about


def _stretched(passphrase: str, head: Mapping[str, Any]) -> bytes:
    n, r, p = (head["scrypt"][name] for name in ("n", "r", "p"))
    fits = all(isinstance(one, int) for one in (n, r, p)) and 2 <= n <= _MOST_N and 0 < r <= _MOST_R and 0 < p <= _MOST_P
    if not fits or n & (n - 1):
        raise _invalid("asks for more work than any of ours")
    return Scrypt(salt=bytes.fromhex(head["scrypt"]["salt"]), length=32, n=n, r=r, p=p).derive(passphrase.encode())


def _canonical(head: Mapping[str, Any]) -> bytes:
    return json.dumps(head, separators=(",", ":"), sort_keys=True).encode()
