"""What may be loaded where: the coordinator's core starts and recovers without torch, hivemind or a codec stack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "hivemind", "transformers", "gruut", "pyarrow", "soundfile", "matplotlib")
PROBE = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded_by(modules: list[str]) -> set[str]:
    """The top-level packages in a fresh interpreter after importing `modules`."""
    answer = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(modules)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
    )
    return set(json.loads(answer.stdout.splitlines()[-1]))


def modules_of(package: str) -> list[str]:
    return [f"{package}.{path.stem}" for path in sorted((ROOT / package).glob("*.py")) if not path.stem.startswith("__")]


@pytest.mark.parametrize("package", ["common", "protocol"])
def test_the_lowest_rooms_load_nothing_heavy(package: str) -> None:
    assert loaded_by(modules_of(package)) & set(HEAVY) == set()


def test_the_coordinators_core_loads_neither_torch_nor_hivemind() -> None:
    modules = [*modules_of("coordinator"), "swarm.blocks", "swarm.carrier", "tts.config"]
    assert len(modules) > 5
    assert loaded_by(modules) & {"torch", "hivemind", "transformers", "gruut"} == set()
