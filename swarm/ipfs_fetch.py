"""Fetches a file by its CID from IPFS nodes and trustless gateways into the block store; every byte is checked here.

A gateway is asked for blocks and CAR streams only, never for a file as such, so it cannot pass off another one.

Source: the Trustless Gateway specification of IPFS (`application/vnd.ipld.raw`, `application/vnd.ipld.car`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from common.errors import Code, HocketError
from protocol import content
from protocol.car import CarReader
from swarm.block_plan import FetchPlan
from swarm.blocks import BlockStore
from swarm.fetch_loop import FRESH_AT_A_TIME, Requests, carry_out
from swarm.ipfs_http import Answer, Http

logger = logging.getLogger(__name__)

BLOCK_S = 60.0
CAR_S = 3600.0
MAX_REQUESTS = 4
MAX_FAILURES = 2
BATCH_BYTES = MAX_REQUESTS * content.MAX_BLOCK_BYTES
_NOT_THERE = (404, 410, 500, 502, 504)
_LIES = (Code.BLOCK_DAMAGED, Code.CID_INVALID, Code.MESSAGE_TOO_LARGE)
_OUR_FAULTS = (Code.DISK_FULL, Code.STATE_UNREADABLE)


class BlockSource(Protocol):
    """Where blocks come from: an `IpfsNode` or a `Gateway`."""

    address: str

    async def get_block(self, cid: str) -> bytes:
        """A block, checked; BLOCK_NOT_FOUND if it is not there."""

    def car(self, root: str) -> AsyncIterator[bytes]:
        """The blocks of a file as a CAR stream, unchecked."""


class Gateway:
    """A trustless gateway. Close it with `close`.

    Args:
        address: as `https://trustless-gateway.link`.
    """

    def __init__(self, address: str) -> None:
        self._http = Http(address)
        self.address = self._http.base

    async def close(self) -> None:
        await self._http.close()

    async def get_block(self, cid: str) -> bytes:
        """A block, checked.

        Raises:
            HocketError: BLOCK_NOT_FOUND, IPFS_UNREACHABLE, IPFS_REFUSED; BLOCK_DAMAGED or MESSAGE_TOO_LARGE if the gateway gives
                something else.
        """
        content.parse_cid(cid)
        headers = {"Accept": "application/vnd.ipld.raw"}
        try:
            async with (
                asyncio.timeout(BLOCK_S),
                self._http.asked("GET", f"/ipfs/{cid}", query={"format": "raw"}, headers=headers) as answer,
            ):
                await self._check(answer, cid)
                block = await answer.body(content.MAX_BLOCK_BYTES)
        except TimeoutError as error:
            raise HocketError(Code.BLOCK_NOT_FOUND, f"{cid} at {self.address} within {BLOCK_S:.0f} s") from error
        content.verify_block(cid, block)
        return block

    async def car(self, root: str) -> AsyncIterator[bytes]:
        """The blocks of a file as a CAR stream, in the order of the file, each once; unchecked. Errors as of `get_block`."""
        content.parse_cid(root)
        headers = {"Accept": "application/vnd.ipld.car; version=1; order=dfs; dups=n"}
        async with self._http.asked("GET", f"/ipfs/{root}", query={"format": "car"}, headers=headers) as answer:
            await self._check(answer, root)
            async for piece in answer.pieces(None):
                yield piece

    async def _check(self, answer: Answer, cid: str) -> None:
        if answer.status == 200:
            return
        complaint = await answer.complaint()
        if answer.status in _NOT_THERE:
            raise HocketError(Code.BLOCK_NOT_FOUND, f"{cid} at {self.address} ({complaint})")
        if answer.status in (429, 503):
            raise HocketError(Code.IPFS_UNREACHABLE, f"{self.address} ({complaint})")
        raise answer.refused(complaint)


class _NoProperFileError(Exception):
    """Checked blocks that form no file, or one that is too large: the fault of whoever made it, not of a source."""

    def __init__(self, fault: HocketError) -> None:
        super().__init__(fault)
        self.fault = fault


async def fetch_from_ipfs(store: BlockStore, root: str, sources: Sequence[BlockSource], *, max_bytes: int) -> None:
    """Bring all blocks of a file into `store`, going on from what is there already.

    If nothing of it is there, each source is first asked for the file as one stream; what streams did not bring is asked for
    block by block, from all sources at once. A source that sends anything but what it was asked for is left out at once.

    Args:
        sources: the preferred first.
        max_bytes: of the file: what its root declares is checked before anything more is fetched.

    Raises:
        HocketError: BLOCK_NOT_FOUND if no source left has a block; BLOCK_DAMAGED if the blocks form no proper file, or if one is
            missing after a source lied; MESSAGE_TOO_LARGE; CID_INVALID; DISK_FULL, STATE_UNREADABLE.
    """
    content.parse_cid(root)
    by_address = {source.address: source for source in sources}
    plan = FetchPlan(root, list(by_address), max_bytes=max_bytes)
    try:
        if not await asyncio.to_thread(store.has, root):
            for source in sources:
                if await _by_stream(plan, store, root, source, max_bytes):
                    break
    except _NoProperFileError as error:
        raise error.fault from error
    await _by_blocks(plan, store, by_address)


async def _by_stream(plan: FetchPlan, store: BlockStore, root: str, source: BlockSource, max_bytes: int) -> bool:
    """Ask a source for the whole file; True if all of it came. A source that fails, or lies, is marked in `plan`."""
    # What a stream may bring is decided by a plan of its own: a broken one leaves the rest for single blocks.
    own = FetchPlan(root, [source.address], max_bytes=max_bytes)
    try:
        async with asyncio.timeout(CAR_S):
            await _read_stream(own, store, source.car(root), max_bytes)
    except TimeoutError:
        logger.warning("%s sent no whole file within %.0f s", source.address, CAR_S)
    except HocketError as error:
        if error.code in _OUR_FAULTS:
            raise
        logger.info("%s did not send %s as one stream: %s", source.address, root, error)
        if error.code is not Code.BLOCK_NOT_FOUND:
            plan.failed(source.address, str(error), lied=error.code in _LIES, max_failures=MAX_FAILURES)
    return own.finished


async def _read_stream(plan: FetchPlan, store: BlockStore, pieces: AsyncIterator[bytes], max_bytes: int) -> None:
    """Take from a CAR stream what belongs to the file, as long as each block was named by one before it."""
    reader = CarReader()
    awaited = _awaited(plan)
    there: set[str] = set()
    repeated_bytes = 0
    async for piece in pieces:
        for cid, block in reader.feed(piece):
            if cid in there:  # some sources send a block as often as the file has it
                repeated_bytes += len(block)
            elif cid not in awaited:
                raise HocketError(Code.BLOCK_DAMAGED, f"{cid} is not of the file that was asked for")
            else:
                try:
                    plan.arrived(cid, block)
                except HocketError as error:
                    raise _NoProperFileError(error) from error
                await asyncio.to_thread(store.put, cid, block)
                awaited.discard(cid)
                there.add(cid)
                awaited |= _awaited(plan)
            if repeated_bytes > max_bytes:
                raise HocketError(Code.MESSAGE_TOO_LARGE, f"a stream of {plan.providers[0]} repeats itself")
    reader.finish()


def _awaited(plan: FetchPlan) -> set[str]:
    """The blocks that the plan has newly heard of."""
    found: set[str] = set()
    while fresh := plan.take_fresh(FRESH_AT_A_TIME):
        found.update(fresh)
    return found


async def _by_blocks(plan: FetchPlan, store: BlockStore, sources: dict[str, BlockSource]) -> None:
    async def bring(source: BlockSource, cid: str) -> bytes:
        block = await source.get_block(cid)
        await asyncio.to_thread(store.put, cid, block)
        return block

    def ask(asked: Sequence[str]) -> Requests[str, bytes]:
        for address in sorted(plan.providers, key=asked.count):
            free = max(0, MAX_REQUESTS - asked.count(address))
            for cid in plan.take(address, max_blocks=free, max_bytes=BATCH_BYTES):
                yield address, [cid], bring(sources[address], cid)

    def settle(address: str, cids: list[str], task: asyncio.Task[bytes]) -> None:
        (cid,) = cids
        fault = task.exception()
        if fault is None:
            plan.arrived(cid, task.result())
        else:
            _record_fault(plan, address, cid, fault)

    await carry_out(plan, store, ask, settle)


def _record_fault(plan: FetchPlan, address: str, cid: str, fault: BaseException) -> None:
    if not isinstance(fault, HocketError) or fault.code in _OUR_FAULTS:
        raise fault
    if fault.code is Code.BLOCK_NOT_FOUND:
        plan.lacks(address, cid)
        return
    plan.put_back([cid])
    if plan.failed(address, str(fault), lied=fault.code in _LIES, max_failures=MAX_FAILURES):
        logger.warning("%s is asked for no more blocks: %s", address, fault)
