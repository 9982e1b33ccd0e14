"""Blocks from peer to peer: anyone may ask for any block; whoever fetches checks each one.

A request names up to 64 CIDs. The answer says for each, in order, whether the block is there, how long it is and whether it is
just being fetched; the blocks found follow as the body. It stops early, after whole blocks, before it grows beyond 16 MiB: ask
again for the rest. A request may ask for the heads alone, or to be answered only once one of the blocks on their way is there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from protocol import content
from protocol.generated import hocket_pb2 as pb
from swarm.blocks import BlockStore
from swarm.carrier import MEBIBYTE, Carrier, Message, Part, PeerAddress
from swarm.incoming import Incoming

BLOCKS_PROTOCOL = "hocket/blocks/1"
MAX_CIDS = 64
MAX_REPLY_BYTES = 16 * MEBIBYTE
MAX_REQUEST_BYTES = 16 << 10
MAX_WAIT_S = 10.0
SILENCE_S = 5.0
DEADLINE_S = 120.0

UnderWay = dict[str, tuple[bool, bool]]  # by CID: whether we are fetching it, and whether we have asked somebody for it


@dataclass(frozen=True)
class BlockAnswer:
    """What a peer says of blocks; it may say nothing of the last ones.

    Args:
        blocks: by CID: the bytes, checked; empty where only heads were asked for; None: the peer has not got it.
        fetching: those that it is just fetching, or that are the roots of files that it is fetching.
        coming: those of them that it has asked for at somebody who has them.
    """

    blocks: dict[str, bytes | None]
    fetching: frozenset[str]
    coming: frozenset[str]

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for data in self.blocks.values() if data)


async def serve_blocks(carrier: Carrier, store: BlockStore, incoming: Incoming | None = None) -> None:
    """Serve the blocks of `store`, also those that come later, to whoever asks. Content is public.

    Args:
        incoming: the fetches of this process, of which others are told; None: there are none.
    """
    arriving = incoming if incoming is not None else Incoming()

    async def handle(peer_id: str, message: Message) -> Message:
        try:
            request = pb.BlockRequest.FromString(message.head)
        except DecodeError as error:
            raise HocketError(Code.CID_INVALID, "the request cannot be read") from error
        if len(request.cids) > MAX_CIDS or message.body:
            raise HocketError(Code.MESSAGE_TOO_LARGE, f"{len(request.cids)} blocks asked for, at most {MAX_CIDS}, and no body")
        cids = list(request.cids)
        arriving.asked_by(peer_id, cids)
        if request.wait_ms and not request.heads_only and not any(map(store.has, cids)):
            await arriving.wait(cids, request.root, min(MAX_WAIT_S, request.wait_ms / 1000))
        under_way = {cid: (arriving.fetching(cid, request.root), arriving.coming(cid)) for cid in cids}
        if request.heads_only:
            return await asyncio.to_thread(_look_for_heads, store, cids, under_way)
        return await asyncio.to_thread(_look_up, store, cids, under_way)

    await carrier.serve(BLOCKS_PROTOCOL, handle, max_request_bytes=MAX_REQUEST_BYTES)


def _look_for_heads(store: BlockStore, cids: list[str], under_way: UnderWay) -> Message:
    return Message(pb.BlockReply(blocks=[_head(cid, store.has(cid), 0, under_way) for cid in cids]).SerializeToString())


def _head(cid: str, found: bool, size_bytes: int, under_way: UnderWay) -> pb.BlockHead:
    fetching, coming = under_way[cid]
    return pb.BlockHead(cid=cid, found=found, size_bytes=size_bytes, fetching=fetching, coming=coming)


def _look_up(store: BlockStore, cids: list[str], under_way: UnderWay) -> Message:
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
            reply.blocks.append(_head(cid, False, 0, under_way))
            continue
        room -= len(data)
        if room < 0:
            break
        reply.blocks.append(_head(cid, True, len(data), under_way))
        body.append(data)
    return Message(reply.SerializeToString(), body)


async def ask_for_blocks(
    carrier: Carrier, provider: PeerAddress, cids: Sequence[str], *, wait_s: float = 0.0, root: str = ""
) -> BlockAnswer:
    """Ask one peer for up to 64 blocks.

    Args:
        wait_s: how long the peer may wait for one of them that it is fetching itself, when it has none.
        root: of the file that they belong to.

    Raises:
        HocketError: BLOCK_DAMAGED if the peer sent anything else than it was asked for, and what a call raises.
    """
    request = Message(pb.BlockRequest(cids=cids, wait_ms=round(wait_s * 1000), root=root).SerializeToString())
    limit = MAX_REPLY_BYTES + MEBIBYTE
    answer = await carrier.call(
        provider, BLOCKS_PROTOCOL, request, silence_s=SILENCE_S, deadline_s=DEADLINE_S, max_answer_bytes=limit
    )
    return await asyncio.to_thread(_read_reply, provider.peer_id, list(cids), answer, heads_only=False)


async def ask_for_heads(carrier: Carrier, provider: PeerAddress, cids: Sequence[str], *, within_s: float) -> BlockAnswer:
    """Ask one peer which of up to 64 blocks it has or is fetching; errors as of `ask_for_blocks`."""
    request = Message(pb.BlockRequest(cids=cids, heads_only=True).SerializeToString())
    answer = await carrier.call(
        provider, BLOCKS_PROTOCOL, request, silence_s=within_s, deadline_s=within_s, max_answer_bytes=MAX_REQUEST_BYTES
    )
    return _read_reply(provider.peer_id, list(cids), answer, heads_only=True)


def _read_reply(peer_id: str, cids: list[str], answer: Message, *, heads_only: bool) -> BlockAnswer:
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
        if not heads_only:
            _verify(peer_id, head.cid, data)
        blocks[head.cid] = data
    fetching = frozenset(head.cid for head in heads if head.fetching)
    return BlockAnswer(blocks, fetching, frozenset(head.cid for head in heads if head.coming))


def _verify(peer_id: str, cid: str, data: bytes) -> None:
    """BLOCK_DAMAGED, with what came instead, so that the log holds the evidence."""
    try:
        content.verify_block(cid, data)
    except HocketError as error:
        came = hashlib.sha256(data).hexdigest()
        raise HocketError(Code.BLOCK_DAMAGED, f"{peer_id} sent {len(data)} bytes of SHA-256 {came} as block {cid}") from error
