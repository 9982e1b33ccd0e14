"""How often one may call: token buckets for each address and each member. Pure: time comes in.

A bucket holds up to `burst` calls and fills at `rate` calls a second. A call is counted twice: before anything is checked, by
its address, and after its signature fits, by its member. A member that calls from the address that it joined from has a bucket
of its own there, so that strangers, and other members behind the same address, cannot use up what is its own.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rate:
    """Args: per_s: calls a second in the long run. burst: calls at once, of one that was quiet before."""

    per_s: float
    burst: float


class Buckets:
    """One bucket a key, in bounded memory.

    A bucket that is full again is forgotten, as it says nothing. When more keys than `max_keys` are in use, further ones share
    one bucket: a flood of addresses makes newcomers wait, and frees none of those that are known to call too often.

    Args:
        rate: of each bucket.
    """

    def __init__(self, rate: Rate, *, max_keys: int = 16_384) -> None:
        if rate.per_s <= 0 or rate.burst < 1 or max_keys < 1:
            raise ValueError("a bucket fills, holds a call, and has a key")
        self.rate = rate
        self._max_keys = max_keys
        # (tokens, at which time), the one used longest ago first; times never fall from entry to entry.
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, key: str, now: float, cost: float = 1.0) -> float:
        """Take `cost` calls from the bucket: 0.0; where they are not there, none, and after how many seconds they will be.

        Args:
            key: "" is the bucket that keys without room share.
            now: seconds; never less than at an earlier call.
            cost: at most the burst.
        """
        self._forget(now)
        if key not in self._held and len(self._held) >= self._max_keys:
            key = ""
        tokens = self._tokens(key, now)
        lacking = cost - tokens
        if lacking > 0:
            return lacking / self.rate.per_s
        self._held[key] = (tokens - cost, now)
        self._held.move_to_end(key)
        return 0.0

    def charge(self, key: str, now: float, cost: float) -> None:
        """Take `cost` calls whether they are there or not: what a refused call had cost. At most the bucket is empty then."""
        self._forget(now)
        if key not in self._held and len(self._held) >= self._max_keys:
            key = ""
        self._held[key] = (max(self._tokens(key, now) - cost, 0.0), now)
        self._held.move_to_end(key)

    def _tokens(self, key: str, now: float) -> float:
        tokens, at = self._held.get(key, (self.rate.burst, now))
        return min(tokens + (now - at) * self.rate.per_s, self.rate.burst)

    def _forget(self, now: float) -> None:
        while self._held:
            key, (tokens, at) = next(iter(self._held.items()))
            if tokens + (now - at) * self.rate.per_s < self.rate.burst:
                return
            del self._held[key]


# A member watches once a heartbeat, and once at each change of the run: some tens in a second when many members come at once.
_OF_ADDRESS = Rate(100.0, 2000.0)
_OF_MEMBER = Rate(40.0, 800.0)
_JOINS_OF_ADDRESS = Rate(1.0, 200.0)
_JOINS_OF_MEMBER = Rate(0.2, 20.0)
_STATUS_OF_ADDRESS = Rate(20.0, 200.0)
_STREAMS_OF_ADDRESS = Rate(50.0, 1000.0)
REFUSED_COST = 10.0


@dataclass(frozen=True)
class Limits:
    """All buckets of a door.

    Args:
        address: calls of an address, but for those of members that joined from it, which `home` counts.
        joins, status, streams: those kinds of calls of an address, besides.
        member: calls of a member whose signatures fit; member_joins: its joins, besides.
    """

    address: Buckets = field(default_factory=lambda: Buckets(_OF_ADDRESS))
    home: Buckets = field(default_factory=lambda: Buckets(_OF_MEMBER))
    joins: Buckets = field(default_factory=lambda: Buckets(_JOINS_OF_ADDRESS))
    status: Buckets = field(default_factory=lambda: Buckets(_STATUS_OF_ADDRESS))
    streams: Buckets = field(default_factory=lambda: Buckets(_STREAMS_OF_ADDRESS))
    member: Buckets = field(default_factory=lambda: Buckets(_OF_MEMBER))
    member_joins: Buckets = field(default_factory=lambda: Buckets(_JOINS_OF_MEMBER))

    def of_address(self, address: str, claims: str, now: float) -> float:
        """0.0: the call may be looked at; else after how many seconds it may.

        Args:
            address: as of `source`. claims: the member that the call says to be of, where that joined from there; else empty.
        """
        return self.home.take(f"{address} {claims}", now) if claims else self.address.take(address, now)

    def of_member(self, member: str, method: str, now: float) -> float:
        """0.0: the member's call may be acted upon; else after how many seconds it may."""
        wait_s = self.member.take(member, now)
        if wait_s == 0.0 and method == "join":
            wait_s = self.member_joins.take(member, now)
        return wait_s

    def refused(self, address: str, claims: str, now: float) -> None:
        """A call was refused for what was in it: such calls are dearer than those that are answered."""
        if claims:
            self.home.charge(f"{address} {claims}", now, REFUSED_COST)
        else:
            self.address.charge(address, now, REFUSED_COST)


def source(address: str) -> str:
    """Whose bucket an address uses: an IPv4 address its own; an IPv6 one that of its /64, all of which one host may have."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
