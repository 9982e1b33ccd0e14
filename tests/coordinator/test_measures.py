"""Sums of what members report."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from coordinator.measures import count_microbatches, count_round, loss_per_code, one_line, report_record
from coordinator.run import Update
from protocol.generated import hocket_pb2 as pb


def update(member: str, stage: int, *microbatches: tuple[int, int]) -> Update:
    return Update(member, stage, 1, "00", 1, sum(frames for _, frames in microbatches), 1, list(microbatches), 0, 0, "p")


def report(member: str, stage: int, frames: int, *losses: tuple[float, int]) -> dict[str, object]:
    message = pb.MemberReport(stage=stage, generation=1, frames_done=frames, pid=1)
    for ce_sum, count in losses:
        message.losses.add(ce_sum=ce_sum, count=count)
    return report_record(member, message)


def test_the_loss_is_per_code_over_all_books_and_replicas_of_the_last_stage() -> None:
    last = [report("a", 1, 10, (40.0, 10), (20.0, 10)), report("b", 1, 30, (90.0, 30), (30.0, 30))]
    reports = [*last, report("c", 0, 99, (1e9, 1))]
    counts = count_round(reports, [], 2, 35)
    assert counts["loss"] == 180 / 80 and counts["loss_by_codebook"] == [130 / 40, 50 / 40]
    assert counts["frames"] == 35
    # An update says what its sender counted in the end; its report may be older. Who is lost still counts by its report.
    assert count_round(reports, [update("a", 1, (1, 12))], 2, 99)["frames"] == 42
    nothing = count_round([], [], 2, 99)
    assert nothing["loss"] is None and nothing["frames"] == 0


@given(st.permutations(range(5)))
def test_the_order_of_reports_does_not_matter(order: list[int]) -> None:
    reports = [report(f"m{index}", 1, index, (0.1 * 3**index, index + 1)) for index in range(5)]
    assert count_round([reports[index] for index in order], [], 2, 99) == count_round(reports, [], 2, 99)


def test_what_is_not_finite_or_too_much_is_left_out() -> None:
    for bad in (math.nan, math.inf, -math.inf, 1e308, -1e19):
        message = pb.MemberReport(stage=1, longest_wait_s=bad)
        message.losses.add(ce_sum=bad, count=1)
        message.auxiliary.add(name="duration", sum=bad, count=1)
        record = report_record("a", message)
        assert record["ce"] == [] and record["auxiliary"] == {} and record["longest_wait_s"] == 0.0
    message = pb.MemberReport(suspects=[f"p{index}" for index in range(1000)])
    for _ in range(1000):
        message.losses.add(ce_sum=1, count=1)
    record = report_record("a", message)
    assert len(record["suspects"]) == 64 and record["ce"] == []
    assert loss_per_code([], []) is None


def test_the_largest_values_that_count_do_not_add_up_to_infinity() -> None:
    message = pb.MemberReport(stage=1)
    for _ in range(64):
        message.losses.add(ce_sum=1e18, count=1)
    message.auxiliary.add(name="duration", sum=1e18, count=1)
    counts = count_round([report_record(f"m{index}", message) for index in range(1000)], [], 2, 99)
    assert math.isfinite(counts["loss"]) and math.isfinite(counts["auxiliary"]["duration"])


def test_accuracy_and_duration_error_are_means_over_what_is_told() -> None:
    records = []
    for stage, figures in enumerate([{"duration_error": (30.0, 100), "accuracy.0": (50.0, 80)}, {"accuracy.0": (10.0, 20)}]):
        message = pb.MemberReport(stage=stage, generation=1)
        if stage == 1:
            for _ in range(2):
                message.losses.add(ce_sum=1, count=1)
        for name, (total, count) in figures.items():
            message.auxiliary.add(name=name, sum=total, count=count)
        records.append(report_record(f"m{stage}", message))
    counts = count_round(records, [], 2, 99)
    assert counts["accuracy_by_codebook"] == [0.6, None] and counts["duration_error"] == 0.3
    assert count_round([], [], 2, 99)["accuracy_by_codebook"] == [] and count_round([], [], 2, 99)["duration_error"] is None


def test_every_codebook_there_may_be_can_tell_its_accuracy() -> None:
    message = pb.MemberReport(stage=1)
    names = ["duration", "duration_error", *(f"accuracy.{book}" for book in range(64))]
    for name in sorted(names):
        message.auxiliary.add(name=name, sum=1, count=2)
    assert report_record("a", message)["auxiliary"].keys() == set(names)


def test_each_microbatch_counts_once_a_stage() -> None:
    updates = [update("a", 0, (1, 10), (2, 20)), update("b", 0, (2, 20), (3, 30)), update("c", 1, (1, 10))]
    assert count_microbatches(updates, [range(1, 3), range(3, 5)]) == [
        {"stage": 0, "frames": 60, "microbatches": 3, "duplicates": 1, "dropped": 1},
        {"stage": 1, "frames": 10, "microbatches": 1, "duplicates": 0, "dropped": 3},
    ]


@given(st.text(max_size=50), st.integers(0, 20))
def test_text_from_a_peer_is_one_printable_line(text: str, limit: int) -> None:
    found = one_line(text, limit)
    assert len(found) <= limit and found.isprintable()


def later(member: str, generation: int, frames: int, *resumed: int, stage: int = 1) -> dict[str, object]:
    """A report of the last stage by a generation that went on from the saved work of earlier ones."""
    message = pb.MemberReport(stage=stage, generation=generation, frames_done=frames, pid=generation, duplicates=1)
    message.losses.add(ce_sum=2.0 * frames, count=frames)
    message.resumed_generations.extend(resumed)
    return report_record(member, message)


def test_work_that_a_restarted_worker_took_up_is_counted_once() -> None:
    reports = [later("a", 1, 40), later("a", 2, 70, 1), later("b", 1, 25)]
    counts = count_round(reports, [], 2, 1000)
    assert counts["frames"] == 95 and counts["loss"] == 2.0 and counts["duplicate_reports"] == 2
    # Twice restarted, once at a step that had been saved before the first restart.
    assert count_round([*reports, later("a", 3, 60, 1, 2)], [], 2, 1000)["frames"] == 85
    # Other members, stages and generations of the same numbers are not meant.
    assert count_round([later("a", 1, 40), later("b", 2, 70, 1)], [], 2, 1000)["frames"] == 110
    assert count_round([later("a", 1, 40), later("a", 2, 9, 1, stage=0)], [], 2, 1000)["frames"] == 40
    # A worker that began anew says of nothing that it is included: both have trained.
    assert count_round([later("a", 1, 40), later("a", 2, 70)], [], 2, 1000)["frames"] == 110
    # A generation does not supersede itself or what comes after it.
    assert count_round([later("a", 1, 40), later("a", 2, 70, 2, 3)], [], 2, 1000)["frames"] == 110


def test_what_an_acknowledged_update_holds_is_not_counted_in_a_later_report_too() -> None:
    acknowledged = update("a", 1, (1, 30), (2, 20))
    counts = count_round([later("a", 1, 40), later("a", 2, 70, 1)], [acknowledged], 2, 1000)
    assert counts["frames"] == 50 and counts["loss"] == 2.0 and counts["duplicate_reports"] == 1
    # The update of the later generation takes the earlier one's place.
    of_later = Update("a", 1, 2, "00", 1, 80, 1, [(1, 80)], 0, 0, "p")
    assert count_round([later("a", 1, 40), later("a", 2, 70, 1)], [of_later], 2, 1000)["frames"] == 80


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=8),
    st.permutations(range(8)),
)
def test_a_chain_of_restarts_counts_each_frame_once(lives: list[tuple[int, bool]], order: list[int]) -> None:
    """Each life of a worker begins anew or goes on from the whole of the one before."""
    reports, frames, resumed, total = [], 0, [], 0
    for generation, (trained, goes_on) in enumerate(lives, start=1):
        if goes_on and generation > 1:
            resumed = [*resumed, generation - 1]
            frames += trained
        else:
            resumed, frames = [], trained
        total += trained
        reports.append(later("a", generation, frames, *resumed))
    shuffled = [reports[index] for index in order if index < len(reports)]
    assert count_round(shuffled, [], 2, 10**9)["frames"] == total
