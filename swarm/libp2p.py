"""The carrier over libp2p: kept-open streams through our `p2pd`, and the DHT beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from common.errors import Code, HocketError
from swarm.carrier import PeerAddress, PeerRefused
from swarm.daemon import Daemon, LibP2POptions
from swarm.dht import DhtDirectory
from swarm.exchange import FrameStream
from swarm.pool import StreamCarrier
from swarm.records import Directory

logger = logging.getLogger(__name__)


class _SocketStream(FrameStream):
    """A stream to the daemon's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_sent: Callable[[int], None]) -> None:
        super().__init__(reader, writer, on_sent)
        self._transport = writer.transport

    def abort(self) -> None:
        self.close()
        self._transport.abort()


class LibP2PCarrier(StreamCarrier):
    """See `Carrier`. Make it with `create`.

    `failed` is set when the daemon dies: the carrier is then of no more use, and every call raises CARRIER_FAILED.
    """

    def __init__(self, daemon: Daemon, directory: DhtDirectory, multiaddrs: tuple[str, ...]) -> None:
        super().__init__()
        self._daemon = daemon
        self._directory = directory
        self._multiaddrs = multiaddrs
        self._dialling: dict[str, asyncio.Lock] = {}
        self.failed = daemon.failed

    @classmethod
    async def create(
        cls,
        identity_path: Path,
        *,
        bootstrap: Sequence[str] = (),
        listen: Sequence[str] = ("/ip4/127.0.0.1/tcp/0",),
        state_dir: Path,
        options: LibP2POptions | None = None,
    ) -> LibP2PCarrier:
        """Start the daemon, connect to bootstrap peers, join the DHT.

        Args:
            identity_path: of the libp2p key, in hivemind's format; made when absent.
            bootstrap: multiaddresses ending in `/p2p/<peer id>`; one that answers is enough. None but
                ourselves: we are the first.
            listen: multiaddresses to listen on; port 0 takes a free one.
            state_dir: holds the daemon's sockets while it runs.
            options: by default NAT traversal and relays are on, except when we listen on loopback only.

        Raises:
            HocketError: BOOTSTRAP_UNREACHABLE, PORT_TAKEN, CARRIER_FAILED, OPTION_INVALID, STATE_UNREADABLE,
                IDENTITY_UNREADABLE.
        """
        options = options or LibP2POptions.for_listen(listen)
        peers = [PeerAddress.from_multiaddrs([address]) for address in bootstrap]
        daemon = await Daemon.start(identity_path, listen, state_dir, options, relays=bootstrap)
        directory: DhtDirectory | None = None
        try:
            peers = [peer for peer in peers if peer.peer_id != daemon.peer_id]
            reached = await _reach_bootstrap(daemon, peers, options)
            directory = await DhtDirectory.join(daemon, peers, reached, run_id=options.run_id)
            return cls(daemon, directory, await daemon.multiaddrs())
        except (HocketError, asyncio.CancelledError):
            if directory is not None:
                await directory.close()
            await daemon.close()
            raise

    @property
    def peer_id(self) -> str:
        return self._daemon.peer_id

    @property
    def multiaddrs(self) -> tuple[str, ...]:
        return self._multiaddrs

    async def refresh_multiaddrs(self) -> tuple[str, ...]:
        """Ask the daemon again: behind a NAT, addresses come and go with mappings and relays."""
        self._multiaddrs = await self._daemon.multiaddrs()
        return self._multiaddrs

    @property
    def dht(self) -> Directory:
        return self._directory

    @property
    def daemon_pid(self) -> int:
        return self._daemon.pid

    async def wait_failed(self) -> HocketError:
        """Return CARRIER_FAILED, to be raised, once the daemon has died."""
        await self.failed.wait()
        return HocketError(Code.CARRIER_FAILED, "the daemon died")

    async def _open_stream(self, address: PeerAddress, protocol: str) -> FrameStream:
        async with self._dialling.setdefault(address.peer_id, asyncio.Lock()):
            if address.multiaddrs and self._dialled.get(address.peer_id) != address.multiaddrs:
                if self._has_moved(address):
                    await self._daemon.disconnect(address.peer_id)
                await self._daemon.connect(address.peer_id, address.multiaddrs)
                self._dialled[address.peer_id] = address.multiaddrs
        try:
            reader, writer = await self._daemon.open_stream(address.peer_id, protocol)
        except HocketError as error:
            self._dialled.pop(address.peer_id, None)
            if error.code is Code.PEER_UNREACHABLE and "protocol" in error.detail:
                raise PeerRefused(address.peer_id, 0, f"it does not serve {protocol}") from error
            raise

        def count(size_bytes: int) -> None:
            self.traffic.requests[protocol] += size_bytes

        return _SocketStream(reader, writer, count)

    async def _listen(self, protocol: str) -> None:
        def count(size_bytes: int) -> None:
            self.traffic.answers[protocol] += size_bytes

        async def accept(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve_stream(_SocketStream(reader, writer, count), info.peer_id.to_base58(), protocol)

        try:
            await self._daemon.p2p.add_binary_stream_handler(protocol, accept)
        except (P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            raise HocketError(Code.CARRIER_FAILED, f"the daemon does not take the handler of {protocol}") from error

    async def close(self) -> None:
        if not self._closed:
            await self._close_streams()
            await self._directory.close()
            await self._daemon.close()


async def _reach_bootstrap(daemon: Daemon, peers: Sequence[PeerAddress], options: LibP2POptions) -> list[PeerAddress]:
    """Connect to each of `peers` at once; those that answered. Again, a bounded number of times, while none has.

    The daemon is not told of them at its start: there, one list without a living peer ends it for good.

    Raises:
        HocketError: BOOTSTRAP_UNREACHABLE.
    """
    if not peers:
        return []

    async def reach(peer: PeerAddress) -> PeerAddress | None:
        try:
            async with asyncio.timeout(options.dial_timeout_s):
                await daemon.connect(peer.peer_id, peer.multiaddrs)
        except (HocketError, TimeoutError) as error:
            if isinstance(error, HocketError) and error.code is not Code.PEER_UNREACHABLE:
                raise
            logger.warning("bootstrap peer %s does not answer: %s", peer.multiaddrs[0], error)
            return None
        return peer

    for attempt in range(1, options.bootstrap_attempts + 1):
        reached = [peer for peer in await asyncio.gather(*map(reach, peers)) if peer is not None]
        if reached:
            return reached
        logger.warning("no bootstrap peer answers, attempt %d of %d", attempt, options.bootstrap_attempts)
        if attempt < options.bootstrap_attempts:
            await asyncio.sleep(options.bootstrap_wait_s)
    raise HocketError(Code.BOOTSTRAP_UNREACHABLE, f"none of {', '.join(peer.multiaddrs[0] for peer in peers)}")
