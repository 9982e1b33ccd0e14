"""Who contributed what: what became of each member's work in each round, and sums over rounds. Pure: from round records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinator.run import RunState
from protocol.generated import hocket_pb2 as pb

OUTCOMES = ("accepted", "trimmed", "refused", "missing")
# A member that was away hears of a round that is not the last one; of older ones it heard before.
ROUNDS_BACK = 8


def trained(state: RunState) -> list[tuple[int, str]]:
    """Stage and member of every replica from which an update of the round is awaited, while it is CLOSING."""
    return [
        (stage, one.member)
        for stage in range(state.stages)
        for one in state.replicas(stage)
        if state.is_ready(one) and one.late_round != state.round
    ]


def contributions(state: RunState, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What became of each member's work in the round that was just aggregated, by stage and member.

    Args:
        results: events `stage_done`, in the order of the stages.
    """
    handed_in = {(stage, member): one.frames for (stage, member), one in state.updates.items()}
    for stage, result in enumerate(results):
        # What was left out before the aggregation is no update of the round any more.
        handed_in = {**{(stage, member): 0 for member, _ in result["refused"]}, **handed_in}
    found = [
        _entry(state, member, stage, frames, *_outcome(results[stage], member)) for (stage, member), frames in handed_in.items()
    ]
    found += [
        _entry(state, member, stage, 0, "missing", "no update came")
        for stage, member in state.counts.get("trained", ()) if (stage, member) not in handed_in
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one["stage"], one["member"]))


def _outcome(result: Mapping[str, Any], member: str) -> tuple[str, str]:
    outcome = result["outcomes"].get(member, "refused")
    if outcome == "trimmed":
        return outcome, f"{result['trimmed_shares'][member]:.0%} of it did not go in"
    return outcome, dict(result["refused"]).get(member, "")


def _entry(state: RunState, member: str, stage: int, frames: int, outcome: str, reason: str) -> dict[str, Any]:
    known = state.members.get(member)
    return {
        "member": member, "operator": known.operator if known is not None else "", "stage": stage, "frames": frames,
        "outcome": outcome, "reason": reason,
    }  # fmt: skip


def receipt_of(rounds: Sequence[Mapping[str, Any]], member: str) -> pb.ContributionReceipt | None:
    """What became of a member's work in the last round in which it took part; None: it took part in none of the newest ones."""
    for record in reversed(rounds[-ROUNDS_BACK:]):
        for one in record.get("contributions", ()):
            if one["member"] == member:
                return pb.ContributionReceipt(
                    round=record["round"], stage=one["stage"], member_id=member, frames=one["frames"], outcome=one["outcome"],
                    reason=one["reason"], version_cid=record["cid"],
                )  # fmt: skip
    return None


def ledger(rounds: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Sums over finished rounds: `members` and `operators`, who brought most first.

    `frames` counts accepted and trimmed updates only. Members without an operator's name stand for themselves, so that the sums
    of the operators are those of the members.
    """
    members: dict[str, dict[str, Any]] = {}
    operators: dict[str, dict[str, Any]] = {}
    for record in rounds:
        for one in record.get("contributions", ()):
            sums = members.setdefault(one["member"], {"member": one["member"], "operator": "", **_nothing()})
            sums["operator"] = one["operator"] or sums["operator"]
            _add(sums, one)
            name = one["operator"] or one["member"]
            _add(operators.setdefault(name, {"operator": name, **_nothing()}), one)
    return {"members": _ranked(members), "operators": _ranked(operators)}


def _nothing() -> dict[str, int]:
    return {"frames": 0, **dict.fromkeys(OUTCOMES, 0)}


def _add(sums: dict[str, Any], one: Mapping[str, Any]) -> None:
    sums[one["outcome"]] += 1
    if one["outcome"] in ("accepted", "trimmed"):
        sums["frames"] += one["frames"]


def _ranked(sums: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for _, one in sorted(sums.items(), key=lambda entry: (-entry[1]["frames"], entry[0]))]
