"""The swarm benchmark over libp2p: its figures are of what was sent, and peers who share spare the origin."""

from __future__ import annotations

import pytest

from benchmarks.swarm import SwarmBench, measure
from common.errors import Code, HocketError


@pytest.mark.system
def test_four_peers_that_know_one_another_spare_the_origin() -> None:
    said: list[str] = []
    settings = SwarmBench(peers=4, data_bytes=12 << 20, repeats=1)
    result = measure(settings, rows=["file", "strangers"], say=said.append)
    shared, strangers = result.rows
    assert 1.0 < shared["origin_over_data"] < 1.5  # an extra block or two of twelve weighs more than in 64 MiB
    assert 4.0 < strangers["origin_over_data"] < 4.1
    assert strangers["peer_most"] == 0 < shared["peer_least"]
    assert result.ratios == {"origin_egress_over_data": shared["origin_over_data"]}
    assert len(said) == 2


def test_a_row_that_there_is_not() -> None:
    with pytest.raises(HocketError) as caught:
        measure(SwarmBench(), rows=["fiel"], say=print)
    assert caught.value.code is Code.OPTION_INVALID
