"""A block service under fire, and a fetch from peers that lie; over the carrier in memory."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from pathlib import Path

from common.errors import Code, HocketError
from protocol import content
from protocol.generated import hocket_pb2 as pb
from simulations.hostile.call_storm import in_turn
from simulations.hostile.mutations import blind, structured
from simulations.hostile.raw import RawMemory, half_open, odd_frames, throw
from simulations.hostile.tally import Tally, faults_in_logs, own_bytes
from swarm.block_service import BLOCKS_PROTOCOL, MAX_CIDS, ask_for_blocks, serve_blocks
from swarm.block_swarm import fetch
from swarm.blocks import BlockStore
from swarm.carrier import Message, PeerAddress, PeerRefused
from swarm.memory import MemoryNetwork

FILE_BYTES = 3 * content.CHUNK_BYTES + 777
ROUNDS = 8
AT_ONCE = 16
HALF_OPEN = 100
GROWTH_LIMIT_BYTES = 96 << 20


class _Scene:
    """A peer that has a file, one that lies, and two that ask."""

    def __init__(self, folder: Path, tally: Tally, seed: int) -> None:
        self.tally, self.seed, self.folder = tally, seed, folder
        network = MemoryNetwork()
        self.server = RawMemory(network, "server")
        self.liar = RawMemory(network, "liar")
        self.hostile = RawMemory(network, "hostile")
        self.honest = RawMemory(network, "honest")
        self.store = BlockStore(folder / "server")
        self.data = hashlib.shake_128(b"a file").digest(FILE_BYTES)
        self.root = self.store.add_bytes(self.data)
        self.blocks = dict(content.iter_blocks(self.data))
        self.lie = b""
        self.lie_body = b""

    async def start(self) -> None:
        await serve_blocks(self.server, self.store)

        async def lie(peer_id: str, message: Message) -> Message:
            return Message(self.lie, [self.lie_body] if self.lie_body else [])

        await self.liar.serve(BLOCKS_PROTOCOL, lie, max_request_bytes=1 << 20)

    async def close(self) -> None:
        for carrier in (self.server, self.liar, self.hostile, self.honest):
            await carrier.close()

    async def one(self, number: int) -> None:
        """Ask for what cannot be had, in a way that nobody asks."""
        draw = random.Random(f"{self.seed}/blocks/{number}")
        request = pb.BlockRequest(cids=draw.sample(sorted(self.blocks), 1), heads_only=draw.random() < 0.8, root=self.root)
        if draw.random() < 0.4:
            kind, data = odd_frames(draw, Message(request.SerializeToString()))
            stream = await self.hostile.raw(PeerAddress("server"), BLOCKS_PROTOCOL)
            self.tally.sent(kind, await throw(stream, data, pieces=draw.choice((1, 1, 50)), within_s=0.05))
            return
        way, body = draw.random(), []
        if way < 0.4:
            kind, data = blind(draw, request.SerializeToString())
        elif way < 0.8:
            kind, changed = structured(draw, request)
            data = changed.SerializeToString()
        elif way < 0.9:
            kind, data = "too many", pb.BlockRequest(cids=[self.root] * (MAX_CIDS + draw.choice((1, 150)))).SerializeToString()
        else:
            kind, data, body = "with a body", request.SerializeToString(), [bytes(draw.choice((1, 9000, 1 << 20)))]
        try:
            await self.hostile.call("server", BLOCKS_PROTOCOL, Message(data, list(body)), silence_s=5.0, deadline_s=30.0)
        except PeerRefused as refused:
            self.tally.sent(kind, f"H{refused.remote_code}")
            if not refused.remote_code:
                self.tally.fault(f"{kind}: {refused.remote_detail}")
        except HocketError as error:
            self.tally.sent(kind, f"H{int(error.code)} here")
            if error.code is not Code.MESSAGE_TOO_LARGE:
                self.tally.fault(f"{kind}: {error.line()}")
        else:
            self.tally.sent(kind, "answered")

    async def be_lied_to(self, number: int) -> None:
        """Ask a liar; what is taken from him must be what was asked for."""
        draw = random.Random(f"{self.seed}/lies/{number}")
        cid, data = draw.choice(sorted(self.blocks.items()))
        if len(data) > 4096 and draw.random() < 0.8:
            cid, data = self.root, self.blocks[self.root]
        reply = pb.BlockReply(blocks=[pb.BlockHead(cid=cid, found=True, size_bytes=len(data))])
        way = draw.random()
        self.lie_body = data
        if way < 0.4:
            kind, self.lie_body = blind(draw, data)
            if draw.random() < 0.5:
                reply.blocks[0].size_bytes = len(self.lie_body)
            self.lie = reply.SerializeToString()
        elif way < 0.8:
            kind, changed = structured(draw, reply)
            self.lie = changed.SerializeToString()
        else:
            kind, self.lie = blind(draw, reply.SerializeToString())
        try:
            answer = await ask_for_blocks(self.honest, PeerAddress("liar"), [cid])
        except HocketError as error:
            self.tally.sent(f"a lie: {kind}", f"H{int(error.code)}")
        else:
            self.tally.sent(f"a lie: {kind}", "harmless")
            if any(found is not None and found != self.blocks.get(name) for name, found in answer.blocks.items()):
                self.tally.fault(f"a lie, message {number} of seed {self.seed} ({kind}): believed")

    async def honest_fetch(self, number: int) -> None:
        """Fetch the file with the liar among its providers."""
        loop = asyncio.get_running_loop()
        store = BlockStore(self.folder / f"fetched-{number}")
        await fetch(
            self.honest, store, self.root, [PeerAddress("liar"), PeerAddress("server")], max_bytes=FILE_BYTES
        )
        self.tally.identical = self.tally.identical is not False and store.read_file(self.root) == self.data
        start = loop.time()
        await ask_for_blocks(self.honest, PeerAddress("server"), [self.root])
        self.tally.health(loop.time() - start)


async def fuzz_blocks(messages: int, seed: int, folder: Path) -> Tally:
    """Throw malformed requests at a block service, and lies at one who fetches, while a file is fetched again and again.

    Args:
        folder: for block stores.
    """
    tally = Tally("block service", limit_bytes=GROWTH_LIMIT_BYTES)
    began = time.monotonic()
    before = own_bytes()
    scene = _Scene(folder, tally, seed)
    await scene.start()
    with faults_in_logs(tally):
        try:
            async with half_open(scene.hostile, [(PeerAddress("server"), BLOCKS_PROTOCOL)], HALF_OPEN):
                sent = 0
                for part in range(ROUNDS):
                    until = messages * (part + 1) // ROUNDS
                    asked = sent + 3 * (until - sent) // 4
                    storming = asyncio.create_task(in_turn(range(sent, asked), AT_ONCE, scene.one))
                    await scene.honest_fetch(part)
                    for number in range(asked, until):  # one after the other: the liar tells one lie at a time
                        await scene.be_lied_to(number)
                    await storming
                    sent = until
                tally.grew(before)
        finally:
            await scene.close()
    tally.seconds = time.monotonic() - began
    return tally
