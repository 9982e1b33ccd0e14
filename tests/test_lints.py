"""Rules of this code base that no general linter knows, checked on the syntax tree of every source file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ERRORS, Code

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "protocol", "swarm", "tokenizer", "tts", "node", "coordinator", "simulations", "benchmarks", "cli")
# Loading any of these runs what the file says, or ends in something that does.
BANNED_MODULES = {"pickle", "_pickle", "cPickle", "marshal", "dill", "cloudpickle", "joblib", "shelve", "torch.package"}
BANNED_CALLS = {
    "eval", "exec", "torch.load", "torch.jit.load", "torch.hub.load", "os.system", "os.popen",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all",
    "pandas.read_pickle", "builtins.eval", "builtins.exec", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
}  # fmt: skip
BANNED_KEYWORDS = {"allow_pickle", "shell"}
MAX_LINES = 450


def sources() -> list[Path]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in files if "generated" not in path.parts]


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """(local name, full name, line) of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                    node.lineno,
                )
                yield "", alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno
                yield "", node.module, node.lineno


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted name that an expression stands for, with imports resolved; empty when it is no plain name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = full_name(node.value, names)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def banned(source: str) -> list[str]:
    """`line: what` for each forbidden import, name or keyword in a source text."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    found: list[str] = []
    for local, full, line in imported_names(tree):
        if local:
            names[local] = full
        if any(full == module or full.startswith(module + ".") for module in BANNED_MODULES):
            found.append(f"{line}: {full}")
    for node in ast.walk(tree):
        # Names, not only calls: `load = torch.load` is as bad.
        if isinstance(node, ast.Name | ast.Attribute) and full_name(node, names) in BANNED_CALLS:
            found.append(f"{node.lineno}: {full_name(node, names)}")
        if isinstance(node, ast.Call):
            if full_name(node.func, names) in ("__import__", "importlib.import_module") and any(
                isinstance(argument, ast.Constant) and argument.value in BANNED_MODULES for argument in node.args
            ):
                found.append(f"{node.lineno}: import of a banned module by name")
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in BANNED_KEYWORDS and not off:
                    found.append(f"{node.lineno}: {keyword.arg}=")
    return found


def fault_points(source: str) -> tuple[set[str], list[int]]:
    """The literal points of all `....reach("point", ...)` calls, and the lines of calls whose point is no literal."""
    points: set[str] = set()
    unreadable: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reach":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                points.add(first.value)
            else:
                unreadable.append(node.lineno)
    return points, unreadable


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "def f():\n    from marshal import loads",
        "import dill",
        "import joblib.numpy_pickle",
        "import cloudpickle",
        "import torch\ntorch.load('x')",
        "import torch as t\nx = t.load",
        "from torch import load\nload('x')",
        "from torch import load as fetch\nfetch('x')",
        "import torch.jit\ntorch.jit.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "eval('1')",
        "f = eval",
        "exec('1')",
        "import yaml\nyaml.load('x', Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load\nunsafe_load('x')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('marshal')",
    ],
)
def test_the_lint_finds(source: str) -> None:
    assert banned(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import json\njson.load(stream)",
        "import yaml\nyaml.safe_load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from safetensors.torch import load_file\nload_file('x')",
        "from tts.export import load",
    ],
)
def test_the_lint_lets_pass(source: str) -> None:
    assert banned(source) == []


def test_nothing_that_runs_what_a_file_says() -> None:
    assert len(sources()) > 20, "the lint looks in the wrong place"
    found = [f"{path.relative_to(ROOT)}:{fault}" for path in sources() for fault in banned(path.read_text(encoding="utf-8"))]
    assert found == []


def test_nothing_is_left_for_later() -> None:
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*sources(), *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "docs").rglob("*.md"))]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if mark.search(line)
    ]
    assert found == []


def test_no_file_does_too_much() -> None:
    counts = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {name: lines for name, lines in counts.items() if lines > MAX_LINES} == {}


def test_every_error_is_registered_in_order() -> None:
    assert list(ERRORS) == list(Code) == sorted(Code)
    assert all(1 <= code // 100 <= 5 for code in Code)


def test_every_error_is_explained() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    heading = re.compile(r"^### H(\d+) (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
    entries = {(int(number), name): body for number, name, body in heading.findall(text)}
    assert list(entries) == [(int(code), code.name) for code in Code]
    incomplete = [
        name
        for (_, name), body in entries.items()
        if re.findall(r"^\*\*(.+?)\*\*", body, re.MULTILINE) != ["What happened.", "Why.", "How to mend it."]
    ]
    assert incomplete == []


def test_every_error_is_used() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources() if path != ROOT / "common" / "errors.py")
    assert [code.name for code in Code if not re.search(rf"\bCode\.{code.name}\b", text)] == []


def test_fault_points_and_their_list_agree() -> None:
    reached: set[str] = set()
    for path in sources():
        points, unreadable = fault_points(path.read_text(encoding="utf-8"))
        assert not unreadable, f"{path.relative_to(ROOT)}:{unreadable}: a fault point must be a literal, so that it can be listed"
        reached |= points
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z_.]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(reached)


def test_the_reader_of_fault_points() -> None:
    points, unreadable = fault_points("a.reach('x.y', k=1)\nself.f.reach(name)\nreach('no method')")
    assert points == {"x.y"} and unreadable == [2]
