"""Settings for all tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))  # what tests of several rooms share

# How long one example takes says something about the machine and its load, nothing about the code.
settings.register_profile("hocket", deadline=None, print_blob=True)
settings.load_profile("hocket")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests stay together when the suite is shared between processes (`pytest -n 2`).

    A file's tests share its fixtures. Whole runs are one group, so that never two of them compete for the cores.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/system" if file.startswith("tests/system/") else file

    return ByFile(config, log)
