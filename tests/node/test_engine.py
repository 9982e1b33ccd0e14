"""The engine: one thread, backward before forward, errors and cancellation come back to the caller."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from common.faults import Fault, Faults
from node.engine import ENGINE_NICENESS, Engine, Priority, to_numpy, to_torch


def test_backward_passes_go_before_forward_passes_and_all_run_on_one_thread() -> None:
    async def main() -> tuple[list[str], set[int]]:
        engine, order, threads = Engine(), [], set()
        gate = threading.Event()

        def work(name: str) -> None:
            threads.add(threading.get_ident())
            order.append(name)

        first = asyncio.create_task(engine.run(Priority.FORWARD, gate.wait))
        await asyncio.sleep(0)
        kinds = [Priority.EVALUATION, Priority.FORWARD, Priority.BACKWARD, Priority.FORWARD, Priority.BACKWARD, Priority.STEP]
        kinds.append(Priority.RETRIED)
        tasks = [asyncio.create_task(engine.run(kind, work, f"{kind.name}-{index}")) for index, kind in enumerate(kinds)]
        await asyncio.sleep(0)
        assert engine.waiting == 7
        gate.set()
        await asyncio.gather(first, *tasks)
        engine.close()
        return order, threads

    order, threads = asyncio.run(main())
    assert order == ["STEP-5", "BACKWARD-2", "BACKWARD-4", "RETRIED-6", "FORWARD-1", "FORWARD-3", "EVALUATION-0"]
    assert len(threads) == 1 and threading.get_ident() not in threads


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_the_engine_lets_the_network_go_first() -> None:
    async def main() -> tuple[int, int]:
        engine = Engine()
        inside = await engine.run(Priority.STEP, lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        engine.close()
        return inside, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    inside, outside = asyncio.run(main())
    assert inside == min(outside + ENGINE_NICENESS, 19)


def test_an_error_comes_back_and_the_engine_goes_on() -> None:
    async def main() -> int:
        engine = Engine()
        with pytest.raises(ZeroDivisionError):
            await engine.run(Priority.FORWARD, lambda: 1 // 0)
        value = await engine.run(Priority.FORWARD, lambda: 7)
        engine.close()
        return value

    assert asyncio.run(main()) == 7


def test_a_cancelled_caller_leaves_the_queue_and_the_others_run() -> None:
    async def main() -> list[str]:
        engine, ran = Engine(), []
        gate = threading.Event()
        running = asyncio.create_task(engine.run(Priority.FORWARD, gate.wait))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(engine.run(Priority.FORWARD, ran.append, name)) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        waiting[1].cancel()
        gate.set()
        await asyncio.gather(running, *waiting, return_exceptions=True)
        await engine.run(Priority.FORWARD, ran.append, "d")
        engine.close()
        return ran

    assert asyncio.run(main()) == ["a", "c", "d"]


def test_the_time_of_training_is_counted_and_that_of_evaluation_is_not() -> None:
    def compute() -> None:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass

    async def main() -> tuple[float, float]:
        engine = Engine()
        await engine.run(Priority.EVALUATION, compute)
        evaluated = engine.busy_s
        await engine.run(Priority.FORWARD, compute)
        with pytest.raises(ZeroDivisionError):
            await engine.run(Priority.BACKWARD, lambda: compute() or 1 / 0)
        engine.close()
        return evaluated, engine.busy_s

    evaluated, busy = asyncio.run(main())
    assert evaluated == 0.0 and busy >= 0.04


@given(offset=st.integers(0, 7), shape=st.lists(st.integers(0, 4), min_size=0, max_size=3))
def test_arrays_are_copied_into_aligned_memory(offset: int, shape: list[int]) -> None:
    count = int(np.prod(shape, dtype=int))
    values = np.arange(count, dtype=np.float32)
    buffer = bytes(offset) + values.tobytes()
    array = np.frombuffer(memoryview(buffer)[offset:], dtype=np.float32).reshape(shape)
    tensor = to_torch(array)
    assert tensor.shape == tuple(shape) and np.array_equal(tensor.numpy(), values.reshape(shape))
    assert tensor.data_ptr() % 16 == 0 or count == 0
    assert np.array_equal(to_numpy(tensor), array)


def test_integers_keep_their_dtype_and_floats_come_back_as_float32() -> None:
    assert to_torch(np.array([1, 65535], dtype=np.uint16)).dtype is torch.uint16
    assert to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


def test_after_a_fault_of_the_device_nothing_runs_any_more_and_the_loop_is_told() -> None:
    async def main() -> None:
        told = asyncio.Event()
        engine = Engine(on_fault=told.set, faults=Faults([Fault.parse("node.device.fault:task=forward,number=2:fail")]))
        try:
            assert await engine.run(Priority.FORWARD, lambda: 1) == 1
            assert await engine.run(Priority.STEP, lambda: 2) == 2
            waiting = [asyncio.ensure_future(engine.run(Priority.FORWARD, lambda: 3)) for _ in range(3)]
            for failed in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(failed, HocketError) and failed.code is Code.DEVICE_FAILED
            await asyncio.wait_for(told.wait(), 10)
            assert "RuntimeError: a fault was injected" in engine.fault
            with pytest.raises(HocketError, match="injected"):
                await engine.run(Priority.STEP, lambda: 4)
        finally:
            engine.close(wait=False)

    asyncio.run(main())


def test_a_device_without_memory_has_failed_and_a_fault_of_the_data_is_none() -> None:
    async def main() -> None:
        engine = Engine()
        try:
            with pytest.raises(HocketError) as caught:
                await engine.run(Priority.STEP, _finds_a_nan)
            assert caught.value.code is Code.NOT_FINITE and engine.fault == ""
            with pytest.raises(HocketError) as caught:
                await engine.run(Priority.STEP, lambda: torch.empty(1 << 60))
            assert caught.value.code is Code.DEVICE_FAILED
        finally:
            engine.close()

    asyncio.run(main())


def _finds_a_nan() -> None:
    raise HocketError(Code.NOT_FINITE, "a gradient")
