"""Settings for all tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))  # what tests of several rooms share

# How long one example takes says something about the machine and its load, nothing about the code.
settings.register_profile("hocket", deadline=None, print_blob=True)
settings.load_profile("hocket")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests stay together when the suite is shared between processes (`pytest -n 2 --dist loadgroup`).

    A file's tests share its fixtures. Whole runs are one group, so that never two of them compete for the cores.
    """
    for item in items:
        group = "system" if item.get_closest_marker("system") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
