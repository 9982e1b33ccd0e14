"""Pushing beside a run: versions and dataset reach a node and a service, restarts go on, and trouble stays where it is."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ipfs_server import Handler, Ipfs, served
from pushed_run import TOML, Run

from common.errors import Code, HocketError
from coordinator.pushing import read_progress
from coordinator.run_config import RunConfig
from coordinator.status import report_json, status_json
from protocol.generated import hocket_pb2 as pb
from simulations.status_client import fetch_status

pytest.importorskip("httpx2", reason="the extra 'ipfs' is not installed")


@pytest.fixture
def ipfs() -> Iterator[Ipfs]:
    with served(Ipfs()) as server:
        yield server


def test_the_loop_pushes_what_is_there_and_what_comes(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url)
    wanted = run.publish(1) | set(run.pinned)

    async def pinned(roots: set[str]) -> None:
        while not roots <= ipfs.pins:
            await run.core.news(run.core.state.revision, 0.05)

    async def work() -> None:
        task = asyncio.create_task(run.pushing().run())
        try:
            async with asyncio.timeout(60):
                await pinned(wanted)
                await pinned(run.publish(2))
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())


def test_versions_and_dataset_reach_the_node_and_old_versions_leave(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url)
    first = run.publish(1)
    run.push_until(lambda pushing: ipfs.pins == first | set(run.pinned))
    for root in ipfs.pins:
        assert [ipfs.blocks[cid] for cid in ipfs.below(root)], "all blocks are there"
    second, third = run.publish(2), run.publish(3)
    run.push_until(lambda pushing: ipfs.pins == second | third | set(run.pinned))
    assert not (first - second - third) & ipfs.pins and first - second - third


def test_the_status_says_how_far_it_is(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url)
    first, pinned = run.publish(1), set(run.pinned)
    assert status_json(run.core)["ipfs"] is None
    ipfs.answer = lambda handler: handler.json(500, {"Message": "no", "Code": 0}) is None
    pushing = run.push_until(lambda one: run.core.ipfs is not None and run.core.ipfs["failures"] == 1)
    assert run.core.ipfs == {"pushed_round": None, "pending": len(first | pinned), "failures": 1}
    ipfs.answer = lambda handler: False
    run.push_until(lambda one: ipfs.pins == first | pinned, run.pushing())
    assert report_json(run.core)["ipfs"] == {"pushed_round": 1, "pending": 0, "failures": 0}
    run.publish(2)
    run.push_until(lambda one: status_json(run.core)["ipfs"] == {"pushed_round": 2, "pending": 0, "failures": 0}, run.pushing())
    assert pushing.progress.files


def test_a_restart_pushes_nothing_twice(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url)
    wanted = run.publish(1) | set(run.pinned)
    run.push_until(lambda pushing: set(pushing.progress.files) == wanted)
    imports = ipfs.asked.count("POST /api/v0/dag/import")
    assert imports == len(wanted)
    new = run.publish(2) - wanted
    run.push_until(lambda pushing: wanted | new == ipfs.pins)
    assert ipfs.asked.count("POST /api/v0/dag/import") == imports + len(new)


def test_a_pinning_service_keeps_what_the_node_has(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url, pinning=True)
    wanted = run.publish(1) | set(run.pinned)
    pushing = run.push_until(lambda one: sum(file.kept for file in one.progress.files.values()) == len(wanted))
    assert {one["pin"]["cid"] for one in ipfs.kept.values()} == wanted
    assert all(one["pin"]["origins"] == ["/ip4/127.0.0.1/tcp/1/p2p/me"] for one in ipfs.kept.values())
    assert "POST /api/v0/swarm/connect" in ipfs.asked
    assert all(file.on_node for file in pushing.progress.files.values())
    run.publish(2), run.publish(3)
    run.push_until(lambda one: {kept["pin"]["cid"] for kept in ipfs.kept.values()} == ipfs.pins and wanted - ipfs.pins != set())


def test_what_is_refused_or_broken_off_is_tried_again(ipfs: Ipfs, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, ipfs.url)
    wanted = run.publish(1) | set(run.pinned)
    times = iter(range(100))

    def answer(handler: Handler) -> bool:
        turn = next(times)
        if turn >= 4:
            return False
        if turn % 2:
            handler.close_connection = True
        else:
            handler.json(500, {"Message": "disk full", "Code": 0})
        return True

    ipfs.answer = answer
    with caplog.at_level(logging.WARNING):
        run.push_until(lambda pushing: ipfs.pins == wanted)
    assert "disk full" in caplog.text and "H315" in caplog.text


def test_nobody_answers_and_nothing_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(Ipfs()) as gone:
        run = Run(tmp_path, gone.url)
    run.publish(1)
    with caplog.at_level(logging.WARNING):
        pushing = run.push_until(lambda one: one.progress.node.failures >= 3)
    assert "H315" in caplog.text
    assert pushing.progress.files == {}
    assert run.publish(2), "the run goes on"


def test_a_service_that_gives_up_is_asked_anew(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url, pinning=True)
    ipfs.states = ["queued", "failed"]
    run.push_until(lambda pushing: len(ipfs.kept) > 2 * len(run.pinned))
    ipfs.states = ["pinned"]
    pushing = run.push_until(lambda one: sum(file.kept for file in one.progress.files.values()) == len(run.pinned))
    assert set(pushing.progress.files) == set(run.pinned)


def test_a_wrong_token_keeps_nothing_from_the_node(ipfs: Ipfs, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, ipfs.url, pinning=True)
    wanted = run.publish(1) | set(run.pinned)
    with caplog.at_level(logging.WARNING):
        run.push_until(lambda pushing: ipfs.pins == wanted, run.pushing("wrong-token"))
    assert "wrong-token" not in caplog.text
    assert "wrong-token" not in (tmp_path / "ipfs.json").read_text()


def test_a_version_that_the_store_has_lost_is_passed_over(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url)
    lost = run.publish(1)
    for root in lost:
        run.store.remove(root)
    wanted = run.publish(2) | set(run.pinned)
    run.push_until(lambda pushing: ipfs.pins == wanted)
    assert ipfs.pins == wanted and lost - wanted


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": {"a": 3}}', '{"node": {"until": NaN}}', json.dumps({"x": 1})])
def test_a_damaged_memory_is_begun_anew(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ipfs.json"
    path.write_text(text)
    assert read_progress(path).files == {}
    assert "damaged" in caplog.text


def test_a_token_is_needed_for_a_service(ipfs: Ipfs, tmp_path: Path) -> None:
    run = Run(tmp_path, ipfs.url, pinning=True)
    with pytest.raises(HocketError) as caught:
        run.pushing("")
    assert caught.value.code is Code.OPTION_INVALID


def test_the_run_goes_on_while_the_node_hangs_and_is_pushed_afterwards(ipfs: Ipfs, scripted: SimpleNamespace) -> None:
    """A whole coordinator, with members that train two rounds while its node takes a file and says nothing."""
    scripted.prepare(replicas=1)
    with (scripted.folder / "run.toml").open("a") as stream:
        stream.write(f'[ipfs]\nrpc = "{ipfs.url}"\ngateways = ["{ipfs.url}"]\n')
    awake, asleep = threading.Event(), threading.Event()

    def hang(handler: Handler) -> bool:
        asleep.set()
        awake.wait(120)
        return False

    ipfs.answer = hang
    process = scripted.start()
    ticket = process.ticket()

    async def run() -> dict[str, Any]:
        world = await scripted.gather(ticket, 2)
        await scripted.go_on(world, lambda view: view.phase == pb.FINISHED)
        assert asleep.is_set() and not ipfs.pins
        assert list(world.members[0].view.gateways) == [ipfs.url]
        awake.set()
        async with asyncio.timeout(60):
            while True:
                status = await fetch_status(ticket)
                if status["ipfs"] and status["ipfs"]["pending"] == 0:
                    return status
                await asyncio.sleep(0.2)

    try:
        status = asyncio.run(run())
    finally:
        awake.set()
    assert status["ipfs"]["pushed_round"] == 2 and status["version"]["cid"] in ipfs.pins
    assert process.terminate() == 0


@pytest.mark.parametrize(
    "line",
    [
        'rpc = "127.0.0.1"', 'rpc = "http://u:p@h"', 'pinning = "https://a"', 'gateways = ["http://10.0.0.1"]',
        'gateways = ["https://u:p@h"]',
    ],
)  # fmt: skip
def test_run_files_that_do_not_fit(line: str) -> None:
    with pytest.raises(HocketError) as caught:
        RunConfig.parse(TOML + line)
    assert caught.value.code is Code.RUN_FILE_INVALID and "u:p" not in caught.value.detail
