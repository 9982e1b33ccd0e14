"""What a round has trained in vain, and how much more it trains for that. Pure.

A replica that dies takes with it what it had learnt in the round. Its stage would go into the aggregation with less than the
round was to bring, so the round goes on for as long as it takes to train that anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from coordinator.leases import Sizes
from coordinator.measures import without_superseded
from coordinator.run import RunState, Update

MOST_MADE_UP = 0.5      # of a round's target: whatever dies, and whatever the dead have said of themselves, a round has an end


def lost_frames(
    ended: Iterable[Mapping[str, Any]], going: Iterable[Mapping[str, Any]], updates: Iterable[Update], most: int
) -> int:  # fmt: skip
    """Frames that died with replicas of one stage: those of the stage that lost most.

    Every frame passes all stages, so while the worst stage makes up for its loss, the others make up for theirs.

    Args:
        ended: reports of replicas whose assignment has ended. going: of those that serve; what one of them took up again is not
            lost. updates: acknowledged ones.
        most: no more than this, as frames are a member's own word.
    """
    ended, updates = list(ended), list(updates)
    held = {(one.member, one.stage, one.generation) for one in updates}
    gone = {(one["member"], one["stage"], one["generation"]) for one in ended} - held
    lost: dict[int, int] = {}
    for one in without_superseded([*ended, *going], updates):
        if (one["member"], one["stage"], one["generation"]) in gone:
            lost[one["stage"]] = lost.get(one["stage"], 0) + one["frames"]
    return min(max(lost.values(), default=0), most)


def round_lost(state: RunState, going: Iterable[Mapping[str, Any]]) -> int:
    """`lost_frames` of the present round, within what a round makes up for."""
    return lost_frames(state.past_reports, going, state.updates.values(), int(MOST_MADE_UP * state.target_frames))


def wanted(state: RunState, going: Iterable[Mapping[str, Any]], sizes: Sizes) -> tuple[int, int]:
    """Rows and frames that the open round is to train: its target, and once more what was lost."""
    lost = round_lost(state, going)
    return state.target_rows + ceil(lost / sizes.mean_frames), state.target_frames + lost
