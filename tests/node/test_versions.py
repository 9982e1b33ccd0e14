"""Versions by CID: nothing is taken over that the coordinator has not signed, that is older, or that does not fit the model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ipfs_server import Ipfs, served

from common.errors import Code, HocketError
from node.versions import Versions
from protocol.identity import MemberKey
from protocol.manifest import StageFile, TensorEntry, VersionManifest, sign_manifest
from protocol.tensor_files import TensorInfo, info_of, write_tensors
from swarm.block_service import serve_blocks
from swarm.block_swarm import BlockSwarm, Providers
from swarm.blocks import BlockStore
from swarm.carrier import PeerAddress
from swarm.ipfs_fallback import IpfsFallback
from swarm.memory import MemoryCarrier, MemoryNetwork

COORDINATOR = MemberKey.from_seed(b"c" * 32)
WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.ones(3, np.float32)}
PROVIDERS = Providers(origins=(PeerAddress("provider"),))


class Publisher:
    """A peer with a block store, from which a worker fetches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        network = MemoryNetwork()
        self.provider, self.worker = MemoryCarrier(network, "provider"), MemoryCarrier(network, "worker")
        self.store = BlockStore(folder / "provider")
        self.held = BlockStore(folder / "worker" / "blocks")
        self.versions = self.open()

    def open(self) -> Versions:
        return Versions(BlockSwarm(self.worker, self.held), COORDINATOR.public, "run", self.folder / "worker")

    def publish(self, number: int = 3, *, key: MemberKey = COORDINATOR, run_id: str = "run", **changes: Any) -> str:
        """Put a version of one stage into the store; the CID of its manifest."""
        path = self.folder / "stage"
        write_tensors(path, WEIGHTS)
        data = path.read_bytes()
        part: dict[str, Any] = {
            "stage": 0,
            "cid": self.store.add_bytes(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_bytes": len(data),
            "tensors": [TensorEntry(name=info.name, dtype=info.dtype, shape=list(info.shape)) for info in info_of(WEIGHTS)],
        }
        manifest = VersionManifest(
            run_id=run_id,
            version=number,
            round=number,
            model={},
            stages=[StageFile(**{**part, **changes})],
            dataset_cid=part["cid"],
        )
        return self.store.add_bytes(sign_manifest(key, manifest))

    async def weights(self, cid: str, expected: list[TensorInfo] | None = None) -> tuple[dict[str, np.ndarray], bytes]:
        manifest = await self.versions.manifest(cid, PROVIDERS)
        return await self.versions.weights(cid, manifest, 0, expected or info_of(WEIGHTS), PROVIDERS)


def with_publisher(folder: Path, body: Callable[[Publisher], Awaitable[None]]) -> None:
    async def main() -> None:
        publisher = Publisher(folder)
        await serve_blocks(publisher.provider, publisher.store)
        await body(publisher)
        await publisher.worker.close()
        await publisher.provider.close()

    asyncio.run(main())


def refused(code: Code, work: Awaitable[Any]) -> Awaitable[None]:
    async def check() -> None:
        with pytest.raises(HocketError) as caught:
            await work
        assert caught.value.code is code

    return check()


def test_a_version_is_fetched_checked_and_served_on(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        cid = publisher.publish()
        weights, sha256 = await publisher.weights(cid)
        assert all(np.array_equal(weights[name], WEIGHTS[name]) for name in WEIGHTS) and set(weights) == set(WEIGHTS)
        assert sha256 == hashlib.sha256((tmp_path / "stage").read_bytes()).digest()
        assert publisher.held.has(cid)
        assert not (tmp_path / "worker" / "stage.safetensors").exists()
        await publisher.provider.close()  # what is here already needs nobody
        await publisher.weights(cid)

    with_publisher(tmp_path, body)


def test_a_worker_holds_its_own_stage_alone_and_serves_it_on(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        parts = []
        for stage in range(2):
            write_tensors(tmp_path / "part", {name: values + stage for name, values in WEIGHTS.items()})
            data = (tmp_path / "part").read_bytes()
            tensors = [TensorEntry(name=info.name, dtype=info.dtype, shape=list(info.shape)) for info in info_of(WEIGHTS)]
            parts.append(StageFile(
                stage=stage, cid=publisher.store.add_bytes(data), sha256=hashlib.sha256(data).hexdigest(),
                size_bytes=len(data), tensors=tensors,
            ))  # fmt: skip
        made = VersionManifest(run_id="run", version=1, round=1, model={}, stages=parts, dataset_cid=parts[0].cid)
        root = publisher.store.add_bytes(sign_manifest(COORDINATOR, made))
        await serve_blocks(publisher.worker, publisher.held)
        joiner = MemoryCarrier(publisher.worker._network, "joiner")
        store = BlockStore(tmp_path / "joiner" / "blocks")
        later = Versions(BlockSwarm(joiner, store), COORDINATOR.public, "run", tmp_path / "joiner")
        for versions, held, providers in (
            (publisher.versions, publisher.held, PROVIDERS), (later, store, Providers((publisher.worker.address,))),
        ):  # fmt: skip
            manifest = await versions.manifest(root, providers)
            await versions.weights(root, manifest, 1, info_of(WEIGHTS), providers)
            assert {block.cid for block in held.blocks()} == {*held.below(root), *held.below(parts[1].cid)}
            await publisher.provider.close()  # whoever comes later has the first worker alone
        await joiner.close()

    with_publisher(tmp_path, body)


def test_a_version_older_than_one_seen_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        older, newer = publisher.publish(2), publisher.publish(3)
        await publisher.versions.manifest(older, PROVIDERS)
        await publisher.versions.manifest(newer, PROVIDERS)
        await publisher.versions.manifest(newer, PROVIDERS)
        await refused(Code.VERSION_ROLLED_BACK, publisher.versions.manifest(older, PROVIDERS))
        await refused(Code.VERSION_ROLLED_BACK, publisher.open().manifest(older, PROVIDERS))

    with_publisher(tmp_path, body)


def test_only_the_coordinators_own_manifests_of_this_run_are_taken(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        await refused(Code.MANIFEST_INVALID, publisher.weights(publisher.publish(key=MemberKey.generate())))
        await refused(Code.MANIFEST_INVALID, publisher.weights(publisher.publish(run_id="another")))
        await refused(Code.BLOCK_NOT_FOUND, publisher.weights("bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"))

    with_publisher(tmp_path, body)


@pytest.mark.parametrize(
    ("changes", "expected", "code"),
    [
        ({"sha256": "00" * 32}, None, Code.MANIFEST_INVALID),
        ({"tensors": []}, None, Code.MANIFEST_INVALID),
        ({}, [TensorInfo("a.weight", "float32", (2, 3))], Code.MANIFEST_INVALID),
        ({}, [TensorInfo("a.weight", "float32", (3, 2)), TensorInfo("a.bias", "float32", (3,))], Code.MANIFEST_INVALID),
        ({"size_bytes": 1 << 40}, None, Code.MANIFEST_INVALID),
        ({"size_bytes": 10}, None, Code.MESSAGE_TOO_LARGE),
    ],
)
def test_a_stage_file_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], expected: list[TensorInfo] | None, code: Code
) -> None:
    async def body(publisher: Publisher) -> None:
        await refused(code, publisher.weights(publisher.publish(**changes), expected))

    with_publisher(tmp_path, body)


def test_a_damaged_memory_of_versions_is_said(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        (tmp_path / "worker" / "versions.json").write_text("{")
        await refused(Code.STATE_UNREADABLE, publisher.versions.manifest(publisher.publish(), PROVIDERS))

    with_publisher(tmp_path, body)


def test_files_of_versions_long_gone_are_dropped_also_those_of_an_earlier_start(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        roots, parts = [], []
        for number in range(5):
            data = {name: value + number for name, value in WEIGHTS.items()}
            write_tensors(tmp_path / "stage", data)
            content = (tmp_path / "stage").read_bytes()
            parts.append(publisher.store.add_bytes(content))
            roots.append(publisher.publish(number, cid=parts[-1], sha256=hashlib.sha256(content).hexdigest()))
            publisher.versions = publisher.open()
            await publisher.weights(roots[-1])
        assert [publisher.held.has(cid) for cid in roots] == [False, False, True, True, True]
        assert [publisher.held.has(cid) for cid in parts] == [False, False, True, True, True]

    with_publisher(tmp_path, body)


def test_a_file_that_a_kept_version_shares_is_not_dropped(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        roots = [publisher.publish(number) for number in range(5)]
        for root in roots:
            await publisher.weights(root)
        assert publisher.held.has(publisher.store.add_bytes((tmp_path / "stage").read_bytes()))

    with_publisher(tmp_path, body)


def test_shards_go_when_the_store_is_full_and_the_current_version_stays(tmp_path: Path) -> None:
    async def body(publisher: Publisher) -> None:
        shards = [publisher.store.add_bytes(bytes([number]) * 20_000) for number in range(6)]
        versions = Versions(
            BlockSwarm(publisher.worker, publisher.held), COORDINATOR.public, "run", tmp_path / "worker", limit_bytes=70_000
        )
        root = publisher.publish()
        manifest = await versions.manifest(root, PROVIDERS)
        await versions.weights(root, manifest, 0, info_of(WEIGHTS), PROVIDERS)
        for number, cid in enumerate(shards):
            assert await versions.file(cid, PROVIDERS) == bytes([number]) * 20_000
            assert sum(block.size_bytes for block in publisher.held.blocks()) <= 70_000
        assert publisher.held.has(root) and publisher.held.has(manifest.stages[0].cid)
        assert await versions.file(shards[0], PROVIDERS) == bytes([0]) * 20_000, "what was dropped is fetched again"

    with_publisher(tmp_path, body)


def test_a_worker_without_any_peer_gets_its_stage_from_a_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")
    monkeypatch.setattr("swarm.ipfs_fallback.PATIENCE_S", 0.0)

    async def body(publisher: Publisher) -> None:
        root = publisher.publish()
        await publisher.provider.close()
        await refused(Code.BLOCK_NOT_FOUND, publisher.weights(root))
        with served(Ipfs()) as gateway:
            gateway.blocks = {block.cid: publisher.store.get(block.cid) for block in publisher.store.blocks()}
            fallback = IpfsFallback()
            fallback.use([gateway.url])
            publisher.versions = Versions(
                BlockSwarm(publisher.worker, publisher.held), COORDINATOR.public, "run", tmp_path / "worker", fallback=fallback
            )
            weights, _ = await publisher.weights(root)
            await fallback.close()
        assert all(np.array_equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)

    with_publisher(tmp_path, body)
