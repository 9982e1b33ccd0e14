"""Prints what a `pyproject.toml` asks for, one requirement a line: an image layer can so install it before the source is there.

    python requirements.py pyproject.toml [EXTRA ...]
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """What builds the project, what it needs, and what its `extras` need; KeyError for an extra that it does not have."""
    described = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = described["project"]
    wanted = [*described["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return wanted


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
