"""What a round came to, fixed when its last update is in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.leases import due_again, repeated_rows
from coordinator.ledger import trained
from coordinator.lost_work import round_lost
from coordinator.measures import count_microbatches, count_round
from coordinator.run import RunState


def closed(
    state: RunState, reports: Iterable[Mapping[str, Any]], bytes_sent: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:  # fmt: skip
    """The round in numbers.

    Args:
        state: of the run, while it is CLOSING. reports: of members whose assignment has not ended.
        bytes_sent: running totals of each process, so the newest word counts, whichever round it came in.

    Returns:
        `counts`, see `measures.count_round`, with the microbatches of each stage, the rows that were trained twice, and who
        trained; and `due_again`, pairs of a finished lease whose rows must be trained once more, and the reason.
    """
    done = [lease for lease in state.leases.values() if lease.done_at is not None]
    reports = list(reports)
    counts = count_round(
        [*state.past_reports, *reports], state.updates.values(), state.stages, sum(lease.frames for lease in done),
        round_lost(state, reports),
    )  # fmt: skip
    issued = [range(lease.first_microbatch_id, lease.first_microbatch_id + lease.microbatches) for lease in done]
    counts["microbatches"] = count_microbatches(state.updates.values(), issued)
    fates = [state.fate(lease) for lease in state.leases.values()]
    held = {identifier for one in state.updates.values() if one.stage == 0 for identifier, _ in one.microbatches}
    counted = {identifier for one in state.updates.values() for identifier, _ in one.microbatches}
    due = due_again(fates, held)
    counts["repeated_rows"] = repeated_rows(fates, due, counted)
    counts["trained"] = trained(state)
    counts["bytes"] = {**counts["bytes"], **bytes_sent}
    return {"counts": counts, "due_again": sorted(due.items())}
