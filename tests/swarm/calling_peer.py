"""A peer process for tests: `python calling_peer.py STATE_DIR LISTEN BOOTSTRAP` calls `echo` of peers that it is told of.

Each line of standard input is a JSON list of one peer's multiaddresses; the answer is a line with the code of the error, or
with 0 and the addresses of the peer's connections.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from common.errors import HocketError
from swarm.carrier import Message, PeerAddress
from swarm.libp2p import LibP2PCarrier


async def main(state: Path, listen: str, bootstrap: str) -> None:
    carrier = await LibP2PCarrier.create(state / "peer.key", bootstrap=[bootstrap], listen=[listen], state_dir=state)
    print(json.dumps({"multiaddrs": list(carrier.multiaddrs)}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        peer = PeerAddress.from_multiaddrs(json.loads(line))
        data = bytes(range(256)) * 4096
        try:
            answer = await carrier.call(peer, "echo", Message(b"head", [data]), silence_s=6, deadline_s=30)
        except HocketError as error:
            print(json.dumps(int(error.code)), flush=True)
        else:
            print(json.dumps(0 if (answer.head, bytes(answer.body_bytes)) == (b"head", data) else -1), flush=True)
    await carrier.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
