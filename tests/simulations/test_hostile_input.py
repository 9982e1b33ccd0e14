"""Malformed messages against the real readers and services: a short storm of each kind, and what the harness itself notices."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from simulations.hostile import readers as readers_module
from simulations.hostile.fuzz import run_fuzz, shares_of
from simulations.hostile.inputs import Reader, odd_json
from simulations.hostile.mutations import blind, structured
from simulations.hostile.readers import fuzz_readers
from simulations.hostile.tally import Tally, faults_in_logs, faults_in_text


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_short_storm_is_withstood(tmp_path: Path) -> None:
    report = asyncio.run(run_fuzz(1000, 7, tmp_path, targets=("readers", "stage", "blocks", "door")))
    # On a machine that is busy with other things an answer may take its time; what takes long there is judged by the command.
    problems = [problem for problem in report["problems"] if " after " not in problem and " took " not in problem]
    assert problems == [] and report["messages"] == 1000
    assert [target["identical"] for target in report["targets"]] == [None, True, True, None]
    assert {name for target in report["targets"] for name in target["outcomes"]} >= {
        "H308", "H210", "BAD_INPUT", "NOT_A_MEMBER", "UNAUTHENTICATED H308"
    }  # fmt: skip
    assert (tmp_path / "fuzz.json").is_file()


def _raises() -> object:
    raise KeyError("a fault of ours")


def _refuses() -> object:
    raise HocketError(Code.TICKET_INVALID, "no")


@pytest.mark.parametrize(
    ("read", "strict", "outcome", "said"),
    [
        (_raises, False, "fault", "KeyError"),
        (_refuses, True, "H104", ""),
        (lambda: None, True, "harmless", "taken"),
        (lambda: None, False, "harmless", ""),
    ],
)
def test_what_a_reader_does_is_seen(
    read: Callable[[], object], strict: bool, outcome: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Reader("one", lambda draw: blind(draw, b"good"), lambda data: read(), strict)
    monkeypatch.setattr(readers_module, "document_readers", lambda: [one])
    monkeypatch.setattr(readers_module, "bulk_readers", lambda folder: [])
    tally = fuzz_readers(5, 1, tmp_path)
    assert dict(tally.outcomes) == {outcome: 5} and len(tally.faults) == (5 if said else 0)
    assert all(said in fault and "seed 1" in fault for fault in tally.faults)
    assert bool(tally.problems()) == bool(said)


def _computes() -> object:
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    return None


@pytest.mark.parametrize(("read", "slow"), [(_computes, True), (_refuses, False)])
def test_a_reader_that_takes_long_is_named(
    read: Callable[[], object], slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Reader("one", lambda draw: blind(draw, b"good"), lambda data: read(), strict=False)
    monkeypatch.setattr(readers_module, "document_readers", lambda: [one])
    monkeypatch.setattr(readers_module, "bulk_readers", lambda folder: [])
    monkeypatch.setattr(readers_module, "SLOW_S", 0.04)
    tally = fuzz_readers(2, 1, tmp_path)
    assert [("took" in fault) for fault in tally.faults] == [True, True] * slow


async def _leaves_faults_to_the_loop(tally: Tally) -> None:
    with faults_in_logs(tally):
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: {}["lost"])
        await asyncio.sleep(0)
        loop.call_exception_handler({"message": "no exception"})


def test_a_tally_says_what_was_not_withstood() -> None:
    tally = Tally("t", limit_bytes=10)
    tally.health(0.5)
    tally.grown_bytes, tally.identical = {"p": 9}, True
    assert tally.problems() == []
    tally.health(1.5)
    tally.health(0.1)
    tally.grown_bytes, tally.identical = {"p": 11}, False
    assert [word for problem in tally.problems() for word in ("1.50 s", "grew", "differs") if word in problem] == [
        "1.50 s", "grew", "differs"
    ]  # fmt: skip
    with faults_in_logs(tally):
        logging.getLogger("swarm.exchange").info("fine")
        logging.getLogger("anything").warning("not fine", exc_info=ValueError("bad"))
    assert len(tally.faults) == 1 and "bad" in tally.faults[0]
    asyncio.run(_leaves_faults_to_the_loop(tally))
    assert len(tally.faults) == 3 and "lost" in tally.faults[1] and "no exception" in tally.faults[2]
    text = "INFO fine\nTraceback (most recent call last):\n  File x\n    y()\nValueError: bad\nINFO fine\n"
    assert faults_in_text(text) == ["ValueError: bad"] and faults_in_text("INFO Traceback is a word") == []


def test_mutations_are_functions_of_the_seed_and_change_something() -> None:
    message = pb.UpdateHead(round=3, base_cid="b", microbatches=[pb.CountedMicrobatch(id=1, frames=2)])
    good = message.SerializeToString()
    for seed in range(200):
        assert blind(random.Random(seed), good) == blind(random.Random(seed), good)
        assert blind(random.Random(seed), good)[1] != good
        name, changed = structured(random.Random(seed), message)
        assert name.startswith("UpdateHead.") and changed == structured(random.Random(seed), message)[1]
        assert odd_json(random.Random(seed), {"a": [1, {"b": "c"}]}) == odd_json(random.Random(seed), {"a": [1, {"b": "c"}]})
        assert changed != message
    assert message.SerializeToString() == good


def test_messages_are_shared_out_whole() -> None:
    assert sum(shares_of(1001, ("readers", "stage", "blocks")).values()) == 1001
    assert shares_of(10, ("blocks",)) == {"blocks": 10}
    with pytest.raises(HocketError) as caught:
        shares_of(10, ("blocks", "moon"))
    assert caught.value.code is Code.OPTION_INVALID
