"""What processes use, measured on real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from simulations.usage import Usage, children, cpu_seconds, descendants, private_bytes, pss_bytes, start_ticks

CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=0, stdout=subprocess.PIPE)
child.stdout.readline()  # it runs, so that it has memory
print(child.pid, flush=True)
child.wait()
"""

HOLDS = """
import mmap, sys
print("up", flush=True)
size = int(input())
own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for start in range(0, size, 4096):
    own[start] = 1
print("held", flush=True)
sys.stdin.read()
"""

MAPPED = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sum(pages[::4096])
print(1, flush=True)
input()
"""


def test_a_tree_of_processes_is_seen_and_its_peak_kept() -> None:
    tree = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert tree.stdout is not None and tree.stdin is not None
    grandchild = int(tree.stdout.readline())
    assert children(tree.pid) == [grandchild]
    assert grandchild in descendants(os.getpid())
    peak = Usage()
    peak.sample(tree.pid)
    first = (peak.own_bytes, peak.children_bytes, peak.total_bytes)
    assert all(size > 2**16 for size in first[:2]) and peak.total_bytes == peak.own_bytes + peak.children_bytes
    assert peak.seen[grandchild] == start_ticks(grandchild)
    own = cpu_seconds(os.getpid())
    assert peak.own_cpu_s > 0 and own is not None and own >= 0.9 * sum(os.times()[:2]) > 0
    tree.stdin.write("\n")
    tree.stdin.close()
    tree.wait(timeout=20)
    peak.sample(tree.pid)
    assert (peak.own_bytes, peak.children_bytes, peak.total_bytes) == first
    assert pss_bytes(tree.pid) is None and start_ticks(tree.pid) is None and children(tree.pid) == []


def test_what_a_process_has_written_is_its_own_until_it_ends() -> None:
    """In a process that does nothing else: one that has run many tests has threads that come and go, with their memory."""
    size = 16 * 2**20
    holder = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    before = private_bytes(holder.pid)
    holder.stdin.write(f"{size}\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "held\n"
    grown = private_bytes(holder.pid)
    holder.stdin.close()
    holder.wait(timeout=60)
    assert before is not None and grown is not None and 0.9 * size < grown - before < 1.5 * size
    assert private_bytes(holder.pid) is None


def test_a_page_that_two_processes_have_is_nobody_s_own(tmp_path: Path) -> None:
    size = 16 * 2**20
    (tmp_path / "file").write_bytes(b"x" * size)
    twins = [
        subprocess.Popen(
            [sys.executable, "-c", MAPPED, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for twin in twins:
            assert twin.stdout is not None and twin.stdout.readline() == "1\n"
        own, fair = private_bytes(twins[0].pid), pss_bytes(twins[0].pid)
        assert own is not None and fair is not None and own < size and fair - own > size // 4
    finally:
        for twin in twins:
            twin.communicate("\n", timeout=20)
