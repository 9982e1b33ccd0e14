"""An HTTP server that speaks, of IPFS, what our clients use: a node's RPC, a trustless gateway, a pinning service.

It knows the formats from their specifications and uses none of our code, so that a slip of ours is not made twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

CODECS = {"raw": b"\x55", "dag-pb": b"\x70"}


def name(codec: bytes, block: bytes) -> str:
    """The CID of a block."""
    data = b"\x01" + codec + b"\x12\x20" + hashlib.sha256(block).digest()
    return "b" + base64.b32encode(data).decode().rstrip("=").lower()


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def put_varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def children(block: bytes) -> list[str]:
    """The CIDs that a dag-pb node links to."""
    found, at = [], 0
    while at < len(block):
        tag, at = varint(block, at)
        size, at = varint(block, at)
        if tag == 0x12:
            assert block[at] == 0x0A and block[at + 1] == 36
            found.append("b" + base64.b32encode(block[at + 2 : at + 38]).decode().rstrip("=").lower())
        at += size
    return found


class Ipfs:
    """What the server has, and what it was asked. `answer` may take a request over: return True if it has answered it."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}
        self.pins: set[str] = set()
        self.kept: dict[str, dict[str, Any]] = {}
        self.states = ["queued", "pinning", "pinned"]
        self.asked: list[str] = []
        self.largest_piece = 0
        self.token = "secret"
        self.answer: Callable[[Handler], bool] = lambda handler: False
        self.url = ""

    def below(self, root: str) -> list[str]:
        """A file's blocks, in its order, each once; KeyError if one is not there."""
        found: dict[str, None] = {}
        pending = [root]
        while pending:
            cid = pending.pop()
            if cid not in found:
                found[cid] = None
                block = self.blocks[cid]
                if cid.startswith("bafy"):
                    pending += reversed(children(block))
        return list(found)

    def import_car(self, data: bytes) -> str:
        size, at = varint(data, 0)
        header = data[at : at + size]
        assert header[:8] == b"\xa2\x65roots\x81" and header.endswith(b"\x67version\x01"), header
        root = "b" + base64.b32encode(header[13:49]).decode().rstrip("=").lower()
        at += size
        while at < len(data):
            size, at = varint(data, at)
            section = data[at : at + size]
            assert section[:1] == b"\x01" and section[2:4] == b"\x12\x20"
            assert hashlib.sha256(section[36:]).digest() == section[4:36]
            self.blocks[name(section[1:2], section[36:])] = section[36:]
            at += size
        return root

    def car(self, root: str) -> bytes:
        def binary(cid: str) -> bytes:
            return base64.b32decode(cid[1:].upper() + "=" * (-len(cid[1:]) % 8))

        header = b"\xa2\x65roots\x81\xd8\x2a\x58\x25\x00" + binary(root) + b"\x67version\x01"
        parts = [put_varint(len(header)) + header]
        for cid in self.below(root):
            parts.append(put_varint(36 + len(self.blocks[cid])) + binary(cid) + self.blocks[cid])
        return b"".join(parts)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ipfs: Ipfs

    def log_message(self, format: str, *args: object) -> None:
        return

    def take(self) -> bytes:
        """The body, however it is sent."""
        stream: BinaryIO = self.rfile
        if self.headers.get("Transfer-Encoding") != "chunked":
            return stream.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(stream.readline(), 16):
            self.ipfs.largest_piece = max(self.ipfs.largest_piece, size)
            parts.append(stream.read(size))
            stream.readline()
        stream.readline()
        return b"".join(parts)

    def give(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def json(self, status: int, found: Any) -> None:
        self.give(status, json.dumps(found).encode(), Content_Type="application/json")

    def file(self, body: bytes) -> bytes:
        """The one file of a multipart form."""
        boundary = self.headers["Content-Type"].partition("boundary=")[2].encode()
        head, _, rest = body.partition(b"\r\n\r\n")
        assert head.startswith(b"--" + boundary) and rest.endswith(b"\r\n--" + boundary + b"--\r\n")
        return rest[: -len(boundary) - 8]

    def do_POST(self) -> None:
        self.handle_one("POST")

    def do_GET(self) -> None:
        self.handle_one("GET")

    def do_DELETE(self) -> None:
        self.handle_one("DELETE")

    def handle_one(self, method: str) -> None:
        parts = urlsplit(self.path)
        self.query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        self.ipfs.asked.append(f"{method} {parts.path}")
        self.body = self.take()
        if self.ipfs.answer(self):
            return
        if parts.path.startswith("/api/v0/") and method == "POST":
            self.rpc(parts.path[8:])
        elif parts.path.startswith("/ipfs/") and method == "GET":
            self.gateway(parts.path[6:])
        elif parts.path.startswith("/pins"):
            self.pinning(method, unquote(parts.path[6:]))
        else:
            self.give(404, b"no such page")

    def rpc(self, call: str) -> None:
        ipfs, cid = self.ipfs, self.query.get("arg", "")
        if call == "version":
            self.json(200, {"Version": "0.0.0-test"})
        elif call == "id":
            self.json(200, {"ID": "me", "Addresses": ["/ip4/127.0.0.1/tcp/1/p2p/me"]})
        elif call == "swarm/connect":
            self.json(200, {"Strings": [f"connect {cid} success"]})
        elif call == "block/put":
            block = self.file(self.body)
            key = name(CODECS[self.query["cid-codec"]], block)
            ipfs.blocks[key] = block
            self.json(200, {"Key": key, "Size": len(block)})
        elif call == "dag/import":
            root = ipfs.import_car(self.file(self.body))
            ipfs.below(root)
            ipfs.pins.add(root)
            self.json(200, {"Root": {"Cid": {"/": root}, "PinErrorMsg": ""}})
        elif call == "pin/add":
            ipfs.pins.add(cid)
            self.json(200, {"Pins": [cid]})
        elif call == "pin/rm" and cid in ipfs.pins:
            ipfs.pins.remove(cid)
            self.json(200, {"Pins": [cid]})
        elif call == "block/get" and cid in ipfs.blocks:
            self.give(200, ipfs.blocks[cid])
        elif call == "dag/export" and cid in ipfs.blocks:
            self.give(200, ipfs.car(cid))
        else:
            self.json(500, {"Message": "not pinned or pinned indirectly" if call == "pin/rm" else "not found", "Code": 0})

    def gateway(self, cid: str) -> None:
        accept = self.headers["Accept"]
        if cid not in self.ipfs.blocks:
            self.give(404, b"ipld: could not find it")
        elif self.query.get("format") == "raw" and accept == "application/vnd.ipld.raw":
            self.give(200, self.ipfs.blocks[cid], Content_Type=accept)
        elif self.query.get("format") == "car" and accept.startswith("application/vnd.ipld.car"):
            self.give(200, self.ipfs.car(cid), Content_Type=accept)
        else:
            self.give(406, b"only raw blocks and CAR streams")

    def pinning(self, method: str, request_id: str) -> None:
        ipfs = self.ipfs
        if self.headers.get("Authorization") != f"Bearer {ipfs.token}":
            self.json(401, {"error": {"reason": "UNAUTHORIZED", "details": "no such token"}})
        elif method == "POST":
            pin = json.loads(self.body)
            request_id = f"req/{len(ipfs.kept)}"
            ipfs.kept[request_id] = {"pin": pin, "seen": 0}
            self.json(202, self.status(request_id))
        elif request_id not in ipfs.kept:
            self.json(404, {"error": {"reason": "NOT_FOUND"}})
        elif method == "GET":
            ipfs.kept[request_id]["seen"] += 1
            self.json(200, self.status(request_id))
        else:
            del ipfs.kept[request_id]
            self.give(202, b"")

    def status(self, request_id: str) -> dict[str, Any]:
        one = self.ipfs.kept[request_id]
        state = self.ipfs.states[min(one["seen"], len(self.ipfs.states) - 1)]
        return {
            "requestid": request_id, "status": state, "created": "2026-01-01T00:00:00Z", "pin": one["pin"],
            "delegates": ["/ip4/127.0.0.1/tcp/2/p2p/they"],
        }  # fmt: skip


@contextmanager
def served(ipfs: Ipfs) -> Iterator[Ipfs]:
    """Serve on the loopback interface; `url` says where."""
    handler = type("Bound", (Handler,), {"ipfs": ipfs})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    ipfs.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield ipfs
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
