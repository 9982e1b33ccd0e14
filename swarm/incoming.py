"""The fetches of this process that are under way: what others may be told of them, and the waiting for their blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from swarm.block_plan import FetchPlan


class Incoming:
    """Running fetches. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._plans: list[FetchPlan] = []
        self._news = asyncio.Event()

    @contextmanager
    def running(self, plan: FetchPlan) -> Iterator[None]:
        """Have a fetch known to others while it runs."""
        self._plans.append(plan)
        try:
            yield
        finally:
            self._plans.remove(plan)
            self.tell()

    def tell(self) -> None:
        """A block has come, or a fetch has ended."""
        self._news.set()
        self._news = asyncio.Event()

    def fetching(self, cid: str, root: str = "") -> bool:
        """Whether a block is on its way to us, or is the root of a file that we are fetching.

        Args:
            root: of the file that the asker fetches; if we do too, a block of it may not be known here yet.
        """
        return any(plan.root == cid or _on_its_way(plan, cid, root) for plan in self._plans)

    def coming(self, cid: str) -> bool:
        """Whether somebody who has it is asked for a block now."""
        return any(plan.coming(cid) for plan in self._plans)

    def in_use(self, cid: str) -> bool:
        """Whether a block belongs to a file that we are fetching, be it there or not. From any thread."""
        return any(plan.knows(cid) for plan in list(self._plans))

    def awaiting(self, cids: Sequence[str], root: str = "") -> bool:
        """Whether one of these blocks, of the file `root`, is on its way to us."""
        return any(_on_its_way(plan, cid, root) for cid in cids for plan in self._plans)

    def asked_by(self, peer: str, cids: Sequence[str]) -> None:
        """A peer asks for these blocks: it is fetching the files whose root is among them."""
        for plan in self._plans:
            if plan.root in cids:
                plan.met(peer, has_root=False, fetching=True)

    async def wait(self, cids: Sequence[str], root: str, has: Callable[[str], bool], timeout_s: float) -> None:
        """Wait until one of these blocks of a file is there, as `has` says, or none is on its way any more, or time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.awaiting(cids, root) and not any(map(has, cids)):
                    await self._news.wait()
        except TimeoutError:
            pass  # the answer says that they are still on their way


def _on_its_way(plan: FetchPlan, cid: str, root: str) -> bool:
    return plan.may_await(cid) if plan.root == root else plan.awaits(cid)
