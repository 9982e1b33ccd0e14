"""The fetches of this process that are under way: what others may be told of them, and the waiting for their blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
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
        return any(plan.root == cid for plan in self._plans) or self._awaits(cid, root)

    def coming(self, cid: str) -> bool:
        """Whether somebody who has it is asked for a block now."""
        return any(plan.coming(cid) for plan in self._plans)

    def in_use(self, cid: str) -> bool:
        """Whether a block belongs to a file that we are fetching, be it there or not. From any thread."""
        return any(plan.knows(cid) for plan in list(self._plans))

    def _awaits(self, cid: str, root: str) -> bool:
        return any(_on_its_way(plan, cid, root) for plan in self._plans)

    def asked_by(self, peer: str, cids: Sequence[str]) -> None:
        """A peer asks for these blocks: it is fetching the files whose root is among them."""
        for plan in self._plans:
            if plan.root in cids:
                plan.met(peer, has_root=False, fetching=True)

    async def wait(self, cids: Sequence[str], root: str, timeout_s: float) -> None:
        """Wait until one of these blocks of a file that are on their way is so no longer, because it has come or is given up.

        Returns at once where none is on its way, and in any case once the time is up.
        """
        on_their_way = [cid for cid in cids if self._awaits(cid, root)]
        try:
            async with asyncio.timeout(timeout_s):
                while on_their_way and all(self._awaits(cid, root) for cid in on_their_way):
                    await self._news.wait()
        except TimeoutError:
            pass  # the answer says that they are still on their way


def _on_its_way(plan: FetchPlan, cid: str, root: str) -> bool:
    return plan.may_await(cid) if plan.root == root else plan.awaits(cid)
