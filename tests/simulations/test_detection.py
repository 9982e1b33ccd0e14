"""The draws of audits meet false work as often as the arithmetic says."""

from __future__ import annotations

import math

import pytest

from coordinator.audit_draw import Rates
from simulations.detection import Cheats, Scene, curve, met_in_round

MEMBERS, ROUNDS = 300, 6


@pytest.mark.parametrize("audited", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("cheats", list(Cheats))
def test_the_measured_curve_lies_within_four_deviations_of_the_arithmetic(audited: float, cheats: Cheats) -> None:
    scene = Scene(Rates(audited, 1, 6), 4, cheats)
    each = met_in_round(scene)
    for number, share in enumerate(curve(scene, ROUNDS, MEMBERS, b"a test"), start=1):
        expected = 1 - (1 - each) ** number
        assert abs(share - expected) <= 4 * math.sqrt(expected * (1 - expected) / MEMBERS) + 1e-9


def test_work_that_is_false_everywhere_is_met_at_once_where_all_is_audited_and_never_where_nothing_is() -> None:
    everywhere = Scene(Rates(1.0, 1, 6), 4, Cheats.EVERYWHERE)
    assert met_in_round(everywhere) == 1.0 and curve(everywhere, 1, 50, b"x") == [1.0]
    assert curve(Scene(Rates(0.0, 1, 6), 4, Cheats.EVERYWHERE), 3, 50, b"x") == [0.0, 0.0, 0.0]
