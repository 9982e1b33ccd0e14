"""A libp2p peer of its own: bootstrap and relay of a run, and provider of the blocks in a directory.

    python -m swarm.peer --store DIR --state DIR --run-id R --listen MULTIADDR

The coordinator runs it as a child, so that its own process needs neither hivemind nor torch. Once the peer is up it prints
one JSON line `{"peer_id": ..., "multiaddrs": [...]}`; it ends when its standard input closes, as it does when the parent
dies, and with an error line and exit code when the libp2p daemon dies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from common.errors import Code, HocketError
from common.log import set_up_logging
from swarm.block_service import serve_blocks
from swarm.blocks import BlockStore


async def run(args: argparse.Namespace) -> None:
    """Serve until standard input ends.

    Raises:
        HocketError: what `LibP2PCarrier.create` raises; CARRIER_FAILED when the daemon dies; OPTION_INVALID if standard
            input is no pipe.
    """
    parent = await _standard_input()
    from swarm.daemon import LibP2POptions  # here, since it imports torch: a usage error should not wait for that
    from swarm.libp2p import LibP2PCarrier

    state: Path = args.state
    carrier = await LibP2PCarrier.create(
        state / "peer.key",
        bootstrap=args.bootstrap,
        listen=args.listen,
        state_dir=state,
        options=LibP2POptions.for_listen(args.listen, announce=args.announce, run_id=args.run_id),
    )
    try:
        await serve_blocks(carrier, BlockStore(args.store))
        print(json.dumps({"peer_id": carrier.peer_id, "multiaddrs": list(carrier.multiaddrs)}), flush=True)
        orphaned, failed = asyncio.create_task(_until_end(parent)), asyncio.create_task(carrier.wait_failed())
        await asyncio.wait({orphaned, failed}, return_when=asyncio.FIRST_COMPLETED)
        orphaned.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()
    finally:
        await carrier.close()


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
