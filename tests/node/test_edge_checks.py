"""What crosses an edge is judged before it is computed with: far too large is refused, odd or repeated is named."""

from __future__ import annotations

import asyncio
import hashlib
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import HocketError
from node import local_sgd
from node.downstream import Errand
from node.edge_checks import ODDITIES_KEPT, PATIENCE, WARM_UP, EdgeChecks, Finding, RunningScale
from node.wire import StepInput
from protocol.generated import hocket_pb2 as pb

FRAMES = np.array([12, 9], np.int32)


def tensor(seed: int, scale: float = 1.0) -> np.ndarray:
    """Hidden states float32 [2, 14, 96] of two utterances."""
    return (np.random.default_rng(seed).standard_normal((2, 14, 96)) * scale).astype(np.float32)


def arrive(checks: EdgeChecks, identifier: int, value: np.ndarray, what: str = "hidden") -> Finding:
    return checks.arrived(what, "member", identifier, value, FRAMES, hashlib.sha256(value.tobytes()).digest())


def warm(checks: EdgeChecks) -> None:
    for identifier in range(WARM_UP):
        assert arrive(checks, identifier, tensor(identifier)) == Finding()


@given(st.lists(st.floats(-0.6, 0.6), max_size=200), st.floats(-20, 20))
def test_values_that_wander_are_never_refused(steps: list[float], start: float) -> None:
    scale, level = RunningScale(), start
    for step in steps:
        level += step / 4
        assert not scale.judge(math.exp(level)).refused


@given(st.lists(st.floats(0, 1e38), max_size=60), st.floats(1e-3, 1e3))
def test_no_sequence_of_values_shuts_an_honest_sender_out_for_good(hostile: list[float], honest: float) -> None:
    scale = RunningScale()
    for value in hostile:
        scale.judge(value)
    assert any(not scale.judge(honest).refused for _ in range(PATIENCE))


@given(st.lists(st.sampled_from([0.0, 1e-20, 1e20, math.inf, math.nan]), max_size=3), st.integers(0, WARM_UP))
def test_a_few_odd_values_among_the_first_spoil_no_estimate(odd: list[float], where: int) -> None:
    scale = RunningScale()
    first = [1.0] * (WARM_UP - sum(map(math.isfinite, odd)))
    for value in [*first[:where], *odd, *first[where:]]:
        scale.judge(value)
    assert scale.warm and scale.judge(1.1) == Finding() and scale.judge(2e3).refused


@pytest.mark.parametrize("factor", [2e3, 1e10, 1e25])
def test_far_too_large_is_refused_and_named(factor: float) -> None:
    checks = EdgeChecks()
    warm(checks)
    assert arrive(checks, 50, tensor(50, factor)).refused
    (named,) = checks.oddities
    assert (named.member_id, named.microbatch_id, named.what, named.refused) == ("member", 50, "hidden", True)
    assert arrive(checks, 51, tensor(51)) == Finding(), "one of them moves nothing"
    assert arrive(checks, 52, tensor(52, 2e3), "grad") == Finding(), "each direction has an estimate of its own"


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda value: value * 10, "norm"),
        (lambda value: value / 10, "norm"),
        (lambda value: value * 0, "norm"),
        (lambda value: tensor(3), "same bytes"),
        (lambda value: tensor(3) * np.float32(1.001), "nearly the same"),
        (lambda value: np.where(np.arange(14)[None, :, None] % 6 == 0, 0, value).astype(np.float32), "steps are zero"),
    ],
)
def test_what_is_odd_is_named_and_worked_on(spoil: Any, word: str) -> None:
    checks = EdgeChecks()
    warm(checks)
    finding = arrive(checks, 60, spoil(tensor(60)))
    assert not finding.refused and word in finding.reason
    assert [one.microbatch_id for one in checks.oddities] == [60] and not checks.oddities[0].refused


def test_padding_is_not_looked_at_and_a_repeated_request_is_no_repeat() -> None:
    checks = EdgeChecks()
    warm(checks)
    padded = tensor(70)
    padded[0, 12:], padded[1, 9:] = 1e30, 0
    assert arrive(checks, 70, padded) == Finding()
    assert arrive(checks, 70, padded) == Finding(), "the same microbatch again"
    assert arrive(checks, 70, padded * np.float32(1.0001)) == Finding(), "or by way of another replica"


def test_what_is_kept_is_bounded_and_a_new_round_begins_without_it() -> None:
    checks = EdgeChecks()
    warm(checks)
    for identifier in range(100, 150):
        arrive(checks, identifier, tensor(3))
    assert len(checks.oddities) == ODDITIES_KEPT and checks.oddities[-1].microbatch_id == 149
    checks.begin_round()
    assert checks.oddities == [] and arrive(checks, 3, tensor(3)) == Finding()
    assert arrive(checks, 200, tensor(200, 1e5)).refused, "the estimate stays"


def test_an_honest_chain_finds_nothing_odd(harness: ModuleType) -> None:
    chain = harness.Chain(3, 2, leases=harness.Leases(8))

    async def body(chain: Any) -> None:
        await chain.work()

    harness.run_chain(chain, body)
    for stage in (1, 2):
        assert all(node.service._serving.edges.oddities == [] for node in chain.at(stage))
    assert not chain.named("suspected") and not chain.named("dropped")


def test_a_blown_up_gradient_is_refused_by_its_receiver_and_another_replica_is_asked(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = harness.Chain(2, [1, 2], leases=harness.Leases(8))
    liar = chain.at(1)[0]
    honest = local_sgd.LocalStage.backward
    seen = {"passes": 0}

    def backward(self: Any, *args: Any, **more: Any) -> Any:
        grad = honest(self, *args, **more)
        seen["passes"] += self is liar.local
        return grad * np.float32(1e8) if self is liar.local and seen["passes"] > WARM_UP else grad

    monkeypatch.setattr(local_sgd.LocalStage, "backward", backward)

    async def body(chain: Any) -> None:
        await chain.work()
        report = pb.MemberReport(oddities=chain.at(0)[0].downstream._edges.oddities)
        refused = [one for one in report.oddities if one.refused]
        assert refused and {one.member_id for one in refused} == {liar.key.member_id}

    harness.run_chain(chain, body)
    assert {event["peer"] for event in chain.named("suspected")} == {liar.peer_id}
    assert chain.counted(0) == list(range(32)) and not chain.named("dropped")


def test_hidden_states_a_million_times_too_large_are_bad_input(harness: ModuleType) -> None:
    chain = harness.Chain(2, leases=harness.Leases(4))

    async def body(chain: Any) -> None:
        await chain.work()
        first, last = chain.at(0)[0], chain.at(1)[0]
        batch = StepInput(
            np.full((1, 8, harness.CONFIG.d_model), 1e7, np.float32),
            {
                "codes": np.zeros((1, harness.CONFIG.n_codebooks, 6), np.uint16),
                "n_frames": np.array([6], np.int32),
                "speaker": np.zeros((1, harness.CONFIG.speaker_dim), np.float32),
                "language": np.zeros(1, np.int32),
            },
        )
        counted = last.replica.ledger.counted()
        errand = Errand(999, 6, 60, pb.TRAIN, 1, asyncio.get_running_loop().time() + 5)
        with pytest.raises(HocketError, match=r"BAD_INPUT.*times the usual"):
            await first.downstream.call(errand, batch, own_step=0)
        assert last.replica.ledger.counted() == counted and last.replica.in_flight == 0

    harness.run_chain(chain, body)
