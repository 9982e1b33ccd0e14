"""What processes use, measured on real ones."""

from __future__ import annotations

import os
import subprocess
import sys

from simulations.usage import Usage, children, cpu_seconds, descendants, pss_bytes, start_ticks

CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=0, stdout=subprocess.PIPE)
child.stdout.readline()  # it runs, so that it has memory
print(child.pid, flush=True)
child.wait()
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
