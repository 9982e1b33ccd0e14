"""Waiting for one of several tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def first_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the first of `tasks` to end, stop the others, and pass its fault on."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
