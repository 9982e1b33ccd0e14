"""The loop that carries out a `FetchPlan`: what is on disk first, then requests, some at a time, until the file is whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from common.errors import Code, HocketError
from swarm.block_plan import FetchPlan
from swarm.blocks import BlockStore

Answer = TypeVar("Answer")
Whom = TypeVar("Whom")
FRESH_AT_A_TIME = 64

Requests = Iterator[tuple[Whom, list[str], Coroutine[Any, Any, Answer]]]


def no_pause() -> float | None:
    """Nothing but the end of a request gives more to do."""
    return None


async def carry_out(
    plan: FetchPlan,
    store: BlockStore,
    ask: Callable[[Sequence[Whom]], Requests[Whom, Answer]],
    settle: Callable[[Whom, list[str], asyncio.Task[Answer]], None],
    pause: Callable[[], float | None] = no_pause,
) -> None:
    """Bring all blocks of a plan's file.

    Args:
        ask: what to ask for next, as (provider, CIDs, request); gets the provider of each request under way, and sees those that
            it has just begun.
        settle: tells the plan how a request of a provider for CIDs ended, or raises what ends the fetch.
        pause: in how many seconds `ask` may have more to ask for without any request having ended; None: never.

    Raises:
        HocketError: what `settle` and the plan raise; DISK_FULL, STATE_UNREADABLE.
    """
    running: dict[asyncio.Task[Answer], tuple[Whom, list[str]]] = {}
    try:
        await take_from_store(plan, store)
        while not plan.finished:
            asked = [provider for provider, _ in running.values()]
            for provider, cids, request in ask(asked):
                running[asyncio.create_task(request)] = (provider, cids)
                asked.append(provider)
            pause_s = pause()
            if not running:
                if pause_s is None:
                    raise plan.fault()
                await asyncio.sleep(pause_s)
                continue
            done, _ = await asyncio.wait(running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                settle(*running.pop(task), task)
            await take_from_store(plan, store)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def take_from_store(plan: FetchPlan, store: BlockStore) -> None:
    """Let the plan know the blocks that are on disk; what they link to is looked for as well."""

    def read(cids: list[str]) -> dict[str, bytes]:
        found = {}
        for cid in cids:
            try:
                found[cid] = store.get(cid)
            except HocketError as error:
                if error.code not in (Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED):
                    raise
        return found

    while fresh := plan.take_fresh(FRESH_AT_A_TIME):
        found = await asyncio.to_thread(read, fresh)
        plan.put_back([cid for cid in fresh if cid not in found])
        for cid, data in found.items():
            plan.arrived(cid, data)
