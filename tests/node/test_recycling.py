"""When the compute engine is started anew, and that the optimizer's state outlives it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.local_sgd import LocalStage
from node.recycling import MOST_FAULTS, WITHIN_S, RecyclePlan
from node.station import build_local


@given(st.integers(0, 5), st.integers(0, 30))
def test_an_engine_trains_in_so_many_rounds(every: int, rounds: int) -> None:
    plan, anew = RecyclePlan(every), 0
    for _ in range(rounds):
        if plan.between_rounds().recycle:
            plan.recycled()
            anew += 1
        plan.opened()
    assert anew == (max(rounds - 1, 0) // every if every else 0)


@given(st.lists(st.floats(0.0, 2 * WITHIN_S), max_size=12))
def test_a_device_that_fails_again_and_again_is_given_up(pauses_s: list[float]) -> None:
    plan, now, times = RecyclePlan(), 0.0, [0.0]
    assert plan.after_fault("no memory", now).recycle
    for pause_s in pauses_s:
        now += pause_s
        times.append(now)
        decision = plan.after_fault("no memory", now)
        lately = sum(at > now - WITHIN_S for at in times)
        assert decision.recycle == (lately <= MOST_FAULTS)
        assert decision.reason.startswith("no memory")
        if not decision.recycle:
            return


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_goes_on_with_the_moments_of_the_one_before(harness: ModuleType, stage: int) -> None:
    async def body(chain: Any) -> None:
        await chain.work()
        node = chain.at(stage)[0]
        assert node.local.steps_taken > 0
        moments, steps = node.local.copied_moments(), node.local.steps_taken
        assert moments and all(name.startswith("moments.") for name in moments)
        renewed: LocalStage = build_local(node.context)
        renewed.adopt(node.local.weights())
        renewed.restore(moments, steps, weights=False)
        for name, value in renewed.copied_moments().items():
            assert np.array_equal(value, moments[name]), name
        # The copy is its own: one more step of the old stage does not reach it.
        chain.leases.count += 1
        await chain.work()
        assert any(not np.array_equal(value, moments[name]) for name, value in node.local.copied_moments().items())
        assert all(np.array_equal(value, moments[name]) for name, value in renewed.copied_moments().items())
        assert renewed.steps_taken == steps

    harness.run_chain(harness.Chain(2, 1), body)
