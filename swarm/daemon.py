"""One `p2pd`, the libp2p daemon, as a child process of ours, reached through hivemind's `P2P` in this event loop.

Added to what `P2P` does: sockets in a directory of our own that goes when we go, an event that is set when the daemon
dies, calls that leave no open descriptor behind when they fail or are cancelled, and no contact with any peer
that was not named.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from common.errors import Code, HocketError
from common.files import disk_error
from protocol.identity import PeerKey
from protocol.wire import put_varint
from swarm.pulse import Pulse
from swarm.socket_directory import SocketDirectory

logger = logging.getLogger(__name__)

STREAM_BUFFER_BYTES = 1 << 20
STOP_S = 3.0
_P2P_CODE = 421


@dataclass(frozen=True)
class LibP2POptions:
    """How our daemon meets the network. The defaults suit loopback; `for_listen` chooses by the addresses listened on.

    Args:
        relay: use circuit relays, and be one for others.
        reachable: others can dial us at what we listen on or announce: with `relay`, we are one for others from the start,
            and need none ourselves.
        auto_nat: help others to find out whether they can be reached.
        nat_port_map: ask the router for a port.
        announce: multiaddresses to announce in place of those listened on.
        startup_timeout_s: how long the daemon may take to start; a busy machine takes long.
        dial_timeout_s: how long a bootstrap peer may take to answer.
        bootstrap_attempts: how often the list of bootstrap peers is gone through before the join fails.
        bootstrap_wait_s: wait between two attempts. libp2p itself does not redial an address for some 4 s after a failure.
        run_id: store and find records of this run only; empty: of any run.
        coordinator_key: raw public key: take word of where the run's coordinator is from nobody else; empty: from anybody.
        restarts: how often a daemon that died is started again within `restart_window_s`.
        restart_window_s: see there.
        pulse_s: how often a running daemon is asked for a sign of life, and how long its answer may take.
    """

    relay: bool = False
    reachable: bool = False
    auto_nat: bool = False
    nat_port_map: bool = False
    announce: tuple[str, ...] = ()
    startup_timeout_s: float = 60.0
    dial_timeout_s: float = 10.0
    bootstrap_attempts: int = 5
    bootstrap_wait_s: float = 4.0
    run_id: str = ""
    coordinator_key: bytes = b""
    restarts: int = 5
    restart_window_s: float = 60.0
    pulse_s: float = 2.0

    @classmethod
    def for_listen(
        cls,
        listen: Sequence[str],
        *,
        announce: Sequence[str] = (),
        run_id: str = "",
        coordinator_key: bytes = b"",
        reachable: bool = False,
    ) -> LibP2POptions:
        """NAT traversal and relays on, unless every multiaddress of `listen` is loopback."""
        wide = not all(is_loopback(address) for address in listen)
        return cls(
            relay=wide,
            reachable=reachable,
            auto_nat=wide,
            nat_port_map=wide,
            announce=tuple(announce),
            run_id=run_id,
            coordinator_key=coordinator_key,
        )


def parse_multiaddr(text: str) -> Multiaddr:
    """OPTION_INVALID if `text` is no multiaddress."""
    try:
        return Multiaddr(text)
    except ValueError as error:
        raise HocketError(Code.OPTION_INVALID, f"{text!r} is no multiaddress") from error


def parse_peer_id(text: str) -> PeerID:
    """OPTION_INVALID if `text` is no base58 peer id."""
    try:
        peer_id = PeerID.from_base58(text)
    except ValueError as error:
        raise HocketError(Code.OPTION_INVALID, f"{text!r} is no peer id") from error
    if not peer_id.to_bytes():
        raise HocketError(Code.OPTION_INVALID, "the empty peer id")
    return peer_id


def _dial_bytes(multiaddr: str, peer_id: str) -> bytes:
    """A multiaddress as the daemon reads it, without the peer id at its end.

    hivemind writes a peer id inside a multiaddress (that of a relay) as a CID, the daemon wants the bare multihash.
    """
    parse_multiaddr(multiaddr)
    data = b""
    for number, piece in enumerate(multiaddr.removesuffix(f"/p2p/{peer_id}").split("/p2p/")):
        if number:
            name, slash, piece = piece.partition("/")
            relay, piece = parse_peer_id(name).to_bytes(), slash + piece
            data += put_varint(_P2P_CODE) + put_varint(len(relay)) + relay
        data += parse_multiaddr(piece).to_bytes() if piece else b""
    return data


def same_ports(listen: Sequence[str], visible: Sequence[str]) -> tuple[str, ...]:
    """What to listen on so that the addresses stay as they are: `listen`, with each port 0 made the port that was taken.

    Args:
        visible: where a daemon that listens on `listen` can be dialled. A port that none of them tells stays 0.
    """

    def fixed(address: str) -> str:
        parts = address.split("/")
        if len(parts) < 5 or parts[4] != "0":
            return address
        told = [other.split("/") for other in visible]
        alike = [other for other in told if len(other) > 4 and (other[1], other[3]) == (parts[1], parts[3])]
        # Of a daemon that listens on every interface, the loopback address tells the port: no router maps that one.
        every = parts[2] in ("0.0.0.0", "::")
        mine = [other for other in alike if (is_loopback("/".join(other)) if every else other[2] == parts[2])]
        return "/".join([*parts[:4], mine[0][4], *parts[5:]]) if mine else address

    return tuple(map(fixed, listen))


def is_loopback(multiaddr: str) -> bool:
    parts = multiaddr.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return False
    try:
        return ipaddress.ip_address(parts[2]).is_loopback
    except ValueError:
        return False


class Daemon:
    """A running `p2pd` and its control connection. Make it with `start`, end it with `close`.

    `failed` is set when the process dies by itself, with `exit_code`; this daemon is then of no more use, and every call raises
    CARRIER_FAILED. One that lives but answers no more, as when it is frozen, is killed.
    """

    def __init__(self, p2p: P2P, sockets: SocketDirectory, pulse_s: float) -> None:
        self._p2p = p2p
        self._sockets = sockets
        self._closing = False
        self.exit_code: int | None = None
        self.failed = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())
        self._feeling = asyncio.create_task(self._feel_pulse(Pulse(pulse_s)))

    @classmethod
    async def start(
        cls, identity_path: Path, listen: Sequence[str], state_dir: Path, options: LibP2POptions, *, relays: Sequence[str] = ()
    ) -> Daemon:
        """Start the daemon; by itself it dials nobody but relays, when it needs them.

        Args:
            identity_path: of the libp2p key in hivemind's format; made when absent.
            listen: multiaddresses such as `/ip4/127.0.0.1/tcp/0`.
            state_dir: for the socket directory.
            relays: multiaddresses of the peers through which we may be reached if we are behind a NAT, with `options.relay`.

        Raises:
            HocketError: PORT_TAKEN, CARRIER_FAILED, OPTION_INVALID, STATE_UNREADABLE, IDENTITY_UNREADABLE.
        """
        use_hivemind_log_handler("nowhere")  # its lines go where ours go
        for address in (*listen, *options.announce):
            parse_multiaddr(address)
        await asyncio.to_thread(PeerKey.load_or_create, identity_path)  # the daemon would make one, but not whole or absent
        with contextlib.ExitStack() as undo:
            sockets = SocketDirectory(state_dir)
            undo.callback(sockets.remove)
            begun: list[P2P] = []

            def remember(p2p: P2P) -> None:
                P2P.__init__(p2p)
                begun.append(p2p)

            members = {"_UNIX_SOCKET_PREFIX": f"/unix{sockets.path}/", "__init__": remember}
            kind: type[P2P] = type("P2PInOwnDirectory", (P2P,), members)
            create = kind.create(
                initial_peers=None,
                announce_maddrs=list(options.announce) or None,
                auto_nat=options.auto_nat,
                check_if_identity_free=False,  # that check would start a second daemon with NAT mapping on
                dht_mode="server",
                force_reachability="public" if options.reachable else None,
                host_maddrs=list(listen),
                identity_path=str(identity_path),
                nat_port_map=options.nat_port_map,
                startup_timeout=options.startup_timeout_s,
                trusted_relays=list(relays) if options.relay else None,
                use_auto_relay=options.relay and bool(relays),  # without a list of its own the daemon asks public peers
                use_ipfs=False,
                use_relay=options.relay,
            )
            try:
                p2p = await create
            except P2PDaemonError as error:
                taken = "address already in use" in str(error)
                raise HocketError(Code.PORT_TAKEN if taken else Code.CARRIER_FAILED, str(error)) from error
            except OSError as error:
                raise disk_error(error, identity_path) from error
            except asyncio.CancelledError:
                for p2p in begun:  # it would go on starting, and then be nobody's
                    await p2p.shutdown()
                raise
            undo.pop_all()
        return cls(p2p, sockets, options.pulse_s)

    @property
    def p2p(self) -> P2P:
        return self._p2p

    @property
    def peer_id(self) -> str:
        return str(self._p2p.peer_id.to_base58())

    @property
    def pid(self) -> int:
        """Of the daemon's process."""
        return int(self._p2p._child.pid)

    async def multiaddrs(self) -> tuple[str, ...]:
        """Where we can be dialled, as the daemon sees it now."""
        self._check_alive()
        try:
            return tuple(str(address) for address in await self._p2p.get_visible_maddrs(latest=True))
        except ValueError:
            return ()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise HocketError(Code.CARRIER_FAILED, "it closed its control connection") from error

    async def connect(self, peer_id: str, multiaddrs: Sequence[str]) -> None:
        """Dial a peer at `multiaddrs` and at what the daemon knows of it; nothing to do if it is connected.

        Raises:
            HocketError: PEER_UNREACHABLE with the daemon's words; OPTION_INVALID; CARRIER_FAILED.
        """
        peer = parse_peer_id(peer_id)
        addresses = [_dial_bytes(address, peer_id) for address in multiaddrs]
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.CONNECT, connect=p2pd_pb2.ConnectRequest(peer=peer.to_bytes(), addrs=addresses)
        )
        _, writer, response = await self._ask(request)
        writer.close()
        if response.type == p2pd_pb2.Response.ERROR:
            raise HocketError(Code.PEER_UNREACHABLE, f"{peer_id} ({response.error.msg})")

    async def disconnect(self, peer_id: str) -> None:
        """Close every connection to a peer; nothing to do if there is none. OPTION_INVALID, CARRIER_FAILED."""
        peer = parse_peer_id(peer_id)
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=p2pd_pb2.DisconnectRequest(peer=peer.to_bytes()))
        _, writer, response = await self._ask(request)
        writer.close()
        if response.type == p2pd_pb2.Response.ERROR:
            logger.warning("the daemon does not disconnect from %s: %s", peer_id, response.error.msg)

    async def connected(self) -> set[str]:
        """The ids of the peers that a connection is open to, whoever opened it. CARRIER_FAILED."""
        _, writer, response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        writer.close()
        if response.type == p2pd_pb2.Response.ERROR:
            raise HocketError(Code.CARRIER_FAILED, f"it does not list its peers ({response.error.msg})")
        return {str(PeerID(peer.id).to_base58()) for peer in response.peers}

    async def open_stream(self, peer_id: str, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new stream to a peer for `protocol`, dialling the peer if need be.

        Raises:
            HocketError: PEER_UNREACHABLE with the daemon's words; OPTION_INVALID; CARRIER_FAILED.
        """
        peer = parse_peer_id(peer_id)
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=p2pd_pb2.StreamOpenRequest(peer=peer.to_bytes(), proto=[protocol])
        )
        reader, writer, response = await self._ask(request)
        if response.type == p2pd_pb2.Response.ERROR:
            writer.close()
            raise HocketError(Code.PEER_UNREACHABLE, f"{peer_id} ({response.error.msg})")
        return reader, writer

    async def _ask(self, request: p2pd_pb2.Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, p2pd_pb2.Response]:
        """hivemind's own control calls leave the connection open when they fail or are cancelled; this one does not."""
        self._check_alive()
        response = p2pd_pb2.Response()
        path = self._p2p.daemon_listen_maddr.value_for_protocol("unix")
        with contextlib.ExitStack() as undo:
            try:
                reader, writer = await asyncio.open_unix_connection(path, limit=STREAM_BUFFER_BYTES)
                undo.callback(writer.close)
                await write_pbmsg(writer, request)
                await read_pbmsg_safe(reader, response)
            except (OSError, asyncio.IncompleteReadError, DecodeError) as error:
                raise HocketError(Code.CARRIER_FAILED, "it closed its control connection") from error
            undo.pop_all()
        return reader, writer, response

    def _check_alive(self) -> None:
        if self.failed.is_set() or self._closing:
            raise HocketError(Code.CARRIER_FAILED, "the daemon died" if self.failed.is_set() else "the carrier is closed")

    async def _watch(self) -> None:
        code = await self._p2p._child.wait()
        reading = self._p2p._client.control._read_task if self._p2p._client is not None else None
        if reading is not None:  # it fails with the daemon, which is told below, and not with its traceback
            reading.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        self._feeling.cancel()
        if not self._closing:
            self.exit_code = code
            self.failed.set()

    async def _feel_pulse(self, pulse: Pulse) -> None:
        """Kill the daemon when it answers no more; the watch sees its end."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pulse.within_s)
            asked = loop.time()
            try:
                async with asyncio.timeout(pulse.within_s):
                    await self.connected()
            except HocketError as error:  # it has died, or is closing
                logger.debug("the libp2p daemon is not asked: %s", error.detail)
            except TimeoutError:
                judgement = pulse.unanswered(loop.time() - asked)
                if judgement.stuck and not self._closing:
                    logger.error("the libp2p daemon, pid %d, is killed: %s", self.pid, judgement.reason)
                    self._p2p._child.kill()
                    return
                logger.warning("the libp2p daemon, pid %d: %s", self.pid, judgement.reason)
            else:
                pulse.answered()

    async def close(self) -> None:
        """Stop the daemon, wait for its end, remove the sockets."""
        if self._closing:
            return
        self._closing = True
        try:
            async with asyncio.timeout(STOP_S):
                await self._p2p.shutdown()
        except TimeoutError:
            logger.warning("the libp2p daemon does not end; it is killed")
            self._p2p._child.kill()
        await self._watching
        await asyncio.wait({self._feeling})
        self._p2p._daemon_listen_maddr = self._p2p._client_listen_maddr = None  # or it removes them again when it is collected
        await asyncio.to_thread(self._sockets.remove)
