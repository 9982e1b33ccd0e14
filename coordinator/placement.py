"""What keeps a stage out of one hand: random placement, and caps for each operator and each address range. Pure.

A newcomer cannot choose its stage, since what decides among the stages that would take it is drawn from a secret of the
coordinator and the newcomer's key. And whoever brings many members gets few places on each stage, since members of one operator
or of one range of addresses count as one hand.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

IPV4_PREFIX = 24
IPV6_PREFIX = 48


def lot(secret: bytes, member: str) -> int:
    """What is drawn for a member: a number of 64 bits that only the holder of `secret` can foresee.

    It stays the same, so that nobody gets another place by leaving and joining again.
    """
    digest = hmac.digest(secret, member.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big")


def address_range(address: str) -> str:
    """The range that an address belongs to: its /24, or /48 of IPv6. Empty for what is no address of the public internet.

    A member that comes from a loopback or a private address is on the organiser's own network, or behind a proxy that hides where
    it is: its range says nothing about whose it is.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if not parsed.is_global:
        return ""
    prefix = IPV4_PREFIX if parsed.version == 4 else IPV6_PREFIX
    return str(ipaddress.ip_network((parsed, prefix), strict=False))


def same_hand(operator: str) -> str:
    """An operator's name as it is compared: two spellings that differ by case or white space are one. Empty: not named."""
    return " ".join(operator.casefold().split())
