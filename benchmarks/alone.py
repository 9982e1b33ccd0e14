"""What the other replicas are worth: a finished run beside one worker that takes as many inner steps on the same data by itself.

The worker alone sees one replica's share of the frames, so it takes about the same time on a machine of its own: the run must
reach a lower held-out loss.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.result import BenchResult, machine_facts
from benchmarks.run_again import read_run, run_facts, train_again
from common.errors import Code, HocketError


def measure(folder: Path, *, threads: int, say: Callable[[str], None]) -> BenchResult:
    """Compare the run in `folder` with one worker alone.

    Raises:
        HocketError: OPTION_INVALID when the folder holds no finished run with held-out losses.
    """
    report, config, data = read_run(folder)
    rounds = report["rounds"]
    if not rounds or rounds[-1].get("heldout_loss") is None:
        raise HocketError(Code.OPTION_INVALID, f"the run in {folder} has no held-out loss")
    alone = train_again(config, data, leases_a_step=1, threads=threads, say=say, what="alone").facts
    swarm = run_facts(report, config)
    result = BenchResult("alone", machine_facts(list(range(threads))))
    result.rows = [{"row": "run", **swarm}, {"row": "alone", **alone}]
    result.ratios = {"heldout_loss_run_vs_alone": swarm["heldout_loss"] / alone["heldout_loss"]}
    return result
