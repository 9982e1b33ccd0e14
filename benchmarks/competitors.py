"""Packages that only benchmarks import, in an environment of their own, `.venv-bench`, which is made on first use.

    python -m benchmarks.competitors

makes it. It sees the main environment's packages behind its own, so that torch is there once.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from common.errors import Code, HocketError

CHECKOUT = Path(__file__).parents[1]
PINS = CHECKOUT / "constraints-bench.txt"
LIMIT_S = 600.0


def python_of_competitors(folder: Path = CHECKOUT / ".venv-bench") -> Path:
    """The interpreter of the environment, which is made where it is missing or the pins are newer.

    Raises:
        HocketError: EXTRA_MISSING where it cannot be made.
    """
    python, made = folder / "bin" / "python", folder / ".installed"
    if made.exists() and made.stat().st_mtime >= PINS.stat().st_mtime:
        return python
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", str(PINS)],
    ]
    for command in steps:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            detail = f"the packages of {PINS.name} cannot be installed: {' / '.join(lines[-2:])}"
            raise HocketError(Code.EXTRA_MISSING, detail, remedy="see to a network or a package index, then make setup-bench")
    (own,) = folder.glob("lib/python3*/site-packages")
    # An environment that itself sees another one's packages does so by its path alone: a path file within it is not read again.
    main = sysconfig.get_paths()["purelib"]
    seen = [main, *(path for path in sys.path if path.endswith("site-packages") and path != main)]
    (own / "main-environment.pth").write_text("".join(f"{path}\n" for path in seen), encoding="utf-8")
    made.touch()
    return python


def answer_beside_flower(run: Callable[[dict[str, Any]], Any]) -> None:
    """The whole of a process that may import Flower, which is kept from calling home and from logging: `run` the order."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    logging.disable(logging.WARNING)
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)


def import_streaming() -> Any:
    """mosaicml-streaming, without torchvision.

    Its package imports torchvision for image datasets alone. That would have to fit the torch that is installed here, so empty
    modules stand in its place meanwhile; nothing that is measured touches them.
    """
    names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
    if "streaming" in sys.modules:
        return sys.modules["streaming"]
    for name in names:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    for name, attributes in ((names[1], ("VisionDataset", "CIFAR10", "ImageFolder")), (names[3], ("to_tensor",))):
        for attribute in attributes:
            setattr(sys.modules[name], attribute, type(attribute, (), {}))
    try:
        return importlib.import_module("streaming")
    finally:
        for name in names:
            del sys.modules[name]


if __name__ == "__main__":
    print(python_of_competitors())
