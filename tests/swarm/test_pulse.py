"""When a child that lives but does not answer is given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.pulse import HELD_UP_S, MISSES, Pulse

WITHIN_S = 2.0
WAITS = st.one_of(st.none(), st.floats(WITHIN_S, 100.0))  # None: answered


@given(st.lists(WAITS, max_size=30))
def test_only_misses_in_a_row_that_we_saw_ourselves_count(waits: list[float | None]) -> None:
    pulse, row = Pulse(WITHIN_S), 0
    for wait in waits:
        if wait is None:
            pulse.answered()
            row = 0
            continue
        judgement = pulse.unanswered(wait)
        row += wait <= WITHIN_S + HELD_UP_S
        assert judgement.stuck == (wait <= WITHIN_S + HELD_UP_S and row >= MISSES) and judgement.reason
