"""The referee's child: when it is asked, cut off and let go, and that its end costs one job at most."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opened_work import CONFIG, SEED, STAGES, commits, honest, pass_opening

from coordinator.children import FIRST_PAUSE_S, RESTART_WINDOW_S, RESTARTS, python_module
from coordinator.referee_child import RefereeChild
from coordinator.referee_life import Facts, Limits, Turn, decide
from protocol.calibration import shipped_calibration
from protocol.tensors import write_tensors
from tts.referee import Referee
from tts.stage_files import write_stage
from tts.stages import build_stage

LIMITS = Limits(job_s=100.0, idle_s=10.0)
TIMES = st.floats(0, 1000)


@given(st.builds(Facts, st.booleans(), st.booleans(), st.none() | TIMES, TIMES, TIMES), TIMES)
def test_a_turn_has_its_time(facts: Facts, now: float) -> None:
    action = decide(facts, now, LIMITS)
    assert action.reason
    if facts.busy_since is not None:
        assert (action.turn is Turn.CUT) == (now - facts.busy_since >= LIMITS.job_s)
        assert action.turn in (Turn.CUT, Turn.WAIT)
    elif action.turn is Turn.ASK:
        assert facts.wanted and (facts.up or now >= facts.start_after)
    elif action.turn is Turn.END:
        assert facts.up and not facts.wanted and now - facts.free_since >= LIMITS.idle_s
    if action.turn is Turn.WAIT and action.look_again_s < float("inf"):
        assert decide(facts, now + action.look_again_s + 1e-6, LIMITS).turn is not Turn.WAIT
    elif action.turn is Turn.WAIT:
        assert not facts.up and not facts.wanted, "only where there is nothing to wait for"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class House:
    """A child with a clock that stands still until it is moved."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.clock = Clock()
        self.log = folder / "referee.log"
        self.child = RefereeChild(lambda: command, self.log, LIMITS, self.clock)

    async def turn(self, *, wanted: bool = True, after_s: float = 0.0) -> Turn:
        self.clock.now += after_s
        return (await self.child.tend(wanted=wanted)).turn

    async def kill(self) -> None:
        """End the child from outside, and have that noticed."""
        pid = self.child.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while await self.turn() is Turn.ASK:
                await asyncio.sleep(0)


WORKER = """
import json, os, sys
print(json.dumps({"up": os.getpid()}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["id"] == "early":
        sys.exit(4)
    print(json.dumps({"begun": job["id"]}), flush=True)
    if job["id"] == "deadly":
        sys.exit(3)
    print("no JSON", flush=True)
    print(json.dumps({"id": job["id"], "ok": True}), flush=True)
"""


def test_an_end_costs_the_job_that_was_begun_and_no_other(tmp_path: Path) -> None:
    house = House(tmp_path, sys.executable, "-c", WORKER)

    async def run() -> None:
        assert await house.turn(wanted=False) is Turn.WAIT and house.child.pid is None, "started on the first need"
        assert await house.turn() is Turn.ASK
        assert await house.child.do({"id": "a"}) == {"id": "a", "ok": True}
        first = house.child.pid
        said = await house.child.do({"id": "deadly"})
        assert said is not None and said["fault"] == "run" and "could not be redone" in said["error"] and "3" in said["error"]
        assert await house.turn() is Turn.WAIT, "the next one waits a little"
        assert await house.turn(after_s=FIRST_PAUSE_S) is Turn.ASK
        assert await house.child.do({"id": "early"}) is None, "what was not begun can be tried once more"
        assert await house.turn(after_s=2 * FIRST_PAUSE_S) is Turn.ASK
        assert await house.child.do({"id": "b"}) == {"id": "b", "ok": True}
        second = house.child.pid
        assert first != second
        assert await house.turn(wanted=False, after_s=LIMITS.idle_s - 1) is Turn.WAIT and house.child.pid == second
        assert await house.turn(wanted=False, after_s=1) is Turn.END and house.child.pid is None
        assert await house.turn() is Turn.ASK, "one that ended because nothing was to do is no failure"
        assert await house.child.do({"id": "c"}) == {"id": "c", "ok": True}
        third = house.child.pid
        await house.child.close()
        assert len({first, second, third}) == 3 and not Path(f"/proc/{third}").exists()

    asyncio.run(run())


def test_one_that_never_comes_up_is_started_a_bounded_number_of_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    house = House(tmp_path, sys.executable, "-c", "import sys; sys.exit(5)")

    async def run() -> None:
        for number in range(RESTARTS + 1):
            assert await house.turn(after_s=FIRST_PAUSE_S * 2**number) is Turn.ASK
            assert await house.child.do({"id": "a"}) is None
        assert await house.turn(after_s=RESTART_WINDOW_S - 1) is Turn.WAIT
        assert await house.turn(after_s=1) is Turn.ASK

    asyncio.run(run())
    assert sum("did not come up" in one.message for one in caplog.records) == RESTARTS + 1
    assert "given up" in caplog.records[-1].message


def pass_job(folder: Path, name: str) -> dict[str, Any]:
    """A job about honest work of the stage in the middle."""
    work = honest()[1]
    write_stage(folder / "base", build_stage(CONFIG, 1, STAGES, seed=1))
    for part in ("input", "output"):
        write_tensors(folder / part, pass_opening(work, 10, part))
    return {
        "id": name, "kind": "pass", "stage": 1, "base": str(folder / "base"), "wire": "fp32", "seed": SEED, "microbatch_id": 10,
        "input": str(folder / "input"), "outputs": {"m": str(folder / "output")}, "prover": "m", "challenge": "07" * 32,
        "commit": commits(work)[1].SerializeToString().hex(),
    }  # fmt: skip


def test_the_real_child_does_one_job_after_another_and_its_death_is_borne(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(CONFIG.to_json())
    config = str(tmp_path / "model.json")
    house = House(tmp_path, *python_module("tts.referee_child", "--config", config, "--stages", str(STAGES)))
    jobs = [pass_job(tmp_path, name) for name in ("a", "b", "c")]
    expected = [json.loads(json.dumps(Referee(CONFIG, STAGES, shipped_calibration()).judge(job))) for job in jobs]
    os.mkfifo(tmp_path / "never")  # whoever opens it waits for a writer

    async def run() -> None:
        assert [await house.child.do(job) for job in jobs[:1]] == expected[:1]
        first = house.child.pid
        assert await house.child.do(jobs[1]) == expected[1] and house.child.pid == first
        await house.kill()
        assert await house.turn(after_s=FIRST_PAUSE_S) is Turn.ASK
        assert await house.child.do(jobs[2]) == expected[2]
        second = house.child.pid
        assert second not in (None, first)
        endless = asyncio.create_task(house.child.do(jobs[0] | {"id": "d", "input": str(tmp_path / "never")}))
        await asyncio.sleep(0)
        assert await house.turn(after_s=LIMITS.job_s - 1) is Turn.WAIT
        async with asyncio.timeout(60):
            while not house.child.at_work:
                await asyncio.sleep(0.01)
        assert await house.turn(after_s=1) is Turn.CUT
        said = await endless
        assert said is not None and said["fault"] == "run" and "within 100 s" in said["error"]
        assert not Path(f"/proc/{second}").exists()

    asyncio.run(run())
    assert expected[0]["verdicts"]["m"]["ok"]
