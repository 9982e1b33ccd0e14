"""What to ask whom for next while a file is fetched. A decider: no clock, socket or disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.errors import Code, HocketError
from protocol import content
from swarm.turns import Turns
from swarm.wanted import WantedBlocks


@dataclass(frozen=True)
class _Expected:
    """What a parent says of a block: bytes of the file below it (None for the root), and how deep it lies."""

    size: int | None
    depth: int


class FetchPlan:
    """The state of one fetch: blocks known of but not yet there, and what is known of each provider.

    A block is fresh (not looked for on disk yet), wanted (free to be asked for), taken, or there.

    A provider is a holder of the file, an origin, which is asked only for what nobody else has, or a fellow, which fetches the
    file too (see `swarm.turns`). A fellow that had a part of it when it was met is asked for any block, as a holder is.

    Args:
        root: CID of the file.
        providers: peer ids of holders, the preferred first. origins: likewise.
        max_bytes: of the file.
        turns: the fellows; by default there are none.
    """

    def __init__(
        self, root: str, providers: Sequence[str], *, max_bytes: int, origins: Sequence[str] = (), turns: Turns | None = None
    ) -> None:
        content.parse_cid(root)
        self.root = root
        self.turns = turns if turns is not None else Turns()
        self._max_bytes = max_bytes
        self._expected: dict[str, _Expected] = {root: _Expected(None, 0)}
        self._fresh: list[str] = [root]
        self._wanted = WantedBlocks(self.turns)
        self._there: set[str] = set()
        self._nodes_awaited = {root} if _is_node(root) else set()
        self._there_bytes = 0
        self._providers = list(dict.fromkeys(providers))
        self._origins = [origin for origin in dict.fromkeys(origins) if origin not in self._providers]
        self._asked: set[str] = set()  # at somebody who has the file
        self._failures: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._liars: list[str] = []

    @property
    def finished(self) -> bool:
        return len(self._there) == len(self._expected)

    @property
    def wanted(self) -> int:
        """How many blocks are free to be asked for."""
        return len(self._wanted)

    @property
    def providers(self) -> list[str]:
        """Those still asked, the preferred first: holders, fellows that had a part of the file, origins."""
        return [*self._providers, *(peer for peer in self.turns.running if peer not in self._providers), *self._origins]

    @property
    def origins(self) -> list[str]:
        return list(self._origins)

    def knows(self, cid: str) -> bool:
        """Whether this is a block of the file, as far as that is known yet."""
        return cid in self._expected

    def may_await(self, cid: str) -> bool:
        """Whether this is a block of the file that is not there yet, or may turn out to be one."""
        return self.awaits(cid) or (cid not in self._expected and bool(self._nodes_awaited))

    def awaits(self, cid: str) -> bool:
        """Whether this is a block of the file that is not there yet."""
        return cid in self._expected and cid not in self._there

    def coming(self, cid: str) -> bool:
        """Whether somebody who has the file is asked for this block now."""
        return cid in self._asked

    def met(self, peer: str, *, has_root: bool, fetching: bool, coming: bool = False) -> None:
        """What a peer says when it is asked for the file: it has it, or is fetching it too, or neither.

        Args:
            coming: it has asked for the root already, so that the root's turn is the peer's, whatever their ranks.
        """
        if fetching:
            self.turns.joined(peer, running=has_root)
            if coming:
                self._wanted.promised(self.root, peer)
        elif has_root and peer not in self._providers and peer not in self._origins:
            self._providers.append(peer)

    def take_fresh(self, max_blocks: int) -> list[str]:
        """Blocks to be looked for on disk. Each must be given back by `arrived` or `put_back`."""
        taken, self._fresh = self._fresh[:max_blocks], self._fresh[max_blocks:]
        return taken

    def take(self, provider: str, *, max_blocks: int, max_bytes: int) -> list[str]:
        """Blocks to ask `provider` for, none that it is known to lack; each must be given back by `arrived`, `lacks`, `put_back`.

        Args:
            max_bytes: of all blocks together, as far as their sizes are known; one block is given in any case.
        """
        taken = self._take((cid for cid in self._wanted.of(None) if self._may(provider, cid)), max_blocks, max_bytes)
        self._asked.update(taken)
        return taken

    def take_awaited(self, fellow: str, *, max_blocks: int, max_bytes: int) -> list[str]:
        """Blocks that `fellow` is to bring first, in its order; like `take`."""
        return self._take(self.turns.first_of(fellow, self._wanted.of(fellow), max_blocks), max_blocks, max_bytes)

    def _may(self, provider: str, cid: str) -> bool:
        """Whether a block whose turn is ours is to be asked for at a provider now."""
        lacking = self._wanted.lacking(cid)
        if provider in lacking:
            return False
        if provider in self._providers or provider in self.turns.running:
            return True
        others = [*self._providers, *self.turns.running]
        if provider not in self._origins:  # a fellow that has only begun: better than nobody
            others += self._origins
        return all(other in lacking for other in others)

    def _take(self, cids: Iterable[str], max_blocks: int, max_bytes: int) -> list[str]:
        taken: list[str] = []
        room = max_bytes
        for cid in cids:
            if len(taken) == max_blocks or room <= 0:
                break
            room -= min(self._expected[cid].size or content.MAX_BLOCK_BYTES, content.MAX_BLOCK_BYTES)
            taken.append(cid)
        for cid in taken:
            self._wanted.discard(cid)
        return taken

    def put_back(self, cids: Sequence[str]) -> None:
        """These were not found or not answered: others may be asked for them."""
        self._asked.difference_update(cids)
        for cid in cids:
            self._wanted.add(cid)

    def still_fetching(self, cid: str, *, coming: bool) -> None:
        """A fellow that is to bring this block has not got it yet.

        Args:
            coming: it has asked for it. Where it has not, what it promised is void, so that no two wait for each other.
        """
        if not coming:
            self._wanted.promised(cid, None)
        self.put_back([cid])

    def lacks(self, provider: str, cid: str) -> None:
        """`provider` says that it has not got this block, nor is fetching it: it is not asked for it again."""
        self._wanted.lacks(provider, cid)
        self.put_back([cid])

    def failed(self, provider: str, reason: str, *, lied: bool, max_failures: int) -> bool:
        """Count a failed request; True if `provider` is dropped for it now.

        A holder or origin is dropped at its `max_failures`th failure, or at its first lie; a fellow at its first failure.
        """
        self._failures[provider] += 1
        self._reasons[provider] = reason
        was_fellow = self.turns.left(provider)
        ranks = [ranks for ranks in (self._providers, self._origins) if provider in ranks]
        if ranks and not (lied or self._failures[provider] >= max_failures):
            return False
        for one in ranks:
            one.remove(provider)
        if lied and (ranks or was_fellow):
            self._liars.append(provider)
        return bool(ranks) or was_fellow

    def arrived(self, cid: str, data: bytes) -> None:
        """A block that matches its CID is there.

        Raises:
            HocketError: BLOCK_DAMAGED if it does not fit what its parent says, or the tree is too deep;
                MESSAGE_TOO_LARGE if the file, or its blocks, are larger than allowed.
        """
        expected = self._expected[cid]
        links = content.links(cid, data)
        size = sum(link.size for link in links) if links else len(data)
        if expected.size is not None and size != expected.size:
            raise HocketError(Code.BLOCK_DAMAGED, f"{cid} holds {size} bytes of its file where its parent says {expected.size}")
        if size > self._max_bytes:
            raise HocketError(Code.MESSAGE_TOO_LARGE, f"file {self.root} of {size} bytes, at most {self._max_bytes}")
        self._there.add(cid)
        self._asked.discard(cid)
        self._nodes_awaited.discard(cid)
        self._there_bytes += len(data)
        if self._there_bytes > self._max_bytes + self._max_bytes // 64 + content.MAX_BLOCK_BYTES:
            raise HocketError(Code.MESSAGE_TOO_LARGE, f"the blocks of file {self.root} say little in many bytes")
        if links and expected.depth == content.MAX_DEPTH:
            raise HocketError(Code.BLOCK_DAMAGED, f"the tree of {self.root} is deeper than {content.MAX_DEPTH} levels")
        new: list[str] = []
        for link in links:
            known = self._expected.get(link.cid)
            if known is None:
                self._expected[link.cid] = _Expected(link.size, expected.depth + 1)
                if _is_node(link.cid):
                    self._nodes_awaited.add(link.cid)
                new.append(link.cid)
            elif known.size not in (None, link.size):
                raise HocketError(Code.BLOCK_DAMAGED, f"{link.cid} is said to hold {known.size} and {link.size} bytes")
        self._fresh += self.turns.in_our_order(new)

    def fault(self) -> HocketError:
        """Why the fetch cannot go on, once no provider can be asked for anything."""
        missing = next(iter(self._wanted), self.root)
        reasons = "; ".join(f"{provider}: {reason}" for provider, reason in self._reasons.items())
        code = Code.BLOCK_DAMAGED if self._liars else Code.BLOCK_NOT_FOUND
        return HocketError(code, f"{missing}, of file {self.root}" + (f" ({reasons})" if reasons else ""))


def _is_node(cid: str) -> bool:
    """Whether a block may link to others."""
    return content.parse_cid(cid).codec != content.RAW
