"""Which devices there are, how much memory they have left, and batches that fit it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from common.errors import Code, HocketError

UNLIMITED = 1 << 60  # what control groups without a limit say is more
OUT_OF_MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
)

Result = TypeVar("Result")


def available_devices() -> list[str]:
    """The devices that torch can use here, the fastest first: "cuda:0", ..., "mps", and always "cpu"."""
    found = [f"cuda:{n}" for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def check_device(device: str) -> str:
    """The device, or "cuda:0" for "cuda".

    Raises:
        HocketError: OPTION_INVALID where torch cannot use it here; the message names those that it can.
    """
    name = "cuda:0" if device == "cuda" else device
    known = available_devices()
    if name not in known:
        raise HocketError(Code.OPTION_INVALID, f"there is no device {device} here; there are: {', '.join(known)}")
    return name


def free_bytes(device: str) -> int:
    """Memory that is free for this process on a device: a card's, or the machine's within what control groups allow."""
    place = torch.device(device)
    if place.type == "cuda":
        kept = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)  # in torch's cache, for us to use
        return int(torch.cuda.mem_get_info(place)[0]) + kept
    if place.type == "mps":
        return max(0, int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory()))
    return min(_machine_free_bytes(), *_group_free_bytes())


def batch_size_for(bytes_per_item: int, free: int, *, share: float = 0.5, at_most: int) -> int:
    """How many items fit in a share of the free memory: at least 1, at most `at_most`."""
    return max(1, min(at_most, int(free * share) // max(1, bytes_per_item)))


def run_in_halves(
    items: Any,
    run: Callable[[Any], Sequence[Result]],
    *,
    is_out_of_memory: Callable[[BaseException], bool],
) -> list[Result]:
    """The results of all items, in order. Where a batch does not fit, it and those after it are halved, down to one item.

    Args:
        items: what has a length and can be sliced: a list, an array, a tensor.
        run: gives one result for each item of a slice of `items`.
        is_out_of_memory: whether an error of `run` means that the batch did not fit; any other goes through.
    """
    results: list[Result] = []
    size = len(items)
    while len(results) < len(items):
        part = items[len(results) : len(results) + size]
        try:
            results += run(part)
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            size = (size + 1) // 2
    return results


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in any of the ways in which torch and its libraries say it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in OUT_OF_MEMORY_SIGNS)


def release_caches(device: str) -> None:
    """Give back what torch keeps of a device's memory for later, so that the next stage finds it free."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.empty_cache()
    elif kind == "mps":
        torch.mps.empty_cache()


def _machine_free_bytes() -> int:
    """MemAvailable on Linux; elsewhere a quarter of the memory there is."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def _group_free_bytes(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What each control group (version 2) above this process leaves free; at least one number."""
    found = [UNLIMITED]
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    group = root / path.strip("/")
    while group.is_relative_to(root):
        try:
            limit = (group / "memory.max").read_text(encoding="ascii").strip()
            if limit != "max":
                used = int((group / "memory.current").read_text(encoding="ascii"))
                stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                found.append(max(0, int(limit) - used + int(stat.get("inactive_file", 0))))
        except (OSError, ValueError):
            pass  # a group without a memory controller
        group = group.parent
    return found
