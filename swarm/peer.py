"""A libp2p peer of its own: bootstrap and relay of a run, and provider of the blocks in a directory.

    python -m swarm.peer --store DIR --state DIR --run-id R --listen MULTIADDR

The coordinator runs it as a child, so that its own process needs neither hivemind nor torch. Once the peer is up it prints
one JSON line `{"peer_id": ..., "multiaddrs": [...]}`, and from then on, whenever it has sent more, a line
`{"block_bytes_sent": N}` with the total since its start. It ends when its standard input closes, as it does when the parent
dies, and with an error line and exit code when the libp2p daemon dies.

A parent that is started anew at once may start its next child while the last one still ends: the new one waits until it has
the state directory for itself, since both would use the same sockets, key and port.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from common.errors import Code, HocketError
from common.lock import locked
from common.log import set_up_logging
from swarm.block_service import BLOCKS_PROTOCOL, serve_blocks
from swarm.blocks import BlockStore
from swarm.carrier import Carrier

LOCK_WAIT_S = 60.0
LOCK_LOOK_S = 0.1
TRAFFIC_EVERY_S = 1.0


async def run(args: argparse.Namespace) -> None:
    """Serve until standard input ends.

    Raises:
        HocketError: what `LibP2PCarrier.create` raises; CARRIER_FAILED when the daemon dies; STATE_LOCKED if another process
            keeps the state directory; OPTION_INVALID if standard input is no pipe.
    """
    # A terminal sends these to the parent too, which closes our standard input when it wants us to end.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    orphaned = asyncio.create_task(_until_end(await _standard_input()))
    serving = asyncio.create_task(_serve(args))
    try:
        await asyncio.wait({orphaned, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and not orphaned.done():
            serving.result()
    finally:
        for task in (orphaned, serving):
            task.cancel()
        await asyncio.wait({orphaned, serving})


async def _serve(args: argparse.Namespace) -> None:
    """Serve until the daemon dies, whose error is raised, or until cancelled."""
    from swarm.daemon import LibP2POptions  # here, since it imports torch: a usage error should not wait for that
    from swarm.libp2p import LibP2PCarrier

    state: Path = args.state
    async with _alone_in(state):
        carrier = await LibP2PCarrier.create(
            state / "peer.key",
            bootstrap=args.bootstrap,
            listen=args.listen,
            state_dir=state,
            options=LibP2POptions.for_listen(args.listen, announce=args.announce, run_id=args.run_id),
        )
        try:
            await serve_blocks(carrier, BlockStore(args.store))
            _tell({"peer_id": carrier.peer_id, "multiaddrs": list(carrier.multiaddrs)})
            traffic = asyncio.create_task(_tell_traffic(carrier))
            try:
                raise await carrier.wait_failed()
            finally:
                traffic.cancel()
                await asyncio.wait({traffic})
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


async def _until_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m swarm.peer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True, help="directory of the blocks to serve")
    parser.add_argument("--state", type=Path, required=True, help="directory for the peer's key and sockets")
    parser.add_argument("--run-id", required=True)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
