"""The carriers on which what every carrier promises is checked: in memory, and over libp2p."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract_world import World


@pytest.fixture(scope="module", params=["memory", "libp2p"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(request.param, tmp_path_factory.mktemp("world"))
    try:
        yield made
    finally:
        made.close()
