"""Kills what Hocket must not lose at every point at which its files change, and looks at what comes of it.

    python tests/crash/sweep.py coordinator|blocks|writer|keys [--share 0.1] [--seed 1] [--jobs 2]
        [--again] [--disk full|read-only]

`--again` kills a coordinator twice more while it recovers; with `--disk` it is not killed, but a change of its files fails.
Each line of the output is one run as JSON; the last one sums up. Ends with status 1 when something was not as it must be.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from coordinator_trial import CoordinatorTrial
from crash_points import Trial
from file_trials import BlockTrial, KeyTrial, WriterTrial
from scripted_run import MEMORY

DISKS = {"full": errno.ENOSPC, "read-only": errno.EROFS}
TRIALS = ("coordinator", "blocks", "writer", "keys")


def say(record: dict[str, Any]) -> None:
    """One line in one piece, since several jobs write at the same time."""
    os.write(1, f"{json.dumps(record)}\n".encode())


def make(what: str, folder: Path, given: argparse.Namespace) -> Trial:
    """The trial of that name; what it needs lies in `folder`."""
    if what == "coordinator":
        return CoordinatorTrial(folder, again=given.again, failure=DISKS.get(given.disk))
    return {"blocks": BlockTrial, "writer": WriterTrial, "keys": KeyTrial}[what](folder)


def job(what: str, number: int, given: argparse.Namespace) -> int:
    """Every `jobs`-th of the chosen points, in this process; the number of runs in which something was wrong."""
    bad = 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        trial = make(what, Path(name), given)
        gc.freeze()  # forked processes share what is there already
        points = range(1, len(trial.points) + 1)
        chosen = sorted(random.Random(given.seed).sample(points, max(1, round(given.share * len(points)))))
        kinds = Counter(one.partition(":")[0] for one in trial.points)
        if number == 0:
            say({"trial": what, "points": len(points), "chosen": len(chosen), "kinds": kinds})
        for point in chosen[number :: given.jobs]:
            began = time.monotonic()
            faults = trial.play(point, random.Random(f"{given.seed}/{point}"))
            bad += bool(faults)
            seconds = round(time.monotonic() - began, 3)
            say({"point": point, "name": trial.points[point - 1], "seconds": seconds, "faults": faults})
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=TRIALS)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--disk", choices=tuple(DISKS))
    given = parser.parse_args()
    began = time.monotonic()
    pids = []
    for number in range(given.jobs):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 1 if job(given.what, number, given) else 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    seconds = round(time.monotonic() - began, 1)
    say({"trial": given.what, "passed": not any(statuses), "seconds": seconds})
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
