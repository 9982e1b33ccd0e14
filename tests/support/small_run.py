"""The run file of a small run, for tests of what a coordinator does with one."""

from __future__ import annotations


def small_run(count: int, *, run_id: str = "r") -> str:
    """Two stages and `count` rounds; it ends in `[rounds]`, so that further lines of that section may follow."""
    return f"""
[run]
id = "{run_id}"
[model]
preset = "test"
stages = 2
[data]
manifest = "d"
[audit]
rate = 0
[rounds]
count = {count}
frames_per_inner_step = 300
inner_steps = 2
inner_lr = 0.01
"""
