"""One executor thread per device: every tensor operation of a worker runs there, backward passes before forward ones.

The event loop stays free for the network, and torch is entered by one thread only, so passes of different
microbatches never share the cores and the order of additions is under our control.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import torch

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

ENGINE_NICENESS = 5


class Priority(IntEnum):
    """Lower runs first. A backward pass frees a kept graph and lets an upstream stage go on; a whole inner step, at every stage
    before, waits for a microbatch that a replica failed and that has come here instead."""

    STEP = 0
    BACKWARD = 1
    RETRIED = 2
    FORWARD = 3
    EVALUATION = 4


def set_threads(threads: int) -> None:
    """Set torch's thread count for the whole process; call it once, before the first tensor operation.

    Args:
        threads: for one operator, at least 1. Operators never run side by side: only the executor thread calls torch.
    """
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)


def to_torch(array: np.ndarray) -> torch.Tensor:
    """Copy an array into memory that torch allocated, same shape and dtype.

    An array cut out of a received buffer may start anywhere; kernels choose their path by alignment, and with it the
    order of additions. A copy makes the result a function of the values alone.
    """
    tensor = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
    tensor.numpy()[...] = array
    return tensor


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A float32 array of the tensor's shape that shares its memory where it can."""
    return tensor.detach().to(torch.float32).contiguous().cpu().numpy()


def _step_back() -> None:
    """Lower the calling thread's own priority, so that the event loop and the libp2p daemon get a core as soon as they need one.

    A tensor operation does not mind a millisecond's wait; a message that waits for one keeps another machine idle.
    """
    if sys.platform == "linux":  # elsewhere threads have no niceness of their own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + ENGINE_NICENESS)


class Engine:
    """The executor of one device, for one event loop.

    Tasks wait in the loop, ordered by priority and arrival, and one at a time is handed to the thread.

    A task that the device breaks off, or for which it has no memory, leaves weights and sums in an unknown state. So from then on
    the engine runs nothing more: it is to be closed, and what it worked on built anew from what was saved.

    Args:
        name: of the thread.
        on_fault: called in the loop when the device has failed.
        faults: point `node.device.fault`.
    """

    def __init__(
        self, name: str = "engine", *, on_fault: Callable[[], None] = lambda: None, faults: Faults = NO_FAULTS
    ) -> None:
        self._on_fault = on_fault
        self._faults = faults
        self._begun: Counter[str] = Counter()
        self.fault = ""  # why the device failed; empty: it has not
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=_step_back)
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        self._taken = False
        self.busy_s = 0.0  # spent on tasks of training, by the thread

    @property
    def waiting(self) -> int:
        """Tasks that have not begun."""
        return sum(not turn.done() for _, _, turn in self._waiting)

    async def run(self, priority: Priority, task: Callable[..., Result], *args: Any) -> Result:
        """Run `task(*args)` on the executor thread; its result or its exception comes back here.

        A caller that is cancelled before its turn leaves the queue. A task that has begun runs to its end, and the
        next one begins after it, even when its caller has gone.

        Raises:
            HocketError: DEVICE_FAILED when the device fails, or has failed before.
        """
        loop = asyncio.get_running_loop()
        if self._taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._arrivals += 1
            heapq.heappush(self._waiting, (int(priority), self._arrivals, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()  # the turn had come in the same moment
                raise
        self._taken = True
        try:
            if self.fault:
                raise HocketError(Code.DEVICE_FAILED, self.fault)
            return await loop.run_in_executor(self._executor, self._timed, loop, priority, task, *args)
        finally:
            self._pass_on()

    def _timed(
        self, loop: asyncio.AbstractEventLoop, priority: Priority, task: Callable[..., Result], *args: Any
    ) -> Result:
        began = time.monotonic()
        kind = Priority(priority).name.lower()
        self._begun[kind] += 1
        try:
            self._faults.reach("node.device.fault", task=kind, number=self._begun[kind])
            return task(*args)
        except (RuntimeError, MemoryError) as error:  # torch's own, out of memory included, are RuntimeErrors
            self.fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
            logger.error("a task of the kind %s failed on the device", kind, exc_info=error)
            loop.call_soon_threadsafe(self._on_fault)
            raise HocketError(Code.DEVICE_FAILED, self.fault) from error
        finally:
            if priority is not Priority.EVALUATION:
                self.busy_s += time.monotonic() - began

    def _pass_on(self) -> None:
        """Give the turn to the first waiting task; the executor stays taken if there is one."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False

    def close(self, *, wait: bool = True) -> None:
        """End the thread; `wait`: for the running task, which a device that has failed may never end."""
        self._executor.shutdown(wait=wait, cancel_futures=True)
