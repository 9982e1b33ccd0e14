"""An independent client of the peer records and of the block protocol, for the interoperability test.

    python independent_client.py MULTIADDR RUN_ID STAGE ROOT_CID

It shares no code with the project nor with hivemind: py-libp2p carries the bytes, everything above is written here from the
formats' descriptions. It asks the peer at MULTIADDR, as a node of the DHT, for the records of a stage, verifies them, then
fetches the file ROOT_CID from the first peer found and prints what it saw as one JSON line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import nacl.signing
import trio
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr

HEAD, BODY, END, WAITING, ERROR = 1, 2, 3, 4, 5
DICTIONARY_EXTENSION = 0x50
FOUND_DICTIONARY = 2


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def blob(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers for varints, bytes for everything else."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(data, at)
            yield tag >> 3, value
            continue
        size, at = read_varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        yield tag >> 3, data[at : at + size]
        at += size


def one(data: bytes, number: int, default: Any = b"") -> Any:
    return next((value for field, value in fields(data) if field == number), default)


async def read_exactly(stream: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.read(min(size - len(data), 1 << 16))
        if not piece:
            raise EOFError("the stream ended early")
        data += piece
    return data


async def find_records(host: Any, peer: ID, run_id: str, stage: int) -> list[dict[str, Any]]:
    """Ask a DHT node for the entry of a stage, over the daemon's unary calls: one delimited message each way."""
    key = hashlib.sha1(msgpack.packb(f"hocket/peers/1/{stage}/{run_id}")).digest()
    call = blob(1, peer.to_bytes()) + blob(2, b"DHTProtocol.rpc_find") + blob(3, blob(2, key))
    request = blob(1, bytes(16)) + blob(3, call)
    stream = await host.new_stream(peer, [TProtocol("DHTProtocol.rpc_find")])
    await stream.write(varint(len(request)) + request)
    size = b""
    while not size or size[-1] > 127:
        size += await read_exactly(stream, 1)
    reply = await read_exactly(stream, read_varint(size, 0)[0])
    await stream.close()
    response = one(one(reply, 4), 1)
    result = one(response, 2)
    if one(result, 1, 0) != FOUND_DICTIONARY:
        return []
    extension = msgpack.unpackb(one(result, 2), strict_map_key=False)
    assert extension.code == DICTIONARY_EXTENSION
    _, _, entries = msgpack.unpackb(extension.data)
    return [read_record(subkey, msgpack.unpackb(value)) for subkey, value, _ in entries]


def read_record(subkey: str, signed: bytes) -> dict[str, Any]:
    """A peer record, its signature checked with libsodium."""
    header, payload, signature = (one(signed, number) for number in (1, 2, 3))
    public = one(header, 10)
    nacl.signing.VerifyKey(public).verify(b"hocket-signed-1:" + header, signature)
    assert hashlib.sha256(payload).digest() == one(header, 6)
    assert one(header, 1) == b"peer_record"
    member = base64.b32encode(public).decode().rstrip("=").lower()
    record = {
        "member_id": one(payload, 1).decode(),
        "peer_id": one(payload, 2).decode(),
        "multiaddrs": [value.decode() for number, value in fields(payload) if number == 3],
    }
    assert (record["member_id"], record["peer_id"]) == (member, subkey)
    return record


async def call(stream: Any, head: bytes) -> tuple[bytes, bytes]:
    """One request without a body on a kept-open stream; head and body of the answer."""
    digest = hashlib.sha256(head).digest()
    await stream.write(
        struct.pack(">IBQ", 8 + len(head), HEAD, 0) + head + struct.pack(">IBQ", 40, END, len(head)) + digest,
    )
    answer_head, body, announced = b"", b"", 0
    while True:
        size, kind = struct.unpack(">IB", await read_exactly(stream, 5))
        payload = await read_exactly(stream, size)
        if kind == HEAD:
            announced, answer_head = struct.unpack(">Q", payload[:8])[0], payload[8:]
        elif kind == BODY:
            body += payload
        elif kind == END:
            assert struct.unpack(">Q", payload[:8])[0] == len(answer_head) + len(body)
            assert len(body) == announced
            assert payload[8:] == hashlib.sha256(answer_head).digest()
            return answer_head, body
        elif kind == ERROR:
            raise RuntimeError(f"refused: H{struct.unpack('>H', payload[:2])[0]} {payload[2:].decode()}")
        else:
            assert (kind, size) == (WAITING, 0)


def cid_bytes(cid: str) -> bytes:
    return base64.b32decode(cid[1:].upper() + "=" * (-len(cid[1:]) % 8))


async def get_block(stream: Any, cid: bytes) -> bytes:
    text = "b" + base64.b32encode(cid).decode().rstrip("=").lower()
    head, body = await call(stream, blob(1, text.encode()))
    (found,) = (value for number, value in fields(head) if number == 1)
    assert one(found, 1) == text.encode()
    assert one(found, 2, 0) == 1, f"block {text} is missing"
    assert hashlib.sha256(body).digest() == cid[-32:]
    return body


async def read_file(stream: Any, cid: bytes) -> bytes:
    block = await get_block(stream, cid)
    if cid[1] == 0x55:
        return block
    assert cid[1] == 0x70
    return b"".join([await read_file(stream, one(link, 1)) for number, link in fields(block) if number == 2])


async def main(address: str, run_id: str, stage: int, root: str) -> None:
    host = new_host()
    async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        with trio.fail_after(60):
            node = info_from_p2p_addr(Multiaddr(address))
            await host.connect(node)
            records = sorted(await find_records(host, node.peer_id, run_id, stage), key=lambda record: record["peer_id"])
            provider = info_from_p2p_addr(Multiaddr(records[0]["multiaddrs"][0]))
            await host.connect(provider)
            stream = await host.new_stream(provider.peer_id, [TProtocol("hocket/blocks/1")])
            data = await read_file(stream, cid_bytes(root))
            try:
                await call(stream, blob(1, b"no cid"))
                refusal = ""
            except RuntimeError as error:
                refusal = str(error)
    print(json.dumps({"records": records, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "refusal": refusal}))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
