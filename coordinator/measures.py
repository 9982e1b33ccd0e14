"""What members report while a round runs: kept in memory, summed when the round closes. Members tell it again after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from coordinator.run import Update
from protocol.generated import hocket_pb2 as pb

MOST_BOOKS = 64
MOST_NAMES = MOST_BOOKS + 32    # an accuracy a codebook, and what else there is
MOST_SUSPECTS = 64
MOST_RESUMED = 64
MOST_SUM = 1e18         # far above any honest sum, and so far below the largest float that sums of these stay finite
BYTE_KINDS = ("activations", "gradients", "blocks", "updates")


def one_line(text: str, limit: int) -> str:
    """Text from a peer as it may stand in logs and tables: printable, on one line, at most `limit` characters."""
    return "".join(character if character.isprintable() else " " for character in text[:limit])


def report_record(member: str, report: pb.MemberReport) -> dict[str, Any]:
    """A member's report of one round as a plain record, for the sums and for the journal.

    Floats that are not finite, or too large to be summed, count as absent: a report may be wrong, but never poisons a sum.
    Lists and texts are cut to what an honest one has.
    """
    losses = [(one.ce_sum, one.count) for one in report.losses]
    if len(losses) > MOST_BOOKS or not all(_summable(total) for total, _ in losses):
        losses = []
    return {
        "member": member,
        "generation": report.generation,
        "resumed": sorted({one for one in report.resumed_generations[-MOST_RESUMED:] if one < report.generation}),
        "stage": report.stage,
        "frames": report.frames_done,
        "inner_steps": report.inner_steps,
        "ce": [total for total, _ in losses],
        "count": [count for _, count in losses],
        "auxiliary": {
            one_line(one.name, 64): [one.sum, one.count] for one in report.auxiliary[:MOST_NAMES] if _summable(one.sum)
        },
        "duplicates": report.duplicates,
        "dropped": report.dropped,
        "reroutes": report.reroutes,
        "longest_wait_s": report.longest_wait_s if _summable(report.longest_wait_s) else 0.0,
        "suspects": sorted({one_line(peer, 128) for peer in report.suspects[:MOST_SUSPECTS]}),
        "pid": report.pid,
        "bytes": bytes_record(report),
    }


def _summable(value: float) -> bool:
    return isfinite(value) and abs(value) <= MOST_SUM


def bytes_record(report: pb.MemberReport) -> dict[str, int]:
    """Bytes that the member's process has sent since it started, by kind."""
    return {
        "activations": report.bytes_sent_activations,
        "gradients": report.bytes_sent_gradients,
        "blocks": report.bytes_sent_blocks,
        "updates": report.bytes_sent_updates,
    }


def without_superseded(reports: Iterable[Mapping[str, Any]], updates: Iterable[Update]) -> list[Mapping[str, Any]]:
    """The reports whose work is counted: each frame stands in one of them.

    A worker that went on from saved progress tells in its numbers what an earlier generation of it had trained, so that one's
    report is left out. Where the earlier one's update is acknowledged already, its work is in that update, and the later one's
    can be in none: then the later report is left out.
    """
    told = list(reports)
    acknowledged = {(one.member, one.stage, one.generation) for one in updates}
    superseded: set[tuple[str, int, int]] = set()
    for one in told:
        earlier = {(one["member"], one["stage"], generation) for generation in one.get("resumed", ())}
        superseded |= {(one["member"], one["stage"], one["generation"])} if earlier & acknowledged else earlier
    return [one for one in told if (one["member"], one["stage"], one["generation"]) not in superseded]


def loss_per_code(ce: Iterable[float], count: Iterable[int]) -> float | None:
    """Cross-entropy per code over all codebooks; None where nothing was counted."""
    codes = sum(count)
    return sum(ce) / codes if codes else None


def count_round(
    reports: Iterable[Mapping[str, Any]], updates: Iterable[Update], stages: int, leased_frames: int, lost: int = 0
) -> dict[str, Any]:
    """Sum a round's reports.

    Args:
        reports: the last one of each (member, generation) that served in this round; a superseded one is not summed.
        updates: acknowledged ones; the frames that they state replace those of the same replica's report, which may be older.
        leased_frames: of the leases that their holders report as done.
        lost: frames that died with replicas, see `lost_work.lost_frames`: no version holds what was learnt from them.

    Returns:
        `frames`: counted where the lease holders and the last stage agree, so the smaller of the two, less what was lost;
        `lost_frames`; `loss` per code over the last stage's replicas, `loss_by_codebook`, `accuracy_by_codebook` (share of codes
        that are the likeliest one), `duration_error` (frames that predicted durations are wrong by, of all; None where not
        told); sums of duplicates, drops and reroutes; the longest wait; the suspects.
    """
    # Summed in an order of its own, so that the same reports give the same sum however they came.
    ordered = sorted(reports, key=lambda one: (one["stage"], one["member"], one["generation"]))
    updates = list(updates)
    counted = without_superseded(ordered, updates)
    last = [one for one in counted if one["stage"] == stages - 1]
    trained = {(one["member"], one["generation"]): one["frames"] for one in last}
    trained |= {(one.member, one.generation): one.frames for one in updates if one.stage == stages - 1}
    books = max((len(one["ce"]) for one in last), default=0)
    ce = [sum(one["ce"][book] for one in last if len(one["ce"]) == books) for book in range(books)]
    count = [sum(one["count"][book] for one in last if len(one["ce"]) == books) for book in range(books)]
    auxiliary: dict[str, list[float]] = {}
    for one in counted:
        for name, (total, number) in one["auxiliary"].items():
            sums = auxiliary.setdefault(name, [0.0, 0])
            sums[0] += total
            sums[1] += number
    means = {name: total / number for name, (total, number) in sorted(auxiliary.items()) if number}
    return {
        "frames": max(min(leased_frames, sum(trained.values())) - lost, 0),
        "lost_frames": lost,
        "loss": loss_per_code(ce, count),
        "loss_by_codebook": [total / number if number else None for total, number in zip(ce, count, strict=True)],
        "accuracy_by_codebook": [means.get(f"accuracy.{book}") for book in range(books)],
        "duration_error": means.get("duration_error"),
        "auxiliary": means,
        "duplicate_reports": sum(one["duplicates"] for one in counted),
        "dropped_reports": sum(one["dropped"] for one in counted),
        "reroutes": sum(one["reroutes"] for one in ordered),
        "longest_wait_s": max((one["longest_wait_s"] for one in ordered), default=0.0),
        "suspects": sorted({peer for one in ordered for peer in one["suspects"]}),
        "bytes": {f"{one['member']}/{one['pid']}": one["bytes"] for one in ordered},
    }


def count_microbatches(updates: Iterable[Update], issued: Iterable[range]) -> list[dict[str, int]]:
    """Per stage, what the acknowledged updates say about the microbatches: each id counts once.

    Args:
        issued: ids of each lease that is done.

    Returns:
        One record a stage that has an update: `frames`, `microbatches`, `duplicates` (an id in two updates), `dropped` (an id
        of a finished lease in none).
    """
    wanted = {one for ids in issued for one in ids}
    by_stage: dict[int, dict[int, int]] = {}
    doubled: dict[int, int] = {}
    for update in sorted(updates, key=lambda one: (one.stage, one.member)):
        seen = by_stage.setdefault(update.stage, {})
        for one, frames in update.microbatches:
            if one in seen:
                doubled[update.stage] = doubled.get(update.stage, 0) + 1
            else:
                seen[one] = frames
    return [
        {
            "stage": stage,
            "frames": sum(seen.values()),
            "microbatches": len(seen),
            "duplicates": doubled.get(stage, 0),
            "dropped": len(wanted - seen.keys()),
        }
        for stage, seen in sorted(by_stage.items())
    ]
