"""Being reached through a relay: a slot reserved at each bootstrap peer, for as long as the carrier runs.

A worker behind a router that lets nobody in dials the bootstrap peer, and others reach it over that connection, at
`<address of the relay>/p2p-circuit/p2p/<its id>`. Direct addresses are announced beside that one, and dialled first.

Source: libp2p specification, circuit relay v2, https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md. The daemon
answers the relay's side of it by itself; but it reserves a slot of its own accord only when it has several relays to choose from.

It starts two relay services at once, one with the limits that it is told and one with libp2p's own of 128 KiB and two minutes;
whichever is registered last answers. So a peer that is to relay asks itself for a slot, by way of a second daemon, and is
started again until the limit that it grants is the wide one.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.wire import put_varint
from swarm.bootstrap import reach
from swarm.carrier import PeerAddress
from swarm.daemon import Daemon, LibP2POptions, same_ports

logger = logging.getLogger(__name__)

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
MAX_ANSWER_BYTES = 4096
ANSWER_S = 10.0
OK = 100
MAX_RELAYS = 3
RENEW_EVERY_S = 30.0  # a relay forgets us with the connection, and nobody tells us
PAUSE_LIMIT_S = 60.0
ENOUGH_BYTES = 1 << 30
RELAY_STARTS = 20  # half to three quarters of them come out right


@dataclass(frozen=True)
class Grant:
    """A slot at a relay.

    Args:
        expires_s: when it runs out, in seconds since the epoch by the relay's clock.
        limit_bytes: that one relayed connection may carry each way; 0: not limited.
        limit_s: how long one may last; 0: not limited.
    """

    expires_s: int
    limit_bytes: int = 0
    limit_s: int = 0

    @property
    def enough(self) -> bool:
        """Whether a relayed connection carries what a round takes."""
        return not self.limit_bytes or self.limit_bytes >= ENOUGH_BYTES

    def __str__(self) -> str:
        size = f"{self.limit_bytes / 2**20:g} MiB" if self.limit_bytes else "any size"
        return f"{size} a connection, for {self.limit_s} s" if self.limit_s else f"{size} a connection"


def circuit_addresses(relay: PeerAddress, peer_id: str) -> list[str]:
    """Where a peer that has a slot at `relay` can be dialled."""
    return [f"{address}/p2p-circuit/p2p/{peer_id}" for address in relay.multiaddrs if "/p2p-circuit" not in address]


async def reserve(daemon: Daemon, relay: PeerAddress, options: LibP2POptions) -> Grant:
    """Ask a relay for a slot, or for longer; it dials us by itself when somebody wants us.

    Raises:
        HocketError: PEER_UNREACHABLE, PEER_SILENT, STREAM_BROKEN, PEER_REFUSED when it gives none; CARRIER_FAILED.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            if not await reach(daemon, [relay], options):
                raise HocketError(Code.PEER_UNREACHABLE, relay.multiaddrs[0])
            reader, writer = await daemon.open_stream(relay.peer_id, HOP_PROTOCOL)
            try:
                asked = pb.RelayHop(type=pb.RelayHop.RESERVE).SerializeToString()
                writer.write(put_varint(len(asked)) + asked)
                await writer.drain()
                answer = pb.RelayHop.FromString(await reader.readexactly(await _size(reader)))
            finally:
                writer.close()
    except TimeoutError as error:
        raise HocketError(Code.PEER_SILENT, f"the relay {relay.peer_id} does not answer") from error
    except (OSError, asyncio.IncompleteReadError, DecodeError) as error:
        raise HocketError(Code.STREAM_BROKEN, f"the relay {relay.peer_id} gives no whole answer") from error
    if answer.type != pb.RelayHop.STATUS or answer.status != OK or not answer.HasField("reservation"):
        raise HocketError(Code.PEER_REFUSED, f"the relay {relay.peer_id} gives no slot (status {answer.status})")
    return Grant(int(answer.reservation.expire), int(answer.limit.data), int(answer.limit.duration))


async def start_daemon(
    identity_path: Path, listen: Sequence[str], state_dir: Path, options: LibP2POptions, *, relays: Sequence[str] = ()
) -> Daemon:
    """As `Daemon.start`; one that is to relay for others is started again until it grants enough to be of use."""
    for attempt in range(1, RELAY_STARTS + 1):
        daemon = await Daemon.start(identity_path, listen, state_dir, options, relays=relays)
        if not (options.relay and options.reachable):
            return daemon
        try:
            grant = await _grant_of(daemon, listen)
        except HocketError as error:
            logger.warning("what we carry as a relay is not known: %s", error.line())
            return daemon
        except asyncio.CancelledError:
            await daemon.close()
            raise
        if grant.enough:
            return daemon
        if attempt == RELAY_STARTS:
            break
        logger.info("as a relay we would carry %s; the daemon is started again, %d of %d", grant, attempt, RELAY_STARTS)
        await daemon.close()
    logger.warning("as a relay we carry no more than %s: who is behind a router cannot train through us", grant)
    return daemon


async def _grant_of(daemon: Daemon, listen: Sequence[str]) -> Grant:
    """What a daemon that listens there grants as a relay, asked by way of one more daemon on this machine."""
    visible = await daemon.multiaddrs()
    here = [_from_here(address) for address in same_ports(listen, visible)]
    addresses = tuple(f"{address}/p2p/{daemon.peer_id}" for address in dict.fromkeys(here) if "/tcp/0" not in address)
    options = LibP2POptions()
    with tempfile.TemporaryDirectory(prefix="hocket-") as folder:
        asker = await Daemon.start(Path(folder) / "peer.key", ["/ip4/127.0.0.1/tcp/0"], Path(folder), options)
        try:
            return await reserve(asker, PeerAddress(daemon.peer_id, addresses or visible), options)
        finally:
            await asker.close()


def _from_here(address: str) -> str:
    """Where this machine itself dials what listens at an address: on every interface means on loopback too."""
    for every, loopback in (("/ip4/0.0.0.0/", "/ip4/127.0.0.1/"), ("/ip6/::/", "/ip6/::1/")):
        if address.startswith(every):
            return loopback + address.removeprefix(every)
    return address


async def _size(reader: asyncio.StreamReader) -> int:
    """The length before a message: a varint, at most 4096. STREAM_BROKEN."""
    value = 0
    for shift in (0, 7):
        byte = (await reader.readexactly(1))[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise HocketError(Code.STREAM_BROKEN, "a relay's answer is too long")
    if value > MAX_ANSWER_BYTES:
        raise HocketError(Code.STREAM_BROKEN, f"a relay's answer of {value} bytes")
    return value


def relays_of(bootstrap: Sequence[PeerAddress], options: LibP2POptions) -> list[PeerAddress]:
    """The peers at which a slot is wanted; none where relays are off, or we are reachable ourselves."""
    return list(bootstrap)[:MAX_RELAYS] if options.relay and not options.reachable else []


class Slots:
    """The slots of one carrier, renewed while `keep` runs.

    Args:
        relays: where to have one.
        peer_id: our own.
        ask: makes one request for a slot at a relay, as `reserve` does.
    """

    def __init__(self, relays: Sequence[PeerAddress], peer_id: str, ask: Callable[[PeerAddress], Awaitable[Grant]]) -> None:
        self._relays = list(relays)
        self._peer_id = peer_id
        self._ask = ask
        self._held: set[str] = set()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where we can be dialled through the relays at which we have a slot."""
        held = [relay for relay in self._relays if relay.peer_id in self._held]
        return tuple(address for relay in held for address in circuit_addresses(relay, self._peer_id))

    @property
    def wanted(self) -> bool:
        """Whether there is a relay to ask."""
        return bool(self._relays)

    async def ask_all(self) -> None:
        """One request at each relay, all at once."""
        await asyncio.gather(*map(self._ask_one, self._relays))

    async def keep(self) -> None:
        """Renew every slot, and ask again with growing pauses where there is none, until cancelled."""
        await asyncio.gather(*map(self._keep_one, self._relays))

    async def _keep_one(self, relay: PeerAddress) -> None:
        failures = 0
        while True:
            held = relay.peer_id in self._held
            failures = 0 if held else failures + 1
            await asyncio.sleep(RENEW_EVERY_S if held else min(PAUSE_LIMIT_S, 2.0**failures))
            await self._ask_one(relay)

    async def _ask_one(self, relay: PeerAddress) -> None:
        try:
            grant = await self._ask(relay)
        except HocketError as error:
            if relay.peer_id in self._held or error.code is not Code.PEER_UNREACHABLE:
                logger.warning("we are not reached through the relay %s: %s", relay.multiaddrs[0], error.line())
            self._held.discard(relay.peer_id)
            return
        if relay.peer_id not in self._held:
            level = logging.INFO if grant.enough else logging.WARNING
            logger.log(level, "we can be reached through the relay %s, which carries %s", relay.multiaddrs[0], grant)
            self._held.add(relay.peer_id)
