"""Who serves which stage. Pure: from the members alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A live member, as the assignment sees it.

    Args:
        stage: that it serves now; None: unassigned.
        last_stage: that it served before it was lost or started anew; it may still hold its files.
    """

    member: str
    stage: int | None
    last_stage: int | None = None


@dataclass(frozen=True)
class Assignment:
    """One member is to serve one stage, under a new generation."""

    member: str
    stage: int
    reason: str


def assign(candidates: Sequence[Candidate], stages: int) -> list[Assignment]:
    """Give every unassigned member a stage, uncovered stages first, then the thinnest.

    Only if nobody is free, a stage without replicas takes one from the stage that has most, and at least two. Of several
    equal stages a member gets the one it served before, else the lowest. The order of `candidates` does not matter.
    """
    held = [sorted(one.member for one in candidates if one.stage == stage) for stage in range(stages)]
    given: list[Assignment] = []
    for one in sorted((one for one in candidates if one.stage is None), key=lambda one: one.member):
        thinnest = min(len(members) for members in held)
        equal = [stage for stage in range(stages) if len(held[stage]) == thinnest]
        stage = one.last_stage if one.last_stage in equal else equal[0]
        assert stage is not None
        held[stage].append(one.member)
        given.append(Assignment(one.member, stage, "no replica served it" if thinnest == 0 else f"thinnest, with {thinnest}"))
    newly = {one.member for one in given}
    for stage in range(stages):
        thickest = max(range(stages), key=lambda other: (len(held[other]), -other))
        if held[stage] or len(held[thickest]) < 2:
            continue
        # The last in order moves, so that two looks at the same members move the same one.
        moved = max(member for member in held[thickest] if member not in newly) if set(held[thickest]) - newly else None
        if moved is None:
            continue
        held[thickest].remove(moved)
        held[stage].append(moved)
        given.append(Assignment(moved, stage, f"moved from stage {thickest}, which has more, to cover this one"))
    return given
