"""All targets one after the other, and what it comes to."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import atomic_write
from simulations.hostile.block_target import fuzz_blocks
from simulations.hostile.door_target import fuzz_door
from simulations.hostile.process_target import fuzz_processes
from simulations.hostile.readers import fuzz_readers
from simulations.hostile.stage_target import fuzz_stage
from simulations.hostile.tally import Tally

MEMORY = "/dev/shm"
SHARES = {"readers": 40, "stage": 25, "blocks": 20, "door": 12, "processes": 3}


def shares_of(messages: int, targets: Sequence[str]) -> dict[str, int]:
    """How many messages each target gets: all of them together `messages`.

    Raises:
        HocketError: OPTION_INVALID for a target that is not known.
    """
    for name in targets:
        if name not in SHARES:
            raise HocketError(Code.OPTION_INVALID, f"no target {name!r}; there are {', '.join(SHARES)}")
    whole = sum(SHARES[name] for name in targets)
    given = {name: messages * SHARES[name] // whole for name in targets}
    given[targets[0]] += messages - sum(given.values())
    return given


async def run_fuzz(
    messages: int, seed: int, out: Path, *, targets: Sequence[str] = tuple(SHARES), data: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Throw malformed messages at every target and write `out/fuzz.json`.

    Args:
        messages: in all. seed: of all of them. targets: names of `SHARES`.
        data: for the run of processes, made by `hocket tokenize`; None: the shipped corpus is tokenised.
        say: is told what is done.

    Returns: the report: `problems` is empty where everything has stood it.
    """
    out = out.resolve()
    tallies: list[Tally] = []
    for name, share in shares_of(messages, targets).items():
        say(f"{share} malformed messages for {name}")
        # Readers are timed: a slow disk is not theirs.
        where = MEMORY if name == "readers" and os.access(MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="hocket-fuzz-", dir=where) as folder:
            if name == "readers":
                tallies.append(await asyncio.to_thread(fuzz_readers, share, seed, Path(folder)))
            elif name == "stage":
                tallies.append(await fuzz_stage(share, seed))
            elif name == "blocks":
                tallies.append(await fuzz_blocks(share, seed, Path(folder)))
            elif name == "door":
                tallies.append(await fuzz_door(share, seed, Path(folder)))
            else:
                tallies.append(await fuzz_processes(share, seed, out, data=data, say=say))
        say(line_of(tallies[-1]))
    report = {
        "seed": seed,
        "messages": sum(tally.messages for tally in tallies),
        "seconds": round(sum(tally.seconds for tally in tallies), 1),
        "targets": [tally.record() for tally in tallies],
        "problems": [problem for tally in tallies for problem in tally.problems()],
    }
    atomic_write(out / "fuzz.json", (json.dumps(report, indent=1) + "\n").encode())
    return report


def line_of(tally: Tally) -> str:
    """A target's result for people."""
    words = [f"{tally.target}: {tally.messages} messages in {tally.seconds:.0f} s, {len(tally.faults)} faults"]
    if tally.health_s is not None:
        words.append(f"honest questions answered within {tally.health_s * 1000:.0f} ms")
    if tally.grown_bytes:
        words.append(f"memory +{max(tally.grown_bytes.values()) / 2**20:.0f} MiB")
    if tally.identical is not None:
        words.append("what was done meanwhile is the same to the bit" if tally.identical else "what was done meanwhile DIFFERS")
    return ", ".join(words)
