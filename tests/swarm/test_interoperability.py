"""Another libp2p implementation finds our peers and fetches our blocks, knowing the formats and none of our code."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path

import pytest

from protocol.identity import MemberKey
from swarm.block_service import serve_blocks
from swarm.blocks import BlockStore
from swarm.libp2p import LibP2PCarrier
from swarm.records import make_record, wall_clock_ms

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-interop" / "bin" / "python"


@pytest.mark.system
@pytest.mark.skipif(not PYTHON.exists(), reason="py-libp2p has an environment of its own, .venv-interop: make setup-interop")
def test_py_libp2p_finds_peers_and_fetches_a_file(tmp_path: Path) -> None:
    data = hashlib.shake_128(b"file").digest(3_000_000)
    keys = [MemberKey.generate() for _ in range(2)]

    async def work() -> None:
        first = await LibP2PCarrier.create(tmp_path / "a" / "peer.key", state_dir=tmp_path / "a")
        second = await LibP2PCarrier.create(tmp_path / "b" / "peer.key", bootstrap=first.multiaddrs, state_dir=tmp_path / "b")
        try:
            store = BlockStore(tmp_path / "blocks")
            root = store.add_bytes(data)
            expected = []
            for carrier, key in zip((first, second), keys, strict=True):
                await serve_blocks(carrier, store)
                now_ms = wall_clock_ms()
                addresses = list(carrier.multiaddrs)
                record = make_record(
                    key,
                    run_id="run",
                    stage=1,
                    peer_id=carrier.peer_id,
                    multiaddrs=addresses,
                    version_cid=root,
                    throughput=1.5,
                    now_ms=now_ms,
                )
                await carrier.dht.announce(record, "run", 1, carrier.peer_id, now_ms + 60_000)
                expected.append({"member_id": key.member_id, "peer_id": carrier.peer_id, "multiaddrs": addresses})
            client = await asyncio.create_subprocess_exec(
                str(PYTHON),
                str(Path(__file__).with_name("independent_client.py")),
                first.multiaddrs[0],
                "run",
                "1",
                root,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await asyncio.wait_for(client.communicate(), 90)
            assert client.returncode == 0, err.decode()
            seen = json.loads(out)
            assert seen["records"] == sorted(expected, key=lambda record: str(record["peer_id"]))
            assert seen["sha256"] == hashlib.sha256(data).hexdigest()
            assert seen["bytes"] == len(data)
            assert seen["refusal"].startswith("refused: H211 ")
        finally:
            await second.close()
            await first.close()

    asyncio.run(work())
    assert "libp2p" not in sys.modules
