"""Blocks that are free to be asked for, by whose turn they are. A decider; a change costs the same however large the file."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from swarm.turns import Turns


class WantedBlocks:
    """The wanted blocks of one fetch.

    Args:
        turns: the fellows; when they change, all turns are found anew.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._turn: dict[str, str | None] = {}
        self._by_turn: dict[str | None, dict[str, None]] = {}
        self._lacking: dict[str, set[str]] = {}  # by block: who said that it has not got it
        self._promised: dict[str, str] = {}  # by block: the fellow that has asked for it already
        self._revision = turns.revision

    def __len__(self) -> int:
        return len(self._turn)

    def __iter__(self) -> Iterator[str]:
        return iter(self._turn)

    def add(self, cid: str) -> None:
        """A block is free to be asked for; after those that are already."""
        self.discard(cid)
        turn = self._whose(cid)
        self._turn[cid] = turn
        self._by_turn.setdefault(turn, {})[cid] = None

    def discard(self, cid: str) -> None:
        """A block is asked for, or there."""
        if cid in self._turn:
            del self._by_turn[self._turn.pop(cid)][cid]

    def lacking(self, cid: str) -> Collection[str]:
        """Who said that it has not got a block, nor is fetching it."""
        return self._lacking.get(cid, ())

    def lacks(self, provider: str, cid: str) -> None:
        """`provider` has not got a block, nor is it fetching it."""
        self._lacking.setdefault(cid, set()).add(provider)
        self._again(cid)

    def promised(self, cid: str, peer: str | None) -> None:
        """A fellow has asked for a block already, so that the turn is its own whatever the ranks; None: nobody has any more."""
        if peer is None:
            self._promised.pop(cid, None)
        else:
            self._promised[cid] = peer
        self._again(cid)

    def of(self, turn: str | None) -> Collection[str]:
        """The blocks whose turn is a fellow's, or our own (None), in the order in which they were added."""
        if self._revision != self._turns.revision:
            self._revision = self._turns.revision
            wanted = list(self._turn)
            self._turn.clear()
            self._by_turn.clear()
            for cid in wanted:
                self.add(cid)
        return self._by_turn.get(turn, {}).keys()

    def _again(self, cid: str) -> None:
        if cid in self._turn:
            self.add(cid)

    def _whose(self, cid: str) -> str | None:
        lacking = self.lacking(cid)
        promised = self._promised.get(cid)
        if promised is not None and promised in self._turns.fellows and promised not in lacking:
            return promised
        return self._turns.holder(cid, lacking)
