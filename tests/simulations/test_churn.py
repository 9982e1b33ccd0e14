"""Churn: whom it hurts, whom it spares, and that the same seed draws the same faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from coordinator.run_config import RunConfig
from simulations.actions import Action, Seen
from simulations.churn import Churn, ChurnProgress, draw_hits, may_be_hurt
from simulations.plan import SHIPPED, Plan, PlanProgress, load_plan
from simulations.simulate import run_file, settings_of

SHAPES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=4)
CHURNS = st.builds(
    Churn,
    share=st.floats(0.05, 1.0),
    kinds=st.lists(st.sampled_from(["kill", "freeze", "cut"]), min_size=1, max_size=3).map(tuple),
    joins=st.booleans(),
    seed=st.integers(0, 2**40),
    freeze_for_s=st.floats(0.5, 30.0),
)


class Run:
    """A run of which only the members are there: what is hurt goes from it, and who joins is ready in the next round.

    Args:
        shape: replicas and standbys of each stage.
    """

    def __init__(self, shape: list[tuple[int, int]]) -> None:
        self.members: dict[int, dict[str, Any]] = {}
        for stage, (replicas, standbys) in enumerate(shape):
            for number in range(replicas + standbys):
                self.add(stage, "replicas" if number < replicas else "standbys")
        self.stages = len(shape)
        self.away: dict[int, dict[str, Any]] = {}

    def add(self, stage: int, role: str) -> None:
        pid = 100 + len(self.members)
        entry = {"member": f"m{pid}", "peer_id": f"p{pid}", "pid": pid, "operator": f"worker-{pid}", "ready": True}
        self.members[pid] = {"stage": stage, "role": role, "entry": entry, "there": True}

    def status(self, round_number: int, done: int, phase: str = "OPEN") -> dict[str, Any]:
        stages: list[dict[str, Any]] = [{"stage": stage, "replicas": [], "standbys": []} for stage in range(self.stages)]
        for member in self.members.values():
            if member["there"]:
                stages[member["stage"]][member["role"]].append(dict(member["entry"]))
        return {"phase": phase, "round": round_number, "frames_done": done, "target_frames": 100, "stages": stages}

    def unhurt(self, stage: int) -> int:
        return sum(member["there"] and member["stage"] == stage for member in self.members.values())

    def carry_out(self, action: Action) -> None:
        if action.kind == "join":
            self.add(min(range(self.stages), key=self.unhurt), "replicas")
        else:
            self.members[action.pid]["there"] = action.kind in ("thaw", "mend")


@given(churn=CHURNS, shape=SHAPES, rounds=st.integers(1, 6))
def test_no_stage_is_ever_left_without_anybody(churn: Churn, shape: list[tuple[int, int]], rounds: int) -> None:
    """Every stage begins with a replica and keeps an unhurt member, whatever the seed, the share and the kinds."""
    run, progress, now = Run(shape), ChurnProgress(churn), 0.0
    begun = {stage: run.unhurt(stage) for stage in range(run.stages)}
    for round_number in range(1, rounds + 1):
        for done in range(0, 101, 10):
            now += 0.7
            for action in progress.due(run.status(round_number, done), now):
                if action.kind in ("kill", "freeze", "cut"):
                    assert run.members[action.pid]["there"], "hurt twice"
                run.carry_out(action)
            assert all(run.unhurt(stage) >= 1 for stage in begun)
        now += 5.0
        for action in progress.due(run.status(round_number, 100, "CLOSING"), now):
            assert action.kind in ("thaw", "mend")
            run.carry_out(action)


@given(churn=CHURNS, shape=SHAPES, rounds=st.integers(1, 5))
def test_the_same_run_is_hurt_in_the_same_way_and_what_has_an_end_ends_once(
    churn: Churn, shape: list[tuple[int, int]], rounds: int
) -> None:
    told: list[list[Action]] = []
    for _ in range(2):
        run, progress, actions = Run(shape), ChurnProgress(churn), []
        for look in range(10 * rounds):
            now = 1.0 * look
            for action in progress.due(run.status(1 + look // 10, 10 * (look % 10)), now):
                actions.append(action)
                run.carry_out(action)
        actions += progress.due(run.status(rounds, 100, "FINISHED"), 1e6)
        assert progress.done
        told.append(actions)
    assert told[0] == told[1]
    for begins, ends in (("freeze", "thaw"), ("cut", "mend")):
        begun = sorted(action.pid for action in told[0] if action.kind == begins)
        assert begun == sorted(action.pid for action in told[0] if action.kind == ends)


@given(churn=CHURNS, shape=SHAPES)
def test_as_many_join_as_are_missing_from_those_that_there_were(churn: Churn, shape: list[tuple[int, int]]) -> None:
    run, progress = Run(shape), ChurnProgress(churn)
    began = sum(run.unhurt(stage) for stage in range(run.stages))
    for look in range(60):
        for action in progress.due(run.status(1 + look // 10, 10 * (look % 10)), 1.0 * look):
            run.carry_out(action)
        there = sum(run.unhurt(stage) for stage in range(run.stages))
        assert there >= began if churn.joins else there <= began
    joined = len(run.members) - began
    away = 60.0 / 1.0 * churn.share * (began + 1)
    assert joined == 0 if not churn.joins else joined <= away


@given(churn=CHURNS, round_number=st.integers(1, 50), live=st.integers(0, 40))
def test_a_round_has_its_share_of_faults_within_its_span(churn: Churn, round_number: int, live: int) -> None:
    hits = draw_hits(churn, round_number, live)
    assert abs(len(hits) - churn.share * live) <= 0.5
    assert all(churn.earliest <= hit.after_share <= churn.latest and hit.kind in churn.kinds for hit in hits)
    assert [hit.after_share for hit in hits] == sorted(hit.after_share for hit in hits)


def test_rounds_before_and_after_the_churn_are_quiet() -> None:
    churn = Churn(share=1.0, from_round=2, to_round=3)
    assert [len(draw_hits(churn, number, 4)) for number in (1, 2, 3, 4)] == [0, 4, 4, 0]


def seen(pid: int, stage: int, role: Any = "replica", *, ready: bool = True) -> Seen:
    return Seen(pid, stage, role, ready, f"m{pid}", f"p{pid}", f"worker-{pid}")


def test_the_last_ready_replica_is_spared_unless_a_ready_standby_is_there() -> None:
    alone = [seen(1, 0), seen(2, 1), seen(3, 1)]
    assert [one.pid for one in may_be_hurt(alone)] == [2, 3]
    assert [one.pid for one in may_be_hurt([seen(1, 0), seen(2, 0, ready=False)])] == [2]
    assert [one.pid for one in may_be_hurt([seen(1, 0), seen(2, 0, "standby")])] == [1, 2]
    assert [one.pid for one in may_be_hurt([seen(1, 0), seen(2, 0, "standby", ready=False)])] == [2]


def test_faults_that_found_nobody_are_told() -> None:
    progress = PlanProgress(Plan(churn=Churn(share=1.0, kinds=("kill",), earliest=0.5, latest=0.5)))
    run = Run([(1, 0)])
    assert progress.due(run.status(1, 100), 0.0) == [] and progress.due(run.status(2, 0), 1.0) == []
    assert progress.missed == ["kill at 50% of round 1: nobody to spare"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[churn]\nkinds = ['kill']\n", "churn.share"),
        ("[churn]\nshare = 1.5\n", "churn.share"),
        ("[churn]\nshare = 0.3\nkinds = ['burn']\n", "churn.kinds.0"),
        ("[churn]\nshare = 0.3\nearliest = 0.9\nlatest = 0.1\n", "earliest is above latest"),
        ("[churn]\nshare = 0.3\nfrom_round = 3\nto_round = 2\n", "to_round is before"),
        ("[simulation]\nworkers = 3\n", "simulation.workers"),
    ],
)
def test_a_wrong_churn_names_the_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(HocketError) as caught:
        load_plan(path)
    assert caught.value.code is Code.FAULT_PLAN_INVALID and place in caught.value.detail


def test_the_shipped_plans_can_be_read_by_their_names() -> None:
    shipped = sorted(SHIPPED.glob("churn-*.toml"))
    assert [path.name for path in shipped] == ["churn-heavy.toml", "churn-small.toml"]
    for path in shipped:
        assert load_plan(Path(path.name)).churn is not None
    heavy = load_plan(Path("churn-heavy.toml"))
    settings = settings_of(heavy, rounds=2, seed=None)
    assert (settings.stages, settings.replicas, settings.standbys, settings.rounds, settings.workers) == (3, 3, 2, 2, 11)
    assert heavy.cuts and not heavy.without_faults().cuts
    quiet = settings_of(heavy.without_faults())
    assert run_file(quiet, Path("data")) == run_file(settings_of(heavy), Path("data"))
    assert RunConfig.parse(run_file(quiet, Path("data"))).rounds.frame_target == 34000


def test_a_file_of_the_same_name_comes_before_a_shipped_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "churn-heavy.toml").write_text("[[kill]]\nround = 1\nstage = 0\n")
    assert load_plan(Path("churn-heavy.toml")).kill[0].round == 1
