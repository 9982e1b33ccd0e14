"""Signed requests and replies: made, opened and protected against replay.

The signature covers a domain prefix and the serialized header; the header carries the payload's SHA-256. A receiver
checks, in this order: that the message is for it (method, run, receiver), its time, the key and the signature, the payload
digest, and last the nonce: what costs little comes first, and only messages that pass everything else are remembered.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterable

from google.protobuf.message import DecodeError, Message

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.identity import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, MemberKey, verify

SIGNED_PREFIX = b"hocket-signed-1:"
NONCE_BYTES = 16
WINDOW_MS = 60_000
MAX_HEADER_BYTES = 4096
LEAST_UPLINK_BYTES_PER_S = 64 << 10  # that a member must reach when it hands in a file; slower ones are given up

NonceRow = tuple[bytes, bytes, int]


def _refused(reason: str) -> HocketError:
    return HocketError(Code.SIGNATURE_INVALID, reason)


def new_nonce() -> bytes:
    """A nonce from the system's randomness."""
    return secrets.token_bytes(NONCE_BYTES)


def make_signed(
    key: MemberKey,
    *,
    method: str,
    payload: Message | bytes,
    run_id: str,
    receiver: str,
    round: int = 0,
    base_cid: str = "",
    stage: int = 0,
    now_ms: int,
    nonce: bytes | None = None,
) -> pb.Signed:
    """Sign `payload` for one receiver.

    Args:
        payload: the message named by `method`, or its serialized bytes.
        receiver: member id; empty for a record that anyone may read.
        now_ms: sender's clock, milliseconds since the epoch.
        nonce: 16 bytes; drawn from the system's randomness when None. An answer carries the nonce of its request.
    """
    data = payload if isinstance(payload, bytes) else payload.SerializeToString(deterministic=True)
    nonce = new_nonce() if nonce is None else nonce
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    header = pb.SignedHeader(
        method=method,
        run_id=run_id,
        round=round,
        base_cid=base_cid,
        stage=stage,
        payload_sha256=hashlib.sha256(data).digest(),
        receiver=receiver,
        nonce=nonce,
        time_ms=now_ms,
        public_key=key.public,
    ).SerializeToString(deterministic=True)
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"the header has {len(header)} bytes; at most {MAX_HEADER_BYTES} are allowed")
    return pb.Signed(header=header, payload=data, signature=key.sign(SIGNED_PREFIX + header))


def peek(signed: pb.Signed) -> pb.SignedHeader:
    """The header of a message of which nothing but the form was checked: it may be anybody's.

    Raises:
        HocketError: SIGNATURE_INVALID for what no sender of ours writes.
    """
    if len(signed.header) > MAX_HEADER_BYTES:
        raise _refused("the header is too long")
    try:
        header = pb.SignedHeader.FromString(signed.header)
    except DecodeError as error:
        raise _refused("the header cannot be read") from error
    for what, there, wanted in (
        ("public key", header.public_key, PUBLIC_KEY_BYTES),
        ("nonce", header.nonce, NONCE_BYTES),
        ("signature", signed.signature, SIGNATURE_BYTES),
    ):
        if len(there) != wanted:
            raise _refused(f"a {what} of {len(there)} bytes instead of {wanted}")
    return header


def signed_header(signed: pb.Signed) -> pb.SignedHeader:
    """The header of a message whose signature fits, and fits its payload: for whom, when and how often it was sent is not asked.

    Raises:
        HocketError: SIGNATURE_INVALID with the reason.
    """
    header = peek(signed)
    _check_signature(signed, header)
    return header


def _check_signature(signed: pb.Signed, header: pb.SignedHeader) -> None:
    verify(header.public_key, signed.signature, SIGNED_PREFIX + signed.header)
    if hashlib.sha256(signed.payload).digest() != header.payload_sha256:
        raise _refused("the payload is not the one that was signed")


def open_signed(
    signed: pb.Signed,
    *,
    method: str,
    run_id: str,
    receiver: str,
    now_ms: int,
    nonces: NonceWindow | None,
    window_ms: int = WINDOW_MS,
    request_nonce: bytes | None = None,
) -> tuple[pb.SignedHeader, bytes]:
    """Check a signed message and return its header and payload bytes.

    Whether the sender is a member, and whether round, base and stage fit, is the caller's to decide from the header.

    Args:
        receiver: what the header must name: the own member id, or empty for records that anyone may read.
        now_ms: receiver's clock, milliseconds since the epoch.
        nonces: remembers what was seen; None where a replay does no harm (records that only expire, answers to the own
            request).
        request_nonce: of an answer: the nonce of the request that it must answer, so that the answer to another one of the
            same caller does not pass for it.
        window_ms: by how much the sender's clock may differ, either way.

    Raises:
        HocketError: SIGNATURE_INVALID with the reason.
    """
    header = peek(signed)
    if header.method != method:
        raise _refused(f"signed for {header.method[:40]!r}, received as {method!r}")
    if header.run_id != run_id:
        raise _refused(f"signed for run {header.run_id[:40]!r}, received in {run_id!r}")
    if header.receiver != receiver:
        raise _refused("signed for another receiver")
    if abs(header.time_ms - now_ms) > window_ms:
        raise _refused(f"its time differs from ours by {(header.time_ms - now_ms) / 1000:+.0f} s; check both clocks")
    _check_signature(signed, header)
    if request_nonce is not None and header.nonce != request_nonce:
        raise _refused("it answers another request")
    if nonces is not None:
        nonces.check(header.public_key, header.nonce, header.time_ms, now_ms)
    return header, signed.payload


class _Seen:
    """The nonces of one key in order of arrival, and the time up to which everything counts as seen."""

    __slots__ = ("floor_ms", "newest_ms", "nonces")

    def __init__(self, floor_ms: int) -> None:
        self.nonces: OrderedDict[bytes, int] = OrderedDict()
        self.floor_ms = floor_ms
        self.newest_ms = floor_ms


class NonceWindow:
    """Remembers nonces for three windows in bounded memory, and never forgets one that could still be replayed.

    What has to make room raises a floor: of its key, or, when a whole key goes, of all keys not held. Messages at or
    below their floor are refused as possibly seen, so an overload narrows the window of the keys that cause it and opens
    nothing. The state is rows (public key, nonce, time in ms); a floor is a row with an empty nonce, the floor of all
    unknown keys one with an empty key too.

    Args:
        window_ms: of `open_signed`.
        max_per_key, max_keys, max_total: bounds on what is held.
    """

    def __init__(
        self, window_ms: int = WINDOW_MS, *, max_per_key: int = 16_384, max_keys: int = 4096, max_total: int = 262_144
    ) -> None:
        if min(window_ms, max_per_key, max_keys, max_total) < 1:
            raise ValueError("bounds of a nonce window are at least 1")
        self.window_ms = window_ms
        self._max_per_key = max_per_key
        self._max_keys = max_keys
        self._max_total = max_total
        self._keys: OrderedDict[bytes, _Seen] = OrderedDict()  # least recently used first
        self._total = 0
        self._unknown_floor_ms = -(2**63)

    def __len__(self) -> int:
        return self._total

    def check(self, public_key: bytes, nonce: bytes, time_ms: int, now_ms: int) -> None:
        """Remember the nonce of a message that passed every other check.

        Raises:
            HocketError: SIGNATURE_INVALID when it was seen, is outside the window, or may have been seen.
        """
        if abs(time_ms - now_ms) > self.window_ms:
            raise _refused("its time is outside the window")
        self._forget(now_ms)
        seen = self._keys.get(public_key)
        if seen is not None:
            self._trim(seen, now_ms - 3 * self.window_ms)
            if nonce in seen.nonces:
                raise _refused("the message was received before")
        if time_ms <= (self._unknown_floor_ms if seen is None else seen.floor_ms):
            raise _refused("the message may have been received before; too many arrived since")
        self._add(public_key, nonce, time_ms)

    def to_rows(self) -> list[NonceRow]:
        """The whole state, for a store."""
        rows: list[NonceRow] = [(b"", b"", self._unknown_floor_ms)]
        for public_key, seen in self._keys.items():
            rows.append((public_key, b"", seen.floor_ms))
            rows.extend((public_key, nonce, time_ms) for nonce, time_ms in seen.nonces.items())
        return rows

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[NonceRow],
        window_ms: int = WINDOW_MS,
        *,
        max_per_key: int = 16_384,
        max_keys: int = 4096,
        max_total: int = 262_144,
    ) -> NonceWindow:
        """The window that `to_rows` described; also from bare rows of accepted messages, in any order."""
        window = cls(window_ms, max_per_key=max_per_key, max_keys=max_keys, max_total=max_total)
        for public_key, nonce, time_ms in rows:
            if nonce:
                window._add(public_key, nonce, time_ms)
            elif public_key:
                seen = window._hold(public_key)
                seen.floor_ms = max(seen.floor_ms, time_ms)
                seen.newest_ms = max(seen.newest_ms, time_ms)
            else:
                window._unknown_floor_ms = max(window._unknown_floor_ms, time_ms)
        return window

    def _hold(self, public_key: bytes) -> _Seen:
        seen = self._keys.get(public_key)
        if seen is None:
            seen = self._keys[public_key] = _Seen(self._unknown_floor_ms)
            if len(self._keys) > self._max_keys:
                self._drop_key(next(iter(self._keys)), still_fresh=True)
        else:
            self._keys.move_to_end(public_key)
        return seen

    def _add(self, public_key: bytes, nonce: bytes, time_ms: int) -> None:
        if len(public_key) != PUBLIC_KEY_BYTES:
            raise ValueError(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
        seen = self._hold(public_key)
        if nonce not in seen.nonces:
            self._total += 1
        seen.nonces[nonce] = time_ms
        seen.newest_ms = max(seen.newest_ms, time_ms)
        if len(seen.nonces) > self._max_per_key:
            self._drop_oldest(seen)
        elif self._total > self._max_total:
            self._drop_oldest(max(self._keys.values(), key=lambda held: len(held.nonces)))

    def _drop_oldest(self, seen: _Seen) -> None:
        _, time_ms = seen.nonces.popitem(last=False)
        seen.floor_ms = max(seen.floor_ms, time_ms)
        self._total -= 1

    def _drop_key(self, public_key: bytes, *, still_fresh: bool) -> None:
        seen = self._keys.pop(public_key)
        self._total -= len(seen.nonces)
        if still_fresh:
            self._unknown_floor_ms = max(self._unknown_floor_ms, seen.newest_ms)

    def _forget(self, now_ms: int) -> None:
        """Drop what is older than three windows: keys unused for so long, and the front of the key used longest ago."""
        horizon = now_ms - 3 * self.window_ms
        while self._keys:
            public_key, seen = next(iter(self._keys.items()))
            self._trim(seen, horizon)
            if seen.newest_ms >= horizon:
                return
            self._drop_key(public_key, still_fresh=False)

    def _trim(self, seen: _Seen, horizon_ms: int) -> None:
        while seen.nonces and next(iter(seen.nonces.values())) < horizon_ms:
            seen.nonces.popitem(last=False)
            self._total -= 1
