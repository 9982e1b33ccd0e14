"""A client of an IPFS node's own door, the HTTP RPC of Kubo and js-ipfs (`/api/v0`), for the calls that we need.

Whoever reaches that door owns the node: it belongs on the loopback interface or behind a wall.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

from common.errors import Code, HocketError
from protocol import content
from swarm.ipfs_http import Http

CALL_S = 60.0
IMPORT_SILENCE_S = 300.0  # after the last byte a node writes and pins before it answers
MAX_PIN_WORD_CHARACTERS = 200
_BASE = {"cid-base": "base32"}  # how answers spell a CIDv1; js-ipfs takes base58btc otherwise
_CODECS = {content.RAW: "raw", content.DAG_PB: "dag-pb"}


async def in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same pieces, each made in a thread: what reads from a disk holds nobody up."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


async def _form(pieces: AsyncIterator[bytes], boundary: str) -> AsyncIterator[bytes]:
    """A multipart form with one file, which goes out as it comes."""
    disposition = 'Content-Disposition: form-data; name="file"; filename="file"'
    yield f"--{boundary}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
    async for piece in pieces:
        yield piece
    yield f"\r\n--{boundary}--\r\n".encode()


class IpfsNode:
    """One node. Close it with `close`.

    Args:
        rpc: its address, as `http://127.0.0.1:5001`.
        silence_s: how long it may say nothing.

    All calls raise IPFS_UNREACHABLE if it does not answer and IPFS_REFUSED, with its words, if it does not do as asked.
    """

    def __init__(self, rpc: str, *, silence_s: float = IMPORT_SILENCE_S) -> None:
        self._http = Http(rpc, silence_s=silence_s)
        self.address = self._http.base

    async def close(self) -> None:
        await self._http.close()

    async def version(self) -> str:
        """The software's version, as it says."""
        found = await self._call("version")
        return str(found.get("Version", ""))[:80]

    async def multiaddrs(self) -> tuple[str, ...]:
        """Where the node can be reached, each with its peer id: at most 20, as many as a pinning service takes."""
        found = (await self._call("id")).get("Addresses") or []
        return tuple(str(one) for one in found if isinstance(one, str) and len(one) < 500)[:20]

    async def connect(self, multiaddr: str) -> None:
        """Have the node dial a peer."""
        await self._call("swarm/connect", {"arg": multiaddr})

    async def put_block(self, cid: str, block: bytes) -> None:
        """Give the node one block; IPFS_REFUSED if it names the block otherwise than we do."""
        content.verify_block(cid, block)
        codec = _CODECS[content.parse_cid(cid).codec]
        # Kubo's words, then those of js-ipfs, which knows no `cid-codec` and gives the block the name of a CIDv0. Not both at
        # once: Kubo refuses that.
        for words in ({"cid-codec": codec}, {"format": codec, "version": "1", **_BASE}):
            found = await self._call("block/put", {**words, "mhtype": "sha2-256", "pin": "false"}, in_threads(iter([block])))
            if found.get("Key") == cid:
                return
        raise HocketError(Code.IPFS_REFUSED, f"{self.address} names block {cid} {str(found.get('Key'))[:100]}")

    async def import_car(self, root: str, car: Iterator[bytes]) -> None:
        """Stream a file to the node, block by block, and have it pinned.

        Args:
            car: the pieces of a CAR stream with this root (`protocol.car.write_car`), made in threads as they are sent.

        Raises:
            HocketError: besides, what `car` raises.
        """
        text = await self._call_lines("dag/import", {"pin-roots": "true", "stats": "false"}, in_threads(car))
        for line in text:
            said = line.get("Root")
            if isinstance(said, dict) and isinstance(said.get("Cid"), dict) and said["Cid"].get("/") == root:
                if said.get("PinErrorMsg"):
                    word = str(said["PinErrorMsg"])[:MAX_PIN_WORD_CHARACTERS]
                    raise HocketError(Code.IPFS_REFUSED, f"{self.address} did not pin {root}: {word}")
                return
        # An import that fails after its first line says so in a trailer only; without the root's line it is not done.
        raise HocketError(Code.IPFS_REFUSED, f"{self.address} did not say that it has taken {root}")

    async def pin(self, root: str) -> None:
        """Have the node keep a file, all blocks of which it has or can find."""
        found = await self._call("pin/add", {"arg": root, "recursive": "true", **_BASE})
        if root not in (found.get("Pins") or []):
            raise HocketError(Code.IPFS_REFUSED, f"{self.address} did not pin {root}")

    async def unpin(self, root: str) -> None:
        """Let the node drop a file when it needs the room; no error if it is not pinned."""
        try:
            await self._call("pin/rm", {"arg": root})
        except HocketError as error:
            if error.code is not Code.IPFS_REFUSED or "not pinned" not in error.detail:
                raise

    async def get_block(self, cid: str) -> bytes:
        """A block, checked.

        Raises:
            HocketError: BLOCK_NOT_FOUND if the node has it not and finds nobody; BLOCK_DAMAGED or MESSAGE_TOO_LARGE if it
                gives something else.
        """
        content.parse_cid(cid)
        query = {"arg": cid, "timeout": f"{int(CALL_S / 2)}s"}
        try:
            async with asyncio.timeout(CALL_S), self._http.asked("POST", "/api/v0/block/get", query=query) as answer:
                if answer.status != 200:
                    raise HocketError(Code.BLOCK_NOT_FOUND, f"{cid} at {self.address} ({await answer.complaint()})")
                block = await answer.body(content.MAX_BLOCK_BYTES)
        except TimeoutError as error:
            raise HocketError(Code.BLOCK_NOT_FOUND, f"{cid} at {self.address} within {CALL_S:.0f} s") from error
        content.verify_block(cid, block)
        return block

    async def car(self, root: str) -> AsyncIterator[bytes]:
        """The blocks of a file as a CAR stream (`dag/export`), for `protocol.car.CarReader`, which checks each one."""
        content.parse_cid(root)
        async with self._http.asked("POST", "/api/v0/dag/export", query={"arg": root, "progress": "false"}) as answer:
            if answer.status != 200:
                raise HocketError(Code.BLOCK_NOT_FOUND, f"{root} at {self.address} ({await answer.complaint()})")
            async for piece in answer.pieces(None):
                yield piece

    async def _call(
        self, name: str, query: dict[str, str] | None = None, file: AsyncIterator[bytes] | None = None
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(CALL_S):
                found = await self._call_lines(name, query or {}, file)
        except TimeoutError as error:
            raise HocketError(Code.IPFS_UNREACHABLE, f"{self.address} ({name}: nothing within {CALL_S:.0f} s)") from error
        if len(found) != 1:
            raise HocketError(Code.IPFS_REFUSED, f"{self.address} ({name}) answered with {len(found)} lines")
        return found[0]

    async def _call_lines(self, name: str, query: dict[str, str], file: AsyncIterator[bytes] | None) -> list[dict[str, Any]]:
        """The JSON objects of an answer, one a line."""
        boundary = secrets.token_hex(16)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"} if file is not None else {}
        body = _form(file, boundary) if file is not None else None
        async with self._http.asked("POST", f"/api/v0/{name}", query=query, headers=headers, body=body) as answer:
            if answer.status != 200:
                raise answer.refused(f"{name}: {await answer.complaint()}")
            text = await answer.body()
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise HocketError(Code.IPFS_REFUSED, f"{self.address} ({name}) answered with what is no JSON") from error
        if not all(isinstance(one, dict) for one in found):
            raise HocketError(Code.IPFS_REFUSED, f"{self.address} ({name}) answered with what is no object")
        return found
