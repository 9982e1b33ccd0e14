"""A whole run through the real door: a coordinator process, scripted members, real files."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.ledger import ledger
from coordinator.outer import nesterov
from node.receipts import open_receipt
from protocol.generated import hocket_pb2 as pb
from protocol.manifest import VersionManifest, read_manifest
from protocol.tensor_files import read_tensors


def finished(view: pb.RunView) -> bool:
    return view.phase == pb.FINISHED


def load(scripted: SimpleNamespace, cid: str, key: bytes) -> tuple[VersionManifest, list[dict[str, np.ndarray]]]:
    """A version from the block store: its manifest and the tensors of each stage."""
    store = scripted.store()
    manifest = read_manifest(VersionManifest, store.read_file(cid), signer=key)
    stages = []
    for stage in manifest.stages:
        path = scripted.folder / f"{stage.cid}.safetensors"
        store.export(stage.cid, path)
        stages.append(read_tensors(path))
    return manifest, stages


def report(scripted: SimpleNamespace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((scripted.state_dir / "report.json").read_text())
    return found


def test_two_rounds_give_the_weights_that_the_updates_say(scripted: SimpleNamespace) -> None:
    scripted.prepare()
    process = scripted.start()
    ticket = process.ticket()

    async def run() -> Any:
        world = await scripted.gather(ticket, 4)
        bases = [world.members[0].view.base_cid]
        await scripted.go_on(world, finished)
        bases += [cid for view in world.members[0].views if (cid := view.base_cid) not in bases]
        return world, list(dict.fromkeys(bases))

    world, bases = asyncio.run(run())
    assert process.terminate() == 0
    assert len(bases) == 3
    versions = [load(scripted, cid, ticket.coordinator_key) for cid in bases[-2:]]
    assert [manifest.version for manifest, _ in versions] == [1, 2]
    manifest, after = versions[1]
    # Outer step recomputed from what the members drew; two updates: the mean.
    for stage in range(2):
        members = sorted(one.member for one in manifest.accepted if one.stage == stage)
        assert len(members) == 2
        for name, weights in versions[0][1][stage].items():
            drawn = [[scripted.draw_update(member, round, manifest, stage)[name] for member in members] for round in (1, 2)]
            first, second = ((pair[0] + pair[1]) / np.float32(2) for pair in drawn)
            expected, _ = nesterov(weights, second, first, lr=0.7, mu=0.9)
            np.testing.assert_array_equal(after[stage][name], expected)
    found = report(scripted)
    assert [one["round"] for one in found["rounds"]] == [1, 2]
    assert [one["heldout_loss"] for one in found["rounds"]] == [3.75, 3.5]
    assert found["initial_heldout_loss"] == 4.0
    np.testing.assert_allclose([one["loss"] for one in found["rounds"]], [3.4, 3.3])
    for one in found["rounds"]:
        # Two replicas, two inner steps each, four rows of a hundred frames an inner step.
        assert one["frames"] == one["target_frames"] == 1600
        assert one["duplicate_microbatches"] == one["dropped_microbatches"] == 0
        for stage in one["stages"]:
            assert (stage["rule"], stage["f"], stage["n"], stage["tolerates"], stage["refused"]) == ("mean", 0, 2, 0, [])
    assert found["final_version"] == {"round": 2, "cid": bases[-1]}
    sums = ledger(found["rounds"])["members"]
    assert {one["member"] for one in sums} == {one.id for one in world.members}
    for member in world.members:
        receipt = open_receipt(member.view.receipt, ticket, member.id)
        assert (receipt.round, receipt.outcome, receipt.version_cid) == (2, "accepted", bases[-1])
        assert next(one["accepted"] for one in sums if one["member"] == member.id) == 2
    spans = sorted((one.epoch, one.start, one.stop) for one in world.leases)
    assert all(before[2] <= start[1] for before, start in pairwise(spans) if before[0] == start[0])
    assert len({one.first_microbatch_id for one in world.leases}) == len(world.leases) == 8


CRASHES = (
    "coordinator.update.acked:stage=1:kill",
    "coordinator.aggregate.stage:stage=0:kill",
    "coordinator.publish.before:kill",
    "coordinator.publish.after:kill",
    "coordinator.journal.append:kind=lease_done:kill",
)


@pytest.mark.timeout(300)
def test_killed_again_and_again_the_run_loses_nothing(scripted: SimpleNamespace) -> None:
    """Five kills in four rounds, at the worst moments: same weights as without, no acknowledged update is lost."""
    scripted.prepare(count=4, floor=60, ceiling=60)  # so that no round closes early where restarts take long
    first = scripted.start(CRASHES[0])
    ticket = first.ticket()

    async def keep_up() -> Any:
        process = first
        for fault in (*CRASHES[1:], None):
            await asyncio.to_thread(process.wait)
            process = scripted.start(*([fault] if fault else []))
            # The same ticket holds: same port, same key, same certificate, same bootstrap peer.
            assert await asyncio.to_thread(process.ticket) == ticket
        return process

    async def run() -> Any:
        world = await scripted.gather(ticket, 4)
        process, _ = await asyncio.gather(keep_up(), scripted.go_on(world, finished, 250))
        return world, process

    world, process = asyncio.run(run())
    assert process.terminate() == 0
    found = report(scripted)
    assert found["coordinator_restarts"] == len(CRASHES)
    assert [one["round"] for one in found["rounds"]] == [1, 2, 3, 4]
    assert [one["frames"] for one in found["rounds"]] == [1600] * 4
    cids = [one["cid"] for one in found["rounds"]]
    versions = [load(scripted, cid, ticket.coordinator_key) for cid in cids[-2:]]
    accepted = {(one.member, one.sha256) for manifest, _ in versions for one in manifest.accepted}
    acked = {(member.id, receipt.sha256.hex()) for member in world.members for receipt in member.receipts if receipt.round >= 3}
    assert len(acked) == 8 and acked <= accepted
    # The newest version follows from the one before, by the updates that its manifest names and the momentum of all rounds.
    manifest, after = versions[1]
    for stage in range(2):
        members = sorted(one.member for one in manifest.accepted if one.stage == stage)
        for name, weights in versions[0][1][stage].items():
            momentum = None
            for round in range(1, 5):
                drawn = [scripted.draw_update(member, round, manifest, stage)[name] for member in members]
                moved, momentum = nesterov(weights, (drawn[0] + drawn[1]) / np.float32(2), momentum, lr=0.7, mu=0.9)
            np.testing.assert_array_equal(after[stage][name], moved)
