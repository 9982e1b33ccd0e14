"""A libp2p peer of its own: bootstrap and relay of a run, and provider of the blocks in a directory.

    python -m swarm.peer --store DIR --state DIR --run-id R --listen MULTIADDR

The coordinator runs it as a child, so that its own process needs neither hivemind nor torch. Once the peer is up it prints
one JSON line `{"peer_id": ..., "multiaddrs": [...]}`, and from then on, whenever it has sent more, a line
`{"block_bytes_sent": N}` with the total since its start. On standard input the parent may write lines
`{"coordinator_record": BASE64}`: a signed record of where the coordinator is, which is published in the DHT. The peer ends when
its standard input closes, as it does when the parent dies, and with an error line and exit code when the libp2p daemon dies
too often.

A parent that is started anew at once may start its next child while the last one still ends: the new one waits until it has
the state directory for itself, since both would use the same sockets, key and port.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from google.protobuf.message import DecodeError

from common.ending import leave_memory_to_the_system
from common.errors import Code, HocketError
from common.lock import locked
from common.log import set_up_logging
from protocol.generated import hocket_pb2 as pb
from swarm.block_service import BLOCKS_PROTOCOL, serve_blocks
from swarm.blocks import BlockStore
from swarm.carrier import Carrier
from swarm.directory import Directory

LOCK_WAIT_S = 60.0
LOCK_LOOK_S = 0.1
TRAFFIC_EVERY_S = 1.0
RECORDS_WAITING = 1

logger = logging.getLogger(__name__)


async def run(args: argparse.Namespace) -> None:
    """Serve until standard input ends.

    Raises:
        HocketError: what `LibP2PCarrier.create` raises; CARRIER_FAILED when the daemon dies; STATE_LOCKED if another process
            keeps the state directory; OPTION_INVALID if standard input is no pipe.
    """
    # A terminal sends these to the parent too, which closes our standard input when it wants us to end.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    records: asyncio.Queue[pb.Signed] = asyncio.Queue(RECORDS_WAITING)
    orphaned = asyncio.create_task(_listen(await _standard_input(), records))
    serving = asyncio.create_task(_serve(args, records))
    try:
        await asyncio.wait({orphaned, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and not orphaned.done():
            serving.result()
    finally:
        for task in (orphaned, serving):
            task.cancel()
        await asyncio.wait({orphaned, serving})


async def _serve(args: argparse.Namespace, records: asyncio.Queue[pb.Signed]) -> None:
    """Serve until the daemon dies too often, whose error is raised, or until cancelled."""
    from swarm.daemon import LibP2POptions  # here, since it imports torch: a usage error should not wait for that
    from swarm.libp2p import LibP2PCarrier

    state: Path = args.state
    async with _alone_in(state):
        carrier = await LibP2PCarrier.create(
            state / "peer.key",
            bootstrap=args.bootstrap,
            listen=args.listen,
            state_dir=state,
            options=LibP2POptions.for_listen(
                args.listen, announce=args.announce, run_id=args.run_id, coordinator_key=args.coordinator,
                reachable=True,  # the ticket says so
            ),
        )
        try:
            await serve_blocks(carrier, BlockStore(args.store))
            _tell({"peer_id": carrier.peer_id, "multiaddrs": list(carrier.multiaddrs)})
            beside = {
                asyncio.create_task(_tell_traffic(carrier)),
                asyncio.create_task(_publish(carrier.dht, args.run_id, records)),
            }
            try:
                raise await carrier.wait_failed()
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
        finally:
            await carrier.close()


def _tell(words: dict[str, object]) -> None:
    """One line to the parent; one that is gone is told apart by our standard input."""
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), (json.dumps(words) + "\n").encode())


async def _tell_traffic(carrier: Carrier) -> None:
    told_bytes = 0
    while True:
        await asyncio.sleep(TRAFFIC_EVERY_S)
        sent_bytes = carrier.bytes_sent.get(BLOCKS_PROTOCOL, 0)
        if sent_bytes != told_bytes:
            _tell({"block_bytes_sent": sent_bytes})
            told_bytes = sent_bytes


@contextlib.asynccontextmanager
async def _alone_in(state: Path) -> AsyncIterator[None]:
    """Hold the state directory; wait for a process that still holds it. STATE_LOCKED if it does not go, STATE_UNREADABLE."""
    deadline = time.monotonic() + LOCK_WAIT_S
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(state))
                break
            except HocketError as error:
                if error.code is not Code.STATE_LOCKED or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOCK_LOOK_S)  # the system tells nobody that a lock is free
        yield


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    except (ValueError, OSError) as error:
        raise HocketError(Code.OPTION_INVALID, "standard input must be a pipe that the parent holds open") from error
    return reader


async def _listen(reader: asyncio.StreamReader, records: asyncio.Queue[pb.Signed]) -> None:
    """Take what the parent says until standard input ends; of several records the newest one counts."""
    while True:
        try:
            line = await reader.readline()
            if not line:
                return
            word = json.loads(line)
            signed = pb.Signed.FromString(base64.b64decode(word["coordinator_record"], validate=True))
        except (ValueError, KeyError, TypeError, DecodeError) as error:
            logger.warning("what the parent says is not understood: %s", error)
            continue
        if records.full():
            records.get_nowait()
        records.put_nowait(signed)


async def _publish(directory: Directory, run_id: str, records: asyncio.Queue[pb.Signed]) -> None:
    """Put each record into the DHT; one that does not get there is followed by the next."""
    while True:
        signed = await records.get()
        try:
            await directory.announce_coordinator(signed, run_id)
        except HocketError as error:
            logger.warning("where the coordinator is could not be published: %s", error.line())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m swarm.peer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True, help="directory of the blocks to serve")
    parser.add_argument("--state", type=Path, required=True, help="directory for the peer's key and sockets")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--coordinator", type=bytes.fromhex, default=b"", help="the coordinator's public key, in hexadecimal")
    parser.add_argument("--listen", action="append", required=True, help="multiaddress; may be given several times")
    parser.add_argument("--bootstrap", action="append", default=[], help="multiaddress of a peer to join; several times")
    parser.add_argument("--announce", action="append", default=[], help="multiaddress to announce instead; several times")
    args = parser.parse_args(argv)
    set_up_logging()
    try:
        asyncio.run(run(args))
    except HocketError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    finally:
        leave_memory_to_the_system()
    return 0


if __name__ == "__main__":
    sys.exit(main())
