"""The listener beside a run: what it puts into journal, status and report; what goes wrong in it ends nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_run import small_run
from spoken_dataset import dataset_manifest, publish, utterances

from common.errors import Code, HocketError
from common.faults import NO_FAULTS
from coordinator.core import Core
from coordinator.journal import Journal
from coordinator.listening import Listening, next_choice, read_result
from coordinator.run import RunState
from coordinator.run_config import RunConfig
from coordinator.status import report_json, status_json
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from swarm.blocks import BlockStore

TOML = small_run(4) + """[previews]
every = 2
keep = 1
sentences = ["Good morning."]
"""


class Run:
    """A core whose versions are there without anybody having trained them."""

    def __init__(self, folder: Path, toml: str = TOML) -> None:
        self.folder = folder
        self.key = MemberKey.generate()
        self.store = BlockStore(folder / "blocks")
        self.journal = Journal(folder / "journal.sqlite", NO_FAULTS)
        self.core = Core(RunConfig.parse(toml), self.journal, RunState(), NO_FAULTS, lambda: 1000.0)
        dataset = {"rows": 6, "frames": 600, "heldout_rows": 6, "cid": "d", "codec": {}, "pinned": []}
        self.core.emit("created", run_id="r", run_toml=toml, stages=2, model_config={}, dataset=dataset)
        self.listening = Listening(self.core, self.key.public, folder, folder)

    def publish(self, round: int) -> str:
        manifest, shards = dataset_manifest([], utterances(4))
        cid = publish(self.store, self.folder, self.key, manifest, shards, round=round)
        self.core.emit("version", version=round, round=round, cid=cid, frames=0, record=None)
        return cid

    def claim(self, round: int) -> None:
        """A version that the block store does not have."""
        cid = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
        self.core.emit("version", version=round, round=round, cid=cid, frames=0, record=None)

    async def listen(self) -> None:
        task = asyncio.create_task(self.listening.run())
        await self.listening.caught_up()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.timeout(300)
def test_a_version_is_heard_and_the_run_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    cid = run.publish(2)
    assert status_json(run.core)["listening"] == 2
    (tmp_path / "previews" / "round-1").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        asyncio.run(run.listen())
    folder = tmp_path / "previews" / "round-2"
    assert {path.suffix for path in folder.iterdir()} == {".json", ".wav", ".png"}
    assert not (tmp_path / "previews" / "round-1").exists(), "one round's previews are kept"
    status, report = status_json(run.core), report_json(run.core)
    assert status["listening"] is None
    (watch,) = report["watch"]
    assert (watch["round"], watch["cid"], watch["previews"], watch["errors"]) == (2, cid, 1, [])
    assert watch["watch"]["groups"][0]["kind"] == "all" and watch["seconds"] > 0
    assert "text_not_read" in {alarm["kind"] for alarm in report["alarms"]}
    assert all(alarm["round"] == 2 and alarm["group"] and alarm["reason"] for alarm in report["alarms"])
    assert [status[key] for key in ("watch", "alarms")] == [report[key] for key in ("watch", "alarms")]
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("this model does not read its text" in line for line in warnings) == 1
    # What was heard survives a restart.
    again = RunState()
    for event in run.journal.events():
        again.apply(event)
    assert again.listened == run.core.state.listened
    assert next_choice(again, run.core.config).round is None


def test_a_listener_that_fails_is_logged_and_never_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    run.claim(2)
    with caplog.at_level(logging.WARNING):
        asyncio.run(run.listen())
    (watch,) = report_json(run.core)["watch"]
    assert watch["watch"] is None and watch["errors"][0].startswith(f"H{int(Code.BLOCK_NOT_FOUND)}")
    assert "listening to round 2" in caplog.text and report_json(run.core)["alarms"] == []
    assert next_choice(run.core.state, run.core.config).round is None


def test_a_listening_that_is_broken_off_ends_its_child(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.publish(4)

    async def broken_off() -> None:
        task = asyncio.create_task(run.listening.run())
        while not (tmp_path / "listen.log").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(broken_off())
    assert run.core.state.listened == [] and next_choice(run.core.state, run.core.config).round == 4


def test_a_folder_that_cannot_be_used_ends_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.claim(2)
    (tmp_path / "previews").write_text("in the way")
    asyncio.run(run.listen())
    assert f"H{int(Code.STATE_UNREADABLE)}" in report_json(run.core)["watch"][0]["errors"][0]


@pytest.mark.parametrize("text", ["", "[]", "null", '{"errors": []}', '{"errors": 1, "alarms": [], "previews": []}', "\x00"])
def test_a_result_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "watch.json").write_text(text)
    with pytest.raises(HocketError) as caught:
        read_result(tmp_path / "watch.json")
    assert caught.value.code is Code.CHILD_FAILED


def test_previews_of_a_run_file() -> None:
    assert RunConfig.parse(TOML.split("[previews]")[0]).previews.every == 10
    for wrong in ("every = -1", "keep = 0", 'sentences = [""]', 'codec = ""', "each = 3"):
        with pytest.raises(HocketError) as caught:
            RunConfig.parse(TOML.split("[previews]")[0] + f"[previews]\n{wrong}\n")
        assert "previews." in caught.value.detail


@pytest.mark.timeout(300)
def test_a_run_whose_listener_fails_goes_to_its_end(scripted: SimpleNamespace) -> None:
    """The held-out shards of the scripted dataset are no shards; the coordinator ends by itself, after the last version."""
    scripted.prepare(previews=1)
    process = scripted.start(exits=True)
    ticket = process.ticket()

    async def run() -> Any:
        world = await scripted.gather(ticket, 4)
        await scripted.go_on(world, lambda view: view.phase == pb.FINISHED)

    asyncio.run(run())
    assert process.wait(250) == 0
    report = json.loads((scripted.state_dir / "report.json").read_text())
    assert [one["round"] for one in report["rounds"]] == [1, 2] and report["finished"]
    assert report["watch"][-1]["round"] == 2 and report["watch"][-1]["watch"] is None
    assert f"H{int(Code.SHARD_DAMAGED)}" in report["watch"][-1]["errors"][0]
    assert "listening to round 2" in process.log.read_text()
