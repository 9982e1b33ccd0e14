"""A Dockerfile as its own parser reads it, and what a build context holds after `.dockerignore`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-docker" / "bin"
HAVE_TOOLS = (ROOT / ".venv-docker" / ".installed").exists()
WITHOUT_TOOLS = "what checks the files in docker/ has an environment of its own, .venv-docker: make setup-docker"

_PARSE = (
    "import dockerfile, json, sys; "
    "print(json.dumps([[c.cmd, list(c.flags), list(c.value), c.json, c.start_line] for c in dockerfile.parse_file(sys.argv[1])]))"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction. Args: flags: `--name=value`. value: its words, or for RUN the command. json: written as a list."""

    name: str
    flags: tuple[str, ...]
    value: tuple[str, ...]
    json: bool
    line: int


@dataclass(frozen=True)
class Stage:
    """Args: base: the stage or image that it begins with."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]


def stages(path: Path) -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments that stand before the first stage, and the stages by name."""
    answer = subprocess.run([TOOLS / "python", "-c", _PARSE, path], capture_output=True, text=True, check=True)
    parsed = [Instruction(name.upper(), tuple(f), tuple(v), j, line) for name, f, v, j, line in json.loads(answer.stdout)]
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for one in parsed:
        if one.name == "FROM":
            assert len(one.value) == 3 and one.value[1].upper() == "AS", f"line {one.line}: a stage without a name"
            found[one.value[2]] = Stage(one.value[2], one.value[0], ())
        elif not found:
            assert one.name == "ARG"
            name, _, value = one.value[0].partition("=")
            arguments[name] = value
        else:
            last = next(reversed(found.values()))
            found[last.name] = Stage(last.name, last.base, (*last.instructions, one))
    return arguments, found


def lineage(found: dict[str, Stage], name: str) -> list[Stage]:
    """A stage and what it stands on, the lowest first."""
    line: list[Stage] = []
    while name in found:
        line.insert(0, found[name])
        name = found[name].base
    return line


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Whether `.dockerignore` leaves a path out: the last pattern that fits decides; one for a folder fits what is in it."""
    ignored = False
    parts = path.split("/")
    for pattern in patterns:
        wanted = pattern.removeprefix("!")
        if wanted.startswith("**/"):
            fits = wanted[3:] in parts
        else:
            fits = wanted == "*" or path == wanted or path.startswith(wanted + "/")
        if fits:
            ignored = not pattern.startswith("!")
    return ignored


def ignore_patterns(root: Path = ROOT) -> list[str]:
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def compose(*files: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`docker compose config` of files in docker/, as JSON."""
    command = [str(TOOLS / "docker-compose")]
    for name in files:
        command += ["--file", str(ROOT / "docker" / name)]
    return subprocess.run([*command, "config", "--format", "json"], capture_output=True, text=True, env=environment)
