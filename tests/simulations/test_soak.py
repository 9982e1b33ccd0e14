"""A soak: whom it moves, and what it makes of its samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from simulations.soak import MoveProgress, Sample, by_process, draw_samples, soak_lines, verdicts
from simulations.usage import holding


def status(round_number: int, replicas: list[list[int]], phase: str = "OPEN", unready: tuple[int, ...] = ()) -> dict[str, Any]:
    stages = [
        {
            "stage": stage,
            "replicas": [
                {"member": f"m{n}", "peer_id": f"p{n}", "pid": 100 + n, "operator": f"worker-{n}", "ready": n not in unready}
                for n in numbers
            ],
        }
        for stage, numbers in enumerate(replicas)
    ]
    return {"phase": phase, "round": round_number, "stages": stages}


def test_in_every_tenth_round_the_replica_that_came_last_is_moved_stage_by_stage() -> None:
    moves = MoveProgress(10, 2)
    assert moves.due(status(9, [[0, 2], [1, 3]])) == []
    assert moves.due(status(10, [[0, 2], [1, 3]], "PREPARING")) == []
    kill, join = moves.due(status(10, [[0, 2], [1, 3]]))
    assert (kill.kind, kill.pid, kill.stage, join.kind) == ("kill", 102, 0, "join")
    assert moves.due(status(10, [[0], [1, 3]])) == []
    assert [action.pid for action in moves.due(status(20, [[0, 14], [1, 3]]))] == [103, 0]
    assert [action.pid for action in moves.due(status(30, [[0, 14], [1, 5]]))] == [114, 0]


def test_a_stage_with_one_ready_replica_is_left_alone() -> None:
    moves = MoveProgress(1, 2)
    assert [action.pid for action in moves.due(status(1, [[0, 2], [1, 3]], unready=(2,)))] == [103, 0]
    assert moves.due(status(2, [[0], [1]])) == []


def samples(leak: int = 0) -> list[Sample]:
    """100 looks at three processes; the last of them lives for the first ten only."""
    found = []
    for at in range(100):
        found.append(Sample(float(at), "coordinator", 1, 7, 100 * 2**20 + leak * at, 9, 30, 10))
        found.append(Sample(float(at), "worker-0/p2pd", 2, 8, 50 * 2**20, 12, 40, 20))
        if at < 10:
            found.append(Sample(float(at), "worker-0/p2pd", 3, 9, 50 * 2**20, 12, 40, 20))
    return found


def test_a_leak_is_told_first_and_processes_that_lived_shortly_are_not_judged() -> None:
    flat = verdicts(samples())
    assert {one["process"] for one in flat} == {"coordinator", "worker-0/p2pd"} and all(one["flat"] for one in flat)
    assert len(flat) == 2 * 4 and set(by_process(samples())) == {"coordinator", "worker-0/p2pd", "worker-0/p2pd#3"}
    leaking = verdicts(samples(leak=2**18))
    assert not leaking[0]["flat"] and (leaking[0]["process"], leaking[0]["quantity"]) == ("coordinator", "memory_bytes")
    assert all(one["flat"] for one in leaking[1:]) and verdicts([]) == []
    report = {
        "rounds": 5, "hours": 2.0, "moves": 1, "flat": False, "verdicts": leaking, "acked_updates_lost": 0, "unexpected_ends": [],
    }  # fmt: skip
    assert "not everything was flat" in soak_lines(report)[0] and "GROWS" in soak_lines(report)[2]


def test_each_quantity_has_its_picture(tmp_path: Path) -> None:
    paths = draw_samples(tmp_path, samples())
    assert [path.name for path in paths] == ["memory.png", "threads.png", "descriptors.png", "sockets.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_what_a_process_holds_is_what_the_kernel_counts(tmp_path: Path) -> None:
    before = holding(os.getpid())
    assert before is not None and before.memory_bytes > 2**20 and before.threads >= 1
    reader, writer = os.pipe()
    after = holding(os.getpid())
    os.close(reader)
    os.close(writer)
    assert after is not None and after.descriptors == before.descriptors + 2 and after.sockets == before.sockets
    assert holding(2**22 + 1) is None
