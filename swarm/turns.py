"""Who brings a block from where it is, and who gets it from whoever brought it. A decider: `now_s` comes in.

Peers that fetch the same file at the same time rank one another for each block by a hash of (peer id, CID), so all of them agree
without a word. The first in rank asks those that have the file; the others ask it, and wait a while. Since everyone only ever
waits for a peer that ranks before itself, no two wait for each other.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Container, Iterable
from dataclasses import dataclass

PATIENCE_S = 5.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


def rank(peer: str, cid: str) -> bytes:
    """Where a peer stands for a block: the least is first."""
    return hashlib.sha256(f"{peer}/{cid}".encode()).digest()


@dataclass
class _Fellow:
    running: bool
    waited_since_s: float | None = None
    ask_again_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S


class Turns:
    """One fetch among others of the same file.

    Args:
        own: our peer id. candidates: peers that may be fetching the file too; nobody else becomes a fellow.
    """

    def __init__(self, own: str = "", candidates: Iterable[str] = ()) -> None:
        self._own = own
        self._candidates = set(candidates) - {own}
        self._fellows: dict[str, _Fellow] = {}
        self._before_us: dict[str, list[str]] = {}
        self._ranks: dict[tuple[str, str], bytes] = {}
        self._slowest_s = 0.0
        self.revision = 0  # rises whenever a fellow comes or goes

    @property
    def candidates(self) -> list[str]:
        """Peers that may be, or become, fellows."""
        return sorted(self._candidates)

    @property
    def fellows(self) -> list[str]:
        return list(self._fellows)

    @property
    def running(self) -> list[str]:
        """Fellows that had a part of the file when they were met."""
        return [peer for peer, fellow in self._fellows.items() if fellow.running]

    def joined(self, peer: str, *, running: bool) -> None:
        """A peer fetches this file too. One that has failed us in this fetch, or is no candidate, is not taken up.

        Args:
            running: it has a part of the file already.
        """
        if peer in self._candidates and peer not in self._fellows:
            self._fellows[peer] = _Fellow(running)
            self._changed()

    def left(self, peer: str) -> bool:
        """A fellow is counted on no more in this fetch; False if it was none."""
        self._candidates.discard(peer)
        if self._fellows.pop(peer, None) is None:
            return False
        self._changed()
        return True

    def _changed(self) -> None:
        self._before_us.clear()
        self.revision += 1

    def _rank(self, peer: str, cid: str) -> bytes:
        known = self._ranks.get((peer, cid))
        if known is None:
            known = self._ranks[peer, cid] = rank(peer, cid)
        return known

    def holder(self, cid: str, lacking: Container[str]) -> str | None:
        """The fellow to get a block from; None: the turn is ours.

        Args:
            lacking: fellows that said that they are not fetching it.
        """
        if not self._fellows:
            return None
        if cid not in self._before_us:
            ours = self._rank(self._own, cid)
            ranked = sorted((self._rank(peer, cid), peer) for peer in self._fellows)
            self._before_us[cid] = [peer for place, peer in ranked if place < ours]
        return next((peer for peer in self._before_us[cid] if peer not in lacking), None)

    def in_our_order(self, cids: Iterable[str]) -> list[str]:
        """Blocks in the order in which we bring those whose turn is ours: another one than that of other peers."""
        return sorted(cids, key=lambda cid: self._rank(self._own, cid)) if self._own else list(cids)

    def first_of(self, fellow: str, cids: Iterable[str], count: int) -> list[str]:
        """Of blocks whose turn is a fellow's, those that it brings first."""
        return heapq.nsmallest(count, cids, key=lambda cid: self._rank(fellow, cid))

    # ---- waiting ------------------------------------------------------------------------------------------------------

    def free(self, now_s: float) -> list[str]:
        """Fellows that may be asked now for blocks that they are bringing."""
        return [peer for peer, fellow in self._fellows.items() if fellow.ask_again_s <= now_s]

    def asked(self, peer: str, now_s: float) -> None:
        """A fellow is asked for blocks whose turn is its own."""
        fellow = self._fellows.get(peer)
        if fellow is not None and fellow.waited_since_s is None:
            fellow.waited_since_s = now_s

    def brought(self, peer: str, now_s: float) -> None:
        """A fellow has given us a block."""
        fellow = self._fellows.get(peer)
        if fellow is not None:
            fellow.waited_since_s, fellow.pause_s, fellow.ask_again_s = None, FIRST_PAUSE_S, now_s

    def still_fetching(self, peer: str, now_s: float, took_s: float) -> None:
        """A fellow had nothing yet and said so after `took_s`; one that does not wait with that is asked less and less often."""
        fellow = self._fellows.get(peer)
        if fellow is not None and took_s < fellow.pause_s:
            fellow.ask_again_s = now_s + fellow.pause_s
            fellow.pause_s = min(LONGEST_PAUSE_S, 2 * fellow.pause_s)

    def took(self, seconds: float) -> None:
        """A request of ours to a holder of the file took so long: others will not be quicker."""
        self._slowest_s = max(self._slowest_s, seconds)

    def give_up(self, now_s: float) -> list[str]:
        """Leave fellows that have brought nothing for too long; who they were."""
        tired = [peer for peer, fellow in self._fellows.items() if self._patient_until_s(fellow) <= now_s]
        for peer in tired:
            self.left(peer)
        return tired

    def look_again_s(self, now_s: float) -> float | None:
        """In how many seconds a fellow may be asked again, or is given up; None: nothing changes by itself."""
        at = [self._patient_until_s(fellow) for fellow in self._fellows.values() if fellow.waited_since_s is not None]
        at += [fellow.ask_again_s for fellow in self._fellows.values() if fellow.ask_again_s > now_s]
        return max(0.0, min(at) - now_s) if at else None

    def _patient_until_s(self, fellow: _Fellow) -> float:
        if fellow.waited_since_s is None:
            return float("inf")
        return fellow.waited_since_s + PATIENCE_S + 4 * self._slowest_s
