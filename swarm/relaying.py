"""Being reached through a relay: a slot reserved at each bootstrap peer, for as long as the carrier runs.

A worker behind a router that lets nobody in dials the bootstrap peer, and others reach it over that connection, at
`<address of the relay>/p2p-circuit/p2p/<its id>`. Direct addresses are announced beside that one, and dialled first.

Source: libp2p specification, circuit relay v2, https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md. The daemon
answers the relay's side of it by itself; but it reserves a slot of its own accord only when it has several relays to choose from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.wire import put_varint
from swarm.bootstrap import reach
from swarm.carrier import PeerAddress
from swarm.daemon import Daemon, LibP2POptions

logger = logging.getLogger(__name__)

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
MAX_ANSWER_BYTES = 4096
ANSWER_S = 10.0
OK = 100
MAX_RELAYS = 3
RENEW_EVERY_S = 30.0  # a relay forgets us with the connection, and nobody tells us
PAUSE_LIMIT_S = 60.0


def circuit_addresses(relay: PeerAddress, peer_id: str) -> list[str]:
    """Where a peer that has a slot at `relay` can be dialled."""
    return [f"{address}/p2p-circuit/p2p/{peer_id}" for address in relay.multiaddrs if "/p2p-circuit" not in address]


async def reserve(daemon: Daemon, relay: PeerAddress, options: LibP2POptions) -> int:
    """Ask a relay for a slot, or for longer; it dials us by itself when somebody wants us.

    Returns: when the slot runs out, in seconds since the epoch by the relay's clock.

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
    return int(answer.reservation.expire)


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

    def __init__(self, relays: Sequence[PeerAddress], peer_id: str, ask: Callable[[PeerAddress], Awaitable[int]]) -> None:
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
            await self._ask(relay)
        except HocketError as error:
            if relay.peer_id in self._held or error.code is not Code.PEER_UNREACHABLE:
                logger.warning("we are not reached through the relay %s: %s", relay.multiaddrs[0], error.line())
            self._held.discard(relay.peer_id)
            return
        if relay.peer_id not in self._held:
            logger.info("we can be reached through the relay %s", relay.multiaddrs[0])
            self._held.add(relay.peer_id)
