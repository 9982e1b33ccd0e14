"""What processes use, as the kernel counts it: memory (PSS, which shares common pages out fairly) and processor time."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")


def pss_bytes(pid: int) -> int | None:
    """PSS of one process in bytes; None when it is gone."""
    return _mapped_bytes(pid, ("Pss:",))


def private_bytes(pid: int) -> int | None:
    """What is in memory for one process alone, in bytes; None when it is gone.

    Unlike its PSS, this does not move when other processes come and go that share its libraries.
    """
    return _mapped_bytes(pid, ("Private_Clean:", "Private_Dirty:"))


def _mapped_bytes(pid: int, kinds: tuple[str, ...]) -> int | None:
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    sizes = [int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(kinds)]
    return sum(sizes) if sizes else None


def peak_bytes() -> int:
    """The most that this process itself has had resident since its program began, in bytes.

    `getrusage` would count what its parent had before the program was started in its place.
    """
    for line in (PROC / "self" / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell a process's peak memory")


def resident_bytes(pid: int) -> list[int]:
    """Resident bytes of a process and of each of its descendants, as far as they still run."""
    sizes: list[int] = []
    for one in (pid, *descendants(pid)):
        try:
            sizes.append(int((PROC / str(one) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        except (FileNotFoundError, ProcessLookupError, IndexError):
            continue  # it ended meanwhile
    return sizes


def cpu_seconds(pid: int) -> float | None:
    """Processor time of all the process's threads so far, user and system, in seconds; None when it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with the pid, it names one process for good.

    None when it is gone or a zombie.
    """
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found: list[int] = []
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return found
    for task in tasks:
        try:
            found.extend(int(child) for child in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents first."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        child = waiting.pop(0)
        found.append(child)
        waiting.extend(children(child))
    return found


@dataclass
class Usage:
    """Highest PSS seen of a process by itself, of its descendants together, and of both at one moment, in bytes; processor
    seconds, as far as they were seen."""

    own_bytes: int = 0
    children_bytes: int = 0
    total_bytes: int = 0
    own_cpu_s: float = 0.0
    children_cpu_s: float = 0.0
    seen: dict[int, int] = field(default_factory=dict)
    """Descendants seen, pid -> start ticks."""

    def sample(self, pid: int) -> None:
        """Look at the process now."""
        own = pss_bytes(pid)
        if own is None:
            return
        below, below_cpu_s = 0, 0.0
        for child in descendants(pid):
            ticks = start_ticks(child)
            if ticks is not None:
                self.seen[child] = ticks
            below += pss_bytes(child) or 0
            below_cpu_s += cpu_seconds(child) or 0.0
        self.own_cpu_s = cpu_seconds(pid) or self.own_cpu_s
        self.children_cpu_s = max(self.children_cpu_s, below_cpu_s)
        self.own_bytes = max(self.own_bytes, own)
        self.children_bytes = max(self.children_bytes, below)
        self.total_bytes = max(self.total_bytes, own + below)


@dataclass(frozen=True)
class Holding:
    """What a process holds at one moment.

    Args:
        name: of its program, as the kernel has it. memory_bytes: its own (see `private_bytes`). sockets: of its descriptors.
    """

    name: str
    memory_bytes: int
    threads: int
    descriptors: int
    sockets: int


def holding(pid: int) -> Holding | None:
    """What a process holds now; None when it is gone, or ends while it is looked at."""
    memory = private_bytes(pid)
    folder = PROC / str(pid)
    try:
        name = (folder / "comm").read_text().strip()
        threads = sum(1 for _ in (folder / "task").iterdir())
        opened = list((folder / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    sockets = 0
    for descriptor in opened:
        try:
            sockets += os.readlink(descriptor).startswith("socket:")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it was closed meanwhile
    return None if memory is None else Holding(name, memory, threads, len(opened), sockets)
