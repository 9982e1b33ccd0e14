"""What every request to an IPFS node, a gateway or a pinning service has in common: limits, and errors with a number.

No answer is read further than its limit, nothing is unpacked on the way, and no redirection is followed.
"""

from __future__ import annotations

import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from common.errors import Code, HocketError

if TYPE_CHECKING:
    import httpx2

CONNECT_S = 5.0
SILENCE_S = 30.0
MAX_ANSWER_BYTES = 1 << 20
MAX_REASON_CHARACTERS = 200


def base_url(address: str) -> str:
    """An address as a person writes it, checked, without a slash at its end.

    Raises:
        HocketError: OPTION_INVALID unless it is http:// or https:// with a host and nothing after the path. A name or password
            in it is refused: run files and logs are read by others.
    """
    try:
        parts = urlsplit(address)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        raise HocketError(Code.OPTION_INVALID, "an IPFS address cannot be read") from None
    if parts.username is not None or parts.password is not None:
        raise HocketError(Code.OPTION_INVALID, "an IPFS address has a name or password in it")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_fits or parts.query or parts.fragment:
        raise HocketError(Code.OPTION_INVALID, f"{address[:MAX_REASON_CHARACTERS]!r} is no http:// or https:// address")
    return address.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the host is this machine itself."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Http:
    """Requests to one server; close with `close`.

    Args:
        base: its address; OPTION_INVALID as of `base_url`. headers: sent with each request.
        silence_s: how long the server may say nothing, or take nothing.

    Raises:
        HocketError: EXTRA_MISSING without the package of the extra `ipfs`.
    """

    def __init__(self, base: str, *, headers: Mapping[str, str] | None = None, silence_s: float = SILENCE_S) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise HocketError(Code.EXTRA_MISSING, "httpx2", remedy="pip install 'hocket[ipfs]'") from error
        self.base = base_url(base)
        self._errors = httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError
        # Loading the certificates of this machine takes a while; without TLS none is needed, and none is trusted.
        trust: bool | ssl.SSLContext = True if self.base.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # A proxy that the environment names is for other machines, never for this one.
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(silence_s, connect=CONNECT_S),
            headers={"User-Agent": "hocket", **(headers or {}), "Accept-Encoding": "identity"},
            trust_env=not is_loopback(self.base), follow_redirects=False, verify=trust,
        )  # fmt: skip

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def asked(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request; the answer's head is there, its body is still to be read.

        Raises:
            HocketError: IPFS_UNREACHABLE if the server does not answer or breaks off, also while the body is read.
        """
        try:
            async with self._client.stream(
                method, self.base + path, params=dict(query or {}), headers=dict(headers or {}), content=body
            ) as response:
                yield Answer(self.base, response)
        except self._errors as error:
            raise HocketError(Code.IPFS_UNREACHABLE, f"{self.base} ({str(error) or type(error).__name__})") from error


class Answer:
    """A server's answer, as far as it was read."""

    def __init__(self, base: str, response: httpx2.Response) -> None:
        self._base = base
        self._response = response
        self.status = response.status_code

    def refused(self, reason: str) -> HocketError:
        return HocketError(Code.IPFS_REFUSED, f"{self._base}: {reason}")

    async def pieces(self, max_bytes: int | None) -> AsyncIterator[bytes]:
        """The body as it comes; IPFS_REFUSED for one that is packed, MESSAGE_TOO_LARGE for one above `max_bytes`."""
        if (packed := self._response.headers.get("Content-Encoding", "identity")) != "identity":
            raise self.refused(f"it packs its answer ({packed[:40]}), which was not asked for")
        said = self._response.headers.get("Content-Length", "")
        too_large = HocketError(Code.MESSAGE_TOO_LARGE, f"an answer of {self._base}; at most {max_bytes} bytes are read")
        if max_bytes is not None and said.isdecimal() and int(said) > max_bytes:
            raise too_large
        read = 0
        async for piece in self._response.aiter_raw():
            read += len(piece)
            if max_bytes is not None and read > max_bytes:
                raise too_large
            yield piece

    async def body(self, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
        """The whole body; errors as of `pieces`."""
        return b"".join([piece async for piece in self.pieces(max_bytes)])

    async def json(self, max_bytes: int = MAX_ANSWER_BYTES) -> Any:
        """The body as JSON; IPFS_REFUSED if it is none."""
        try:
            return json.loads(await self.body(max_bytes))
        except (ValueError, RecursionError) as error:
            raise self.refused("its answer is no JSON") from error

    async def complaint(self) -> str:
        """What a server says that refuses: the status, and its message in one line."""
        text = (await self.body()).decode("utf-8", "replace")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            inner = found.get("error")
            reasons = [found.get("Message"), *([inner.get("reason"), inner.get("details")] if isinstance(inner, dict) else [])]
            text = ": ".join(reason for reason in reasons if isinstance(reason, str)) or text
        line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
        return f"status {self.status}: {line[:MAX_REASON_CHARACTERS]}" if line else f"status {self.status}"
