"""A client of the IPFS Pinning Service API, by which services keep content that a node offers them.

Source: the IPFS Pinning Service API specification, 1.0.0.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from common.errors import Code, HocketError
from protocol.content import parse_cid
from swarm.ipfs_http import Answer, Http, is_loopback

CALL_S = 30.0
MAX_ANSWER_BYTES = 1 << 18
MAX_NAME_CHARACTERS = 255
MAX_ORIGINS = 20
MAX_REQUEST_ID_CHARACTERS = 256


class PinState(StrEnum):
    """How far a service is with one request."""

    QUEUED = "queued"
    PINNING = "pinning"
    PINNED = "pinned"
    FAILED = "failed"


@dataclass(frozen=True)
class PinStatus:
    """What a service says of one request.

    Args:
        delegates: multiaddresses of the service's peers that will fetch the content; our node may dial them.
    """

    request_id: str
    state: PinState
    cid: str
    delegates: tuple[str, ...]


class PinningService:
    """One service. Close it with `close`.

    Args:
        endpoint: its address, without `/pins`. token: what the service gave its user; never sent in clear to another machine.

    All calls raise IPFS_UNREACHABLE if it does not answer and IPFS_REFUSED, with its words, if it does not do as asked.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        if not token or not token.isascii() or not token.isprintable():
            raise HocketError(Code.OPTION_INVALID, "the token of the pinning service is missing, or no token")
        if endpoint.startswith("http://") and not is_loopback(endpoint):
            raise HocketError(Code.OPTION_INVALID, "the address of a pinning service must begin with https://, for its token")
        self._http = Http(endpoint, headers={"Authorization": f"Bearer {token}"}, silence_s=CALL_S)

    async def close(self) -> None:
        await self._http.close()

    async def request(self, cid: str, *, name: str, origins: Sequence[str] = ()) -> PinStatus:
        """Ask the service to fetch and keep a file.

        Args:
            name: for people. origins: multiaddresses, with peer ids, of who has it.
        """
        parse_cid(cid)
        pin = {"cid": cid, "name": name[:MAX_NAME_CHARACTERS], "origins": list(origins)[:MAX_ORIGINS]}
        status = await self._ask("POST", "/pins", (202, 200), pin)
        if status.cid != cid:
            raise HocketError(Code.IPFS_REFUSED, f"{self._http.base}: asked to keep {cid}, it names {status.cid[:100]}")
        return status

    async def status(self, request_id: str) -> PinStatus:
        """How far the service is with a request of ours; BLOCK_NOT_FOUND if it knows nothing of it."""
        return await self._ask("GET", f"/pins/{quote(request_id, safe='')}", (200,))

    async def withdraw(self, request_id: str) -> None:
        """Tell the service that it need not keep a file any more; no error if it knows nothing of the request."""
        await self._ask_raw("DELETE", f"/pins/{quote(request_id, safe='')}", (202, 200, 404))

    async def _ask(self, method: str, path: str, fine: tuple[int, ...], body: dict[str, Any] | None = None) -> PinStatus:
        found = await self._ask_raw(method, path, fine, body)
        reason = HocketError(Code.IPFS_REFUSED, f"{self._http.base}: its answer is no status of a pin")
        if not isinstance(found, dict) or not isinstance(found.get("pin"), dict):
            raise reason
        request_id, state, cid = found.get("requestid"), found.get("status"), found["pin"].get("cid")
        delegates = found.get("delegates", [])
        if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_REQUEST_ID_CHARACTERS:
            raise reason
        if state not in list(PinState) or not isinstance(cid, str) or not isinstance(delegates, list):
            raise reason
        peers = tuple(one for one in delegates if isinstance(one, str) and len(one) < 500)[:MAX_ORIGINS]
        return PinStatus(request_id, PinState(state), cid, peers)

    async def _ask_raw(self, method: str, path: str, fine: tuple[int, ...], body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        data = json.dumps(body).encode() if body is not None else None
        try:
            async with asyncio.timeout(CALL_S), self._http.asked(method, path, headers=headers, body=data) as answer:
                return await self._read(answer, fine, method)
        except TimeoutError as error:
            raise HocketError(Code.IPFS_UNREACHABLE, f"{self._http.base} (nothing within {CALL_S:.0f} s)") from error

    async def _read(self, answer: Answer, fine: tuple[int, ...], method: str) -> Any:
        if answer.status == 404 and method == "GET":
            raise HocketError(Code.BLOCK_NOT_FOUND, f"{self._http.base} ({await answer.complaint()})")
        if answer.status not in fine:
            raise answer.refused(await answer.complaint())
        return await answer.json(MAX_ANSWER_BYTES) if method != "DELETE" else None
