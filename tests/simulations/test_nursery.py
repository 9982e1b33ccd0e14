"""Processes that are forked from one that has loaded what they need: each is one of its own, and its end is heard of."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from simulations.child import Child, bare_environment
from simulations.nursery import UNKNOWN_CODE, Nursery

WORKER = """
import json, os, random, sys, tempfile
line = sys.stdin.readline().strip()
print(json.dumps({
    "pid": os.getpid(), "folder": os.getcwd(), "environment": dict(os.environ), "arguments": sys.argv[1:], "told": line,
    "name": __name__, "loaded": "torch" in sys.modules, "temporary": tempfile.gettempdir(), "drawn": random.random(),
}), flush=True)
if line == "stay":
    import threading
    threading.Event().wait()
if line == "fail":
    raise RuntimeError("it fails")
sys.exit(int(line))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "born.py").write_text(WORKER)
    return tmp_path


def with_nursery(folder: Path, body: Callable[[Nursery], Awaitable[None]]) -> None:
    async def run() -> None:
        environment = {**bare_environment(folder), "PYTHONPATH": str(folder / "modules")}
        nursery = Nursery(folder / "nest.log", environment)
        await nursery.start()
        try:
            async with asyncio.timeout(120):
                await body(nursery)
        finally:
            await nursery.close()

    asyncio.run(run())


def worker(folder: Path, nursery: Nursery, number: int) -> Child:
    name = f"worker-{number}"
    return Child(name, ["--number", str(number)], folder / name, folder / f"{name}.log", told_later=True, module="born",
                 nursery=nursery)  # fmt: skip


@pytest.mark.timeout(180)
def test_each_is_a_process_of_its_own_and_ends_with_its_own_code(folder: Path) -> None:
    async def body(nursery: Nursery) -> None:
        children = [worker(folder, nursery, number) for number in range(3)]
        for child in children:
            await child.start()
        assert all(child.running for child in children) and len({child.pid for child in children}) == 3
        for child, word in zip(children, ("0", "7", "fail"), strict=True):
            child.tell(word)
        codes = [await child.process.wait() for child in children if child.process is not None]
        assert codes == [0, 7, 1] and not any(child.running for child in children)
        drawn = set()
        for number, child in enumerate(children):
            found = json.loads(child.log_path.read_text().splitlines()[0])
            drawn.add(found.pop("drawn"))
            assert child.temporary is not None
            assert found == {
                "pid": child.pid, "folder": str(child.state_dir), "arguments": ["--number", str(number)], "name": "__main__",
                "told": ("0", "7", "fail")[number], "loaded": True, "temporary": str(child.temporary),
                "environment": bare_environment(child.temporary),
            }  # fmt: skip
        assert len(drawn) == 3
        assert "RuntimeError: it fails" in children[2].log_path.read_text()
        with pytest.raises(HocketError) as told:
            children[2].require()
        assert told.value.code is Code.CHILD_FAILED

    with_nursery(folder, body)


@pytest.mark.timeout(180)
def test_signals_reach_one_alone_and_nobody_outlives_the_nursery(folder: Path) -> None:
    left = []

    async def body(nursery: Nursery) -> None:
        children = [worker(folder, nursery, number) for number in range(3)]
        for child in children:
            await child.start()
            child.tell("stay")
        children[0].signal(signal.SIGKILL)
        assert children[0].process is not None
        assert await children[0].process.wait() == -signal.SIGKILL
        # Frozen, it has not ended.
        children[1].signal(signal.SIGSTOP)
        assert await children[2].stop() == -signal.SIGTERM
        assert children[1].running
        left.append(children[1].pid)

    with_nursery(folder, body)
    assert not Path(f"/proc/{left[0]}").exists()


@pytest.mark.timeout(180)
def test_the_end_of_the_nest_is_told_and_the_end_of_its_forks_is_still_seen(folder: Path) -> None:
    async def body(nursery: Nursery) -> None:
        child = worker(folder, nursery, 0)
        await child.start()
        parent = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != os.getpid()
        os.kill(parent, signal.SIGKILL)
        child.tell("0")
        assert child.process is not None and await child.process.wait() == UNKNOWN_CODE
        with pytest.raises(HocketError) as told:
            await worker(folder, nursery, 1).start()
        assert told.value.code is Code.CHILD_FAILED and "nest.log" in told.value.detail

    with_nursery(folder, body)
