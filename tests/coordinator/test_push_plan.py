"""What is pushed next: everything gets there in the end, pauses are bounded, and neither of the two kinds starves the other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.push_plan import (
    ASK_AGAIN_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    FileProgress,
    Kind,
    Progress,
    Step,
    Trouble,
    Wanted,
    failed,
    next_step,
    succeeded,
    tidied,
)

NOW = 1_000_000.0


def files(versions: int, dataset: int) -> list[Wanted]:
    found = [Wanted(f"v{n}", f"version file {n}", "version") for n in range(versions)]
    return found + [Wanted(f"d{n}", f"shard {n}", "dataset") for n in range(dataset)]


class World:
    """A node and a service that do, and forget, as they are told."""

    def __init__(self, *, service: bool) -> None:
        self.service = service
        self.node: set[str] = set()
        self.kept: set[str] = set()
        self.progress = Progress()
        self.now = NOW
        self.steps: list[Step] = []

    def go(self, wanted: list[Wanted], outcome: str = "done") -> Step:
        self.progress = tidied(wanted, self.progress)
        step = next_step(wanted, self.progress, self.now, service=self.service)
        assert step.reason
        self.steps.append(step)
        if step.kind is Kind.WAIT:
            if step.wait_s is not None:
                assert 0 < step.wait_s <= LONGEST_PAUSE_S
                self.now += step.wait_s
            return step
        self.now += 0.5
        if outcome in ("unreachable", "refused"):
            self.progress = failed(step, self.progress, self.now, unreachable=outcome == "unreachable")
        elif outcome == "given up" and step.kind is Kind.ASK:
            self.progress = failed(step, self.progress, self.now, unreachable=False, forget_request=True)
        else:
            self._done(step, wanted, kept=outcome == "done")
        # What is kept in mind survives a restart.
        self.progress = Progress.model_validate_json(self.progress.model_dump_json(exclude_defaults=True))
        return step

    def _done(self, step: Step, wanted: list[Wanted], *, kept: bool) -> None:
        root = step.root
        if step.kind is Kind.PUSH:
            assert root not in self.node, "nothing is pushed twice"
            self.node.add(root)
        elif step.kind is Kind.REQUEST:
            assert root in self.node
        elif step.kind is Kind.UNPIN:
            self.node.remove(root)
        elif step.kind is Kind.WITHDRAW:
            self.kept.discard(root)
        if step.kind in (Kind.REQUEST, Kind.ASK) and kept:
            self.kept.add(root)
        request_id = f"r-{root}" if step.kind is Kind.REQUEST else ""
        self.progress = succeeded(step, wanted, self.progress, self.now, request_id=request_id, kept=kept)


OUTCOMES = st.sampled_from(["done", "unreachable", "refused", "given up", "later"])


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 4), st.integers(0, 4), st.lists(OUTCOMES, max_size=40), st.booleans(),
    st.lists(st.integers(0, 7), max_size=4),
)  # fmt: skip
def test_everything_gets_there_and_what_is_dropped_leaves(
    versions: int, dataset: int, outcomes: list[str], service: bool, dropped: list[int]
) -> None:
    world, wanted = World(service=service), files(versions, dataset)
    for outcome in outcomes:
        world.go(wanted, outcome)
    wanted = [one for n, one in enumerate(wanted) if n not in dropped]
    for _ in range(200):
        step = world.go(wanted)
        if step.kind is Kind.WAIT and step.wait_s is None:
            break
    else:
        raise AssertionError(f"it comes to no end: {world.steps[-5:]}")
    roots = {one.root for one in wanted}
    assert world.node == roots
    assert world.kept == (roots if service else set())
    assert set(world.progress.files) == roots
    assert world.now - NOW <= (len(outcomes) + 4) * LONGEST_PAUSE_S + 200


@given(st.integers(1, 6), st.integers(1, 6))
def test_versions_and_dataset_take_turns(versions: int, dataset: int) -> None:
    world, wanted = World(service=False), files(versions, dataset)
    for _ in range(versions + dataset):
        world.go(wanted)
    kinds = [step.root[0] for step in world.steps]
    both = 2 * min(versions, dataset)
    assert kinds[:both] == ["v", "d"] * (both // 2), "a version first, for the dataset was there before"
    assert sorted(step.root for step in world.steps) == sorted(one.root for one in wanted)


def test_new_versions_go_before_old_ones() -> None:
    world = World(service=False)
    old = files(3, 0)
    world.go(old)
    new = [Wanted("new", "newer", "version"), *old]
    assert world.go(new).root == "new"


def test_pauses_double_up_to_a_bound_and_end_with_an_answer() -> None:
    world, wanted = World(service=False), files(1, 0)
    waits = []
    for _ in range(12):
        assert world.go(wanted, "unreachable").kind is Kind.PUSH
        waits.append(world.go(wanted).wait_s)
    assert waits[:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert waits[-1] == LONGEST_PAUSE_S
    world.go(wanted)
    assert world.progress.node == Trouble()


def test_nothing_is_done_with_a_node_that_does_not_answer() -> None:
    world, wanted = World(service=False), files(2, 2)
    world.go(wanted, "unreachable")
    step = world.go(wanted)
    assert step.kind is Kind.WAIT and step.wait_s == FIRST_PAUSE_S


def test_a_file_that_is_refused_holds_up_no_other() -> None:
    world, wanted = World(service=False), files(3, 0)
    assert world.go(wanted, "refused").root == "v0"
    assert [world.go(wanted).root for _ in range(2)] == ["v1", "v2"]
    assert world.go(wanted).kind is Kind.WAIT
    assert world.go(wanted).root == "v0"


def test_a_service_that_does_not_answer_holds_up_no_push() -> None:
    world, wanted = World(service=True), files(3, 0)
    world.go(wanted)
    assert world.go(wanted, "unreachable").kind is Kind.REQUEST
    assert [world.go(wanted).kind for _ in range(2)] == [Kind.PUSH, Kind.PUSH]
    assert world.go(wanted).kind is Kind.WAIT


def test_a_busy_service_is_asked_less_and_less_often() -> None:
    world, wanted = World(service=True), files(1, 0)
    world.go(wanted)
    world.go(wanted, "later")
    waits = []
    for _ in range(10):
        waits.append(world.go(wanted).wait_s or 0.0)
        assert world.go(wanted, "later").kind is Kind.ASK
    assert waits == sorted(waits) and waits[0] == ASK_AGAIN_S and waits[-1] == LONGEST_PAUSE_S


def test_a_request_that_was_given_up_is_made_anew() -> None:
    world, wanted = World(service=True), files(1, 0)
    world.go(wanted)
    world.go(wanted, "later")
    world.go(wanted)
    assert world.go(wanted, "given up").kind is Kind.ASK
    assert world.go(wanted).kind is Kind.WAIT
    assert world.go(wanted).kind is Kind.REQUEST


@given(st.floats(-1e9, 1e9))
def test_a_clock_that_jumps_does_not_stop_anything(jump: float) -> None:
    progress = failed(Step(Kind.PUSH, "v0"), Progress(), NOW, unreachable=True)
    progress.files["v1"] = FileProgress(trouble=Trouble(failures=3, until=NOW + 100))
    step = next_step(files(2, 0), progress, NOW + jump, service=False)
    assert step.kind is Kind.PUSH or (step.wait_s is not None and 0 < step.wait_s <= LONGEST_PAUSE_S)
