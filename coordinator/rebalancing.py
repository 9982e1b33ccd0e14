"""When a replica is moved to a slower stage. Pure.

All frames pass through every stage, so the slowest stage sets the pace of a run. A move costs its member a download and the
moments of its optimizer, so it has to bring more than that, and more than the figures vary by.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.assignment import Assignment, Board, Candidate, Role, Wanted

# Figures of one member differ by some tenth from round to round: a smaller gain could be undone by the next look.
LEAST_GAIN = 0.25
# Where no round has been measured yet, a move is taken to cost half of one.
UNKNOWN_COST = 0.5


def move_cost(prepare_s: float | None, open_s: float | None) -> float:
    """What a move costs, as a fraction of a round: the download of another stage, during which the member trains nothing.

    Args:
        prepare_s: that members usually take to load a base; open_s: that a round usually lasts. None: not known.
    """
    if prepare_s is None or open_s is None or open_s <= 0:
        return UNKNOWN_COST
    return prepare_s / open_s


def rebalance(candidates: Sequence[Candidate], wanted: Wanted, cost: float) -> Assignment | None:
    """The one move that speeds the slowest stage up most, where that is worth it; None: all stay.

    Only members whose speed was measured at the stage that they serve are moved, and only with a figure from every stage, so that
    no move rests on a guess. No stage is left with fewer replicas than wanted, or without any.

    Args:
        candidates: in any order; cost: as of `move_cost`.
    """
    board = Board(candidates, wanted)
    if not board.all_measured:
        return None
    speeds = [board.speed(stage) for stage in range(wanted.stages)]
    slowest = min(speeds)
    if slowest <= 0:
        return None
    best: tuple[float, str, int, int] | None = None
    for source, there in enumerate(board.replicas):
        if len(there) <= max(wanted.replicas, 1):
            continue
        for one in there:
            if one.frames_per_s is None:
                continue
            for target in board.open_to(one):
                if target == source:
                    continue
                after = list(speeds)
                after[source] -= board.speed_of(one, source)
                after[target] += board.speed_of(one, target)
                gain = min(after) / slowest - 1
                if best is None or (-gain, one.member, target) < (-best[0], best[1], best[2]):
                    best = (gain, one.member, target, source)
    if best is None or best[0] <= max(cost, LEAST_GAIN):
        return None
    gain, member, target, source = best
    reason = f"moved from stage {source}: the slowest stage becomes {gain:.0%} faster, at {cost:.0%} of a round"
    return Assignment(member, target, reason, Role.REPLICA)
