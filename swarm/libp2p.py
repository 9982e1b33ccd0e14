"""The carrier over libp2p: kept-open streams through our `p2pd`, and the DHT beside it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from common.errors import Code, HocketError
from common.restarts import Restarts
from swarm.bootstrap import merged, reach, reach_bootstrap
from swarm.carrier import PeerAddress, PeerRefused
from swarm.daemon import Daemon, LibP2POptions, same_ports
from swarm.dht import DhtDirectory
from swarm.directory import Directory
from swarm.exchange import FrameStream
from swarm.known_peers import KnownPeers
from swarm.pool import StreamCarrier
from swarm.relaying import Grant, Slots, relays_of, reserve, start_daemon

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
REMEMBER_EVERY_S = 10.0
REMEMBERED_DIALLED = 16
LAST_LOOK_S = 1.0
REJOIN_PAUSE_S = 1.0
REJOIN_PAUSE_LIMIT_S = 30.0
DEATH_NOTICED_S = 1.0  # its sockets break before the system tells us that it ended

Result = TypeVar("Result")


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

    A daemon that dies is replaced by another with the same identity, port and services. Calls that it was carrying fail as if
    the peer had gone; calls that begin meanwhile wait, within their deadlines. When it dies too often, `failed` is set: the
    carrier is then of no more use, and every call raises CARRIER_FAILED.
    """

    def __init__(
        self,
        daemon: Daemon,
        directory: DhtDirectory,
        multiaddrs: tuple[str, ...],
        bootstrap: Sequence[PeerAddress],
        known: KnownPeers,
        options: LibP2POptions,
        start: Callable[[], Awaitable[Daemon]],
    ) -> None:
        super().__init__()
        self._daemon = daemon
        self._directory = directory
        self._multiaddrs = multiaddrs
        self._bootstrap = list(bootstrap)
        self._known = known
        self._options = options
        self._start = start
        self._dialling: dict[str, asyncio.Lock] = {}
        self._registered: set[str] = set()
        self._restarts = Restarts(options.restarts, options.restart_window_s, FIRST_PAUSE_S)
        self._why_failed = ""
        self.failed = asyncio.Event()
        self._up = asyncio.Event()
        self._up.set()
        self._keeping = asyncio.create_task(self._keep_up())
        self._remembering = asyncio.create_task(self._remember_peers())
        self._slots = Slots(relays_of(self._bootstrap, options), self.peer_id, self._reserve)
        self._slot_keeping = asyncio.create_task(self._slots.keep())

    @classmethod
    async def create(
        cls,
        identity_path: Path,
        *,
        bootstrap: Sequence[str] = (),
        listen: Sequence[str] = ("/ip4/127.0.0.1/tcp/0",),
        state_dir: Path,
        options: LibP2POptions | None = None,
    ) -> Self:
        """Start the daemon, connect to bootstrap peers, join the DHT.

        Args:
            identity_path: of the libp2p key, in hivemind's format; made when absent.
            bootstrap: multiaddresses ending in `/p2p/<peer id>`; one that answers is enough. None but
                ourselves: we are the first.
            listen: multiaddresses to listen on; port 0 takes a free one.
            state_dir: holds the daemon's sockets while it runs, and `peers.json`: peers met, which are bootstrap peers too.
            options: by default NAT traversal and relays are on, except when we listen on loopback only.

        Raises:
            HocketError: BOOTSTRAP_UNREACHABLE, PORT_TAKEN, CARRIER_FAILED, OPTION_INVALID, STATE_UNREADABLE,
                IDENTITY_UNREADABLE.
        """
        options = options or LibP2POptions.for_listen(listen)
        peers = merged([PeerAddress.from_multiaddrs([address]) for address in bootstrap])
        known = await asyncio.to_thread(KnownPeers, state_dir / "peers.json")
        daemon = await start_daemon(identity_path, listen, state_dir, options, relays=bootstrap)
        directory: DhtDirectory | None = None
        try:
            peers = [peer for peer in peers if peer.peer_id != daemon.peer_id]
            met = [peer for peer in known.newest(REMEMBERED_DIALLED) if peer.peer_id != daemon.peer_id]
            reached = await reach_bootstrap(daemon, peers, met, options)
            directory = await DhtDirectory.join(
                daemon, peers, reached, run_id=options.run_id, coordinator_key=options.coordinator_key
            )
            visible = await daemon.multiaddrs()
            again = partial(start_daemon, identity_path, same_ports(listen, visible), state_dir, options, relays=bootstrap)
            carrier = cls(daemon, directory, visible, peers, known, options, again)
        except (HocketError, asyncio.CancelledError):
            if directory is not None:
                await directory.close()
            await daemon.close()
            raise
        try:
            await carrier._slots.ask_all()  # before anybody is told where we are
        except asyncio.CancelledError:
            await carrier.close()
            raise
        return carrier

    @property
    def peer_id(self) -> str:
        return self._daemon.peer_id

    @property
    def multiaddrs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._multiaddrs, *self._slots.addresses)))

    async def refresh_multiaddrs(self) -> tuple[str, ...]:
        """Ask the daemon again: behind a NAT, addresses come and go with mappings and relays. CARRIER_FAILED."""
        self._multiaddrs = await self._through(Daemon.multiaddrs)
        return self.multiaddrs

    async def _reserve(self, relay: PeerAddress) -> Grant:
        return await self._through(lambda daemon: reserve(daemon, relay, self._options))

    @property
    def dht(self) -> Directory:
        return self._directory

    @property
    def daemon_pid(self) -> int:
        return self._daemon.pid

    async def wait_failed(self) -> HocketError:
        """Return CARRIER_FAILED, to be raised, once the daemon has died too often or the carrier is closed."""
        tasks = {self._keeping, self._remembering, *([self._slot_keeping] if self._slots.wanted else [])}
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            if not task.cancelled():
                task.result()
        return HocketError(Code.CARRIER_FAILED, self._why_failed or "the carrier is closed")

    # ---- the daemon dies --------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Replace the daemon whenever it dies; returns when that is given up."""
        rejoining: asyncio.Task[None] | None = None
        try:
            while True:
                await self._daemon.failed.wait()
                died = time.monotonic()
                self._up.clear()
                self._directory.suspend()
                if rejoining is not None:
                    rejoining.cancel()
                    await asyncio.wait({rejoining})
                self._known.met(self._connected_to())
                self._forget_connections()
                self._registered.clear()
                await self._daemon.close()
                if not await self._start_again(f"the libp2p daemon died with exit code {self._daemon.exit_code}"):
                    return
                logger.info("the libp2p daemon is back after %.1f s, pid %d", time.monotonic() - died, self._daemon.pid)
                self._up.set()
                rejoining = asyncio.create_task(self._rejoin(self._daemon))
        finally:
            if rejoining is not None:
                rejoining.cancel()
                await asyncio.wait({rejoining})

    async def _start_again(self, what: str) -> bool:
        """Start a daemon, try again when it does not start; False, and `failed` set, when that is given up."""
        while True:
            pause_s = self._restarts.after_end(time.monotonic())
            decision = self._restarts.words(pause_s)
            logger.log(logging.ERROR if pause_s is None else logging.WARNING, "%s; %s", what, decision)
            if pause_s is None:
                self._why_failed = f"{what}; {decision}"
                self.failed.set()
                self._up.set()
                return False
            await asyncio.sleep(pause_s)
            try:
                self._daemon = await self._start()
                for protocol in self._services:
                    await self._register(self._daemon, protocol)
                return True
            except HocketError as error:
                await self._daemon.close()
                what = f"the libp2p daemon does not start: {error.line()}"

    async def _rejoin(self, daemon: Daemon) -> None:
        """Connect a new daemon to those whom the old one knew, and take our place in the DHT again."""
        peers = merged([*self._bootstrap, *self._known.newest(REMEMBERED_DIALLED)])
        pause_s = REJOIN_PAUSE_S
        while True:
            try:
                reached = await reach(daemon, peers, self._options)
                await self._directory.rejoin(daemon, reached)
                return
            except HocketError as error:
                logger.warning("the DHT is not joined again, next try in %.0f s: %s", pause_s, error.line())
            await asyncio.sleep(pause_s)
            pause_s = min(REJOIN_PAUSE_LIMIT_S, 2 * pause_s)

    def _connected_to(self) -> list[PeerAddress]:
        """Whom we have dialled, and have had no reason to dial again."""
        return [PeerAddress(peer_id, multiaddrs) for peer_id, multiaddrs in sorted(self._dialled.items())]

    async def _remember_peers(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_EVERY_S)
            await self._remember()

    async def _remember(self) -> None:
        """Note whom we are connected to now, at addresses that we dialled or that their records give."""
        try:
            connected = await self._daemon.connected()
        except HocketError as error:
            logger.info("the peers met are not looked at: %s", error.line())
            return
        peers = [*self._bootstrap, *self._directory.recorded(), *self._connected_to()]
        self._known.met(peer for peer in merged(peers) if peer.peer_id in connected and peer.peer_id != self.peer_id)
        await asyncio.to_thread(self._known.save)

    async def _through(self, action: Callable[[Daemon], Awaitable[Result]]) -> Result:
        """Do something with the running daemon, and if that dies meanwhile, again with the one that follows it."""
        while True:
            await self._up.wait()
            if self.failed.is_set():
                raise HocketError(Code.CARRIER_FAILED, self._why_failed)
            daemon = self._daemon
            try:
                return await action(daemon)
            except HocketError as error:
                if error.code is not Code.CARRIER_FAILED or self._closed:
                    raise
                try:
                    async with asyncio.timeout(DEATH_NOTICED_S):
                        await daemon.failed.wait()
                except TimeoutError:
                    raise error from None
                if daemon is self._daemon and not self.failed.is_set():
                    self._up.clear()  # until its successor is there

    # ---- streams ----------------------------------------------------------------------------------------------------

    async def _open_stream(self, address: PeerAddress, protocol: str) -> FrameStream:
        async def dial_and_open(daemon: Daemon) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            async with self._dialling.setdefault(address.peer_id, asyncio.Lock()):
                if address.multiaddrs and self._dialled.get(address.peer_id) != address.multiaddrs:
                    if self._has_moved(address):
                        await daemon.disconnect(address.peer_id)
                    await daemon.connect(address.peer_id, address.multiaddrs)
                    self._dialled[address.peer_id] = address.multiaddrs
            return await daemon.open_stream(address.peer_id, protocol)

        try:
            reader, writer = await self._through(dial_and_open)
        except HocketError as error:
            self._dialled.pop(address.peer_id, None)
            if error.code is Code.PEER_UNREACHABLE and "protocol" in error.detail:
                raise PeerRefused(address.peer_id, 0, f"it does not serve {protocol}") from error
            raise

        def count(size_bytes: int) -> None:
            self.traffic.requests[protocol] += size_bytes

        return _SocketStream(reader, writer, count)

    async def _listen(self, protocol: str) -> None:
        await self._through(lambda daemon: self._register(daemon, protocol))

    async def _register(self, daemon: Daemon, protocol: str) -> None:
        """Have the daemon hand us the streams of a protocol; nothing to do if it was started with it. CARRIER_FAILED."""
        if protocol in self._registered:
            return

        def count(size_bytes: int) -> None:
            self.traffic.answers[protocol] += size_bytes

        async def accept(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve_stream(_SocketStream(reader, writer, count), info.peer_id.to_base58(), protocol)

        try:
            await daemon.p2p.add_binary_stream_handler(protocol, accept)
        except (P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            raise HocketError(Code.CARRIER_FAILED, f"the daemon does not take the handler of {protocol}") from error
        self._registered.add(protocol)

    async def close(self) -> None:
        if self._closed:
            return
        for task in (self._remembering, self._slot_keeping):
            task.cancel()
        await asyncio.wait({self._remembering, self._slot_keeping})
        try:
            if self._up.is_set() and not self.failed.is_set():
                async with asyncio.timeout(LAST_LOOK_S):
                    await self._remember()
        except TimeoutError:
            logger.info("the libp2p daemon does not say whom it is connected to")
        finally:
            await self._close_streams()
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
            await self._directory.close()
            await self._daemon.close()
