"""Blocks from peer to peer: anyone may ask for any block; whoever fetches checks each one.

A request names up to 64 CIDs. The answer says for each, in order, whether the block is there and how long it is; the
blocks found follow as the body. It stops early, after whole blocks, before it grows beyond 16 MiB: ask again for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from protocol import content
from protocol.generated import hocket_pb2 as pb
from swarm.block_plan import FetchPlan
from swarm.blocks import BlockStore
from swarm.carrier import MEBIBYTE, Carrier, Message, Part, PeerAddress
from swarm.fetch_loop import Requests, carry_out

logger = logging.getLogger(__name__)

BLOCKS_PROTOCOL = "hocket/blocks/1"
MAX_CIDS = 64
MAX_REPLY_BYTES = 16 * MEBIBYTE
MAX_REQUEST_BYTES = 16 << 10
BATCH_BYTES = 4 * MEBIBYTE
MAX_REQUESTS = 8
MAX_REQUESTS_OF_A_PROVIDER = 2
MAX_FAILURES = 2
SILENCE_S = 10.0
DEADLINE_S = 120.0

Blocks = dict[str, bytes | None]  # by CID; None: the peer has not got it


async def serve_blocks(carrier: Carrier, store: BlockStore) -> None:
    """Serve the blocks of `store`, also those that come later, to whoever asks. Content is public."""

    async def handle(peer_id: str, message: Message) -> Message:
        try:
            request = pb.BlockRequest.FromString(message.head)
        except DecodeError as error:
            raise HocketError(Code.CID_INVALID, "the request cannot be read") from error
        if len(request.cids) > MAX_CIDS or message.body:
            raise HocketError(Code.MESSAGE_TOO_LARGE, f"{len(request.cids)} blocks asked for, at most {MAX_CIDS}, and no body")
        return await asyncio.to_thread(_look_up, store, list(request.cids))

    await carrier.serve(BLOCKS_PROTOCOL, handle, max_request_bytes=MAX_REQUEST_BYTES)


def _look_up(store: BlockStore, cids: list[str]) -> Message:
    reply, body = pb.BlockReply(), list[Part]()
    room = MAX_REPLY_BYTES
    for cid in cids:
        try:
            data: bytes | None = store.get(cid)
        except HocketError as error:
            if error.code not in (Code.BLOCK_NOT_FOUND, Code.BLOCK_DAMAGED):
                raise
            data = None
        if data is None:
            reply.blocks.add(cid=cid, found=False)
            continue
        room -= len(data)
        if room < 0:
            break
        reply.blocks.add(cid=cid, found=True, size_bytes=len(data))
        body.append(data)
    return Message(reply.SerializeToString(), body)


async def ask_for_blocks(carrier: Carrier, provider: PeerAddress, cids: Sequence[str]) -> Blocks:
    """Ask one peer for up to 64 blocks: their bytes, checked, or None where it has none. Fewer than asked may be named.

    Raises:
        HocketError: BLOCK_DAMAGED if the peer sent anything else than it was asked for, and what a call raises.
    """
    request = Message(pb.BlockRequest(cids=cids).SerializeToString())
    limit = MAX_REPLY_BYTES + MEBIBYTE
    answer = await carrier.call(
        provider, BLOCKS_PROTOCOL, request, silence_s=SILENCE_S, deadline_s=DEADLINE_S, max_answer_bytes=limit
    )
    return await asyncio.to_thread(_read_reply, provider.peer_id, list(cids), answer)


def _read_reply(peer_id: str, cids: list[str], answer: Message) -> Blocks:
    try:
        heads = list(pb.BlockReply.FromString(answer.head).blocks)
    except DecodeError as error:
        raise HocketError(Code.BLOCK_DAMAGED, f"the reply of {peer_id} cannot be read") from error
    body = answer.body_bytes
    named = [head.cid for head in heads]
    if not heads or named != cids[: len(named)] or sum(head.size_bytes for head in heads if head.found) != body.nbytes:
        raise HocketError(Code.BLOCK_DAMAGED, f"the reply of {peer_id} does not fit the request")
    blocks: dict[str, bytes | None] = {}
    position = 0
    for head in heads:
        if not head.found:
            blocks[head.cid] = None
            continue
        data = bytes(body[position : position + head.size_bytes])
        position += head.size_bytes
        content.verify_block(head.cid, data)
        blocks[head.cid] = data
    return blocks


async def fetch(carrier: Carrier, store: BlockStore, root_cid: str, providers: Sequence[PeerAddress], *, max_bytes: int) -> None:
    """Bring all blocks of a file into `store`, from several peers at once, going on from what is there already.

    A peer that sends something else than it was asked for is left out at once, one that fails after its second failure.

    Args:
        root_cid: of the file.
        providers: peers that may have it, the preferred first.
        max_bytes: of the file: what its root declares is checked before anything more is fetched.

    Raises:
        HocketError: BLOCK_NOT_FOUND if no peer left has a block; BLOCK_DAMAGED if the blocks form no proper file, or
            if a block is missing after a peer lied; MESSAGE_TOO_LARGE; CID_INVALID; DISK_FULL, STATE_UNREADABLE.
    """
    plan = FetchPlan(root_cid, [provider.peer_id for provider in providers], max_bytes=max_bytes)
    addresses = {provider.peer_id: provider for provider in providers}

    def ask(asked: Sequence[str]) -> Requests[Blocks]:
        for peer_id, share in _next_requests(plan, asked):
            if len(asked) == MAX_REQUESTS:
                return
            if batch := plan.take(peer_id, max_blocks=share, max_bytes=BATCH_BYTES):
                yield peer_id, batch, _fetch_batch(carrier, store, addresses[peer_id], batch)

    def settle(peer_id: str, batch: list[str], task: asyncio.Task[Blocks]) -> None:
        _record_outcome(plan, peer_id, batch, task)

    await carry_out(plan, store, ask, settle)


def _next_requests(plan: FetchPlan, running: Sequence[str]) -> list[tuple[str, int]]:
    """Who is asked next, and for how many blocks at most: idle providers first, so that all of them share the work.

    Args:
        running: the provider of each request under way.
    """
    providers = plan.providers
    turns = [(peer_id, turn) for turn in range(MAX_REQUESTS_OF_A_PROVIDER) for peer_id in providers]
    free = [peer_id for peer_id, turn in turns if running.count(peer_id) <= turn]
    share = min(MAX_CIDS, -(-plan.wanted // max(1, min(len(free), MAX_REQUESTS))))
    return [(peer_id, share) for peer_id in free]


async def _fetch_batch(carrier: Carrier, store: BlockStore, provider: PeerAddress, cids: list[str]) -> Blocks:
    blocks = await ask_for_blocks(carrier, provider, cids)
    for cid, data in blocks.items():
        if data is not None:
            await asyncio.to_thread(store.put, cid, data)
    return blocks


def _record_outcome(plan: FetchPlan, peer_id: str, batch: list[str], task: asyncio.Task[Blocks]) -> None:
    fault = task.exception()
    if fault is None:
        blocks = task.result()
        plan.put_back([cid for cid in batch if cid not in blocks])
        for cid, data in blocks.items():
            if data is None:
                plan.lacks(peer_id, cid)
            else:
                plan.arrived(cid, data)
        return
    if not isinstance(fault, HocketError) or fault.code in (Code.DISK_FULL, Code.STATE_UNREADABLE, Code.CARRIER_FAILED):
        raise fault
    plan.put_back(batch)
    lied = fault.code in (Code.BLOCK_DAMAGED, Code.MESSAGE_TOO_LARGE)
    if plan.failed(peer_id, str(fault), lied=lied, max_failures=MAX_FAILURES):
        logger.warning("peer %s is asked for no more blocks: %s", peer_id, fault)
