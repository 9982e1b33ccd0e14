"""How near peers are, by what their answers to block requests took. A decider: times come in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SMALL_BYTES = 64 << 10
NEW_SHARE = 0.3
SHUNNED_S = 30.0
LIAR_LEFT_OUT_S = 600.0
STALLED_LEFT_OUT_S = 120.0


@dataclass
class _Pace:
    round_trip_s: float | None = None
    seconds_a_byte: float | None = None
    shunned_until_s: float = 0.0
    left_out_until_s: float = 0.0


class Paces:
    """What is known of peers: the time of an answer without bulk, and the time that each byte adds to it."""

    def __init__(self) -> None:
        self._known: dict[str, _Pace] = {}

    def answered(self, peer: str, took_s: float, size_bytes: int) -> None:
        """An answer of `size_bytes` came `took_s` after its request. Small answers tell the round trip, large ones the rate."""
        pace = self._known.setdefault(peer, _Pace())
        pace.shunned_until_s = 0.0
        if size_bytes < SMALL_BYTES:
            pace.round_trip_s = _mixed(pace.round_trip_s, took_s)
        else:
            pace.seconds_a_byte = _mixed(pace.seconds_a_byte, max(0.0, took_s - (pace.round_trip_s or 0.0)) / size_bytes)

    def failed(self, peer: str, now_s: float, *, lied: bool = False) -> None:
        """A request failed: the peer comes last for half a minute; one that sent something false is left out for ten minutes."""
        pace = self._known.setdefault(peer, _Pace())
        pace.shunned_until_s = now_s + SHUNNED_S
        if lied:
            pace.left_out_until_s = now_s + LIAR_LEFT_OUT_S

    def stalled(self, peer: str, now_s: float) -> None:
        """A peer promised blocks and brought none in time: it is left out for two minutes."""
        pace = self._known.setdefault(peer, _Pace())
        pace.left_out_until_s = max(pace.left_out_until_s, now_s + STALLED_LEFT_OUT_S)

    def shunned(self, peer: str, now_s: float) -> bool:
        """Whether a peer failed of late."""
        pace = self._known.get(peer)
        return pace is not None and now_s < pace.shunned_until_s

    def left_out(self, peer: str, now_s: float) -> bool:
        """Whether a peer sent false blocks, or kept us waiting for nothing, of late: it is not asked at all."""
        pace = self._known.get(peer)
        return pace is not None and now_s < pace.left_out_until_s

    def expected_s(self, peer: str, size_bytes: int) -> float:
        """How long an answer with so many bytes should take; 0 for a peer that nothing is known of, so that it is tried."""
        pace = self._known.get(peer)
        if pace is None:
            return 0.0
        return (pace.round_trip_s or 0.0) + (pace.seconds_a_byte or 0.0) * size_bytes

    def nearest(self, peers: Iterable[str], now_s: float, *, size_bytes: int = 1 << 20) -> list[str]:
        """Peers by the time that `size_bytes` should take, the nearest first; those that failed of late come last."""
        return sorted(dict.fromkeys(peers), key=lambda peer: (self.shunned(peer, now_s), self.expected_s(peer, size_bytes)))


def _mixed(before: float | None, new: float) -> float:
    return new if before is None else before + NEW_SHARE * (new - before)
