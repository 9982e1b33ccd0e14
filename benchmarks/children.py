"""Processes that measure: `python -m MODULE ORDER`, the order as JSON. The last line that one writes is its answer, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.stop import stop_signals_held_back

CHECKOUT = Path(__file__).parents[1]
CHILD_LIMIT_S = 1800.0


def run_children(
    orders: Sequence[tuple[str, dict[str, Any]]], *, limit_s: float = CHILD_LIMIT_S, what: str = "",
    python: Path | None = None, environment: Mapping[str, str] | None = None,
) -> list[str]:  # fmt: skip
    """Run `python -m MODULE ORDER` for every order, all at once, in the checkout; returns their standard outputs.

    Args:
        what: as which they are named in an error; by default each by its module.
        python: interpreter; by default this one. environment: variables that they have besides ours.

    Raises:
        HocketError: CHILD_FAILED when one fails or the time limit passes; the others are ended.
    """
    children: list[subprocess.Popen[str]] = []
    try:
        with stop_signals_held_back():
            for module, order in orders:
                children.append(subprocess.Popen(
                    [str(python or sys.executable), "-m", module, json.dumps(order)], cwd=CHECKOUT,
                    env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                ))  # fmt: skip
        outputs = []
        for child, (module, _) in zip(children, orders, strict=True):
            try:
                output, errors = child.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired as error:
                raise HocketError(Code.CHILD_FAILED, f"{what or module} did not end within {limit_s:.0f} s") from error
            if child.returncode != 0:
                lines = [line for line in errors.splitlines() if line.strip()]
                raise HocketError(
                    Code.CHILD_FAILED, f"{what or module} ended with {child.returncode}: {' / '.join(lines[-3:])}"
                )
            outputs.append(output)
        return outputs
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def answer_in(output: str) -> dict[str, Any]:
    """The answer of a process that has written `output`."""
    answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return answer


def ask_child(
    what: str, module: str, order: dict[str, Any], *, limit_s: float, python: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The answer of one process. See `run_children`."""
    (output,) = run_children([(module, order)], limit_s=limit_s, what=what, python=python, environment=environment)
    return answer_in(output)
