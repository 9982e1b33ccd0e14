"""Receipts say what became of each member's work, and the ledger sums to what the rounds say."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import history
from coordinator.history import History
from coordinator.ledger import OUTCOMES, contributions, ledger, receipt_of
from coordinator.run import Member, RunState, Update
from coordinator.signed_receipts import SignedReceipts
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey

names = st.sampled_from(["m1", "m2", "m3", "m4"])
entries = st.fixed_dictionaries({
    "member": names, "operator": st.sampled_from(["", "Ann", "Bob"]), "stage": st.integers(0, 2), "frames": st.integers(0, 99),
    "outcome": st.sampled_from(OUTCOMES), "reason": st.just("why"),
})  # fmt: skip
rounds = st.lists(st.lists(entries, max_size=6), max_size=6).map(
    lambda all_of_them: [
        {"round": number, "cid": f"v{number}", "contributions": one} for number, one in enumerate(all_of_them, start=1)
    ]
)


def update(member: str, stage: int, frames: int) -> Update:
    return Update(member, stage, 1, "00", 1, frames, 1, [], 0, 0, "path")


def result(**more: Any) -> dict[str, Any]:
    return {"outcomes": {}, "trimmed_shares": {}, "refused": [], **more}


def test_each_member_hears_what_became_of_its_work() -> None:
    state = RunState(stages=2, members={"a": Member("a", "p", "Ann"), "b": Member("b", "p")})
    state.updates = {(0, "a"): update("a", 0, 10), (1, "b"): update("b", 1, 20), (1, "c"): update("c", 1, 30)}
    state.counts = {"trained": [[0, "a"], [1, "b"], [1, "d"], [1, "e"]]}
    results = [
        result(outcomes={"a": "accepted"}),
        result(outcomes={"b": "trimmed"}, trimmed_shares={"b": 0.75}, refused=[["c", "H505 not finite"], ["e", "it is banned"]]),
    ]
    assert [(one["member"], one["operator"], one["stage"], one["frames"], one["outcome"], one["reason"])
            for one in contributions(state, results)] == [
        ("a", "Ann", 0, 10, "accepted", ""),
        ("b", "", 1, 20, "trimmed", "75% of it did not go in"),
        ("c", "", 1, 30, "refused", "H505 not finite"),
        ("d", "", 1, 0, "missing", "no update came"),
        ("e", "", 1, 0, "refused", "it is banned"),
    ]  # fmt: skip


@given(rounds)
def test_the_ledger_sums_to_what_the_rounds_say(made: list[dict[str, Any]]) -> None:
    sums = ledger(made)
    flat = [one for record in made for one in record["contributions"]]
    for kind in ("members", "operators"):
        assert sum(one["frames"] for one in sums[kind]) == sum(
            one["frames"] for one in flat if one["outcome"] in ("accepted", "trimmed")
        )
        for outcome in OUTCOMES:
            assert sum(one[outcome] for one in sums[kind]) == sum(one["outcome"] == outcome for one in flat)
        assert [one["frames"] for one in sums[kind]] == sorted((one["frames"] for one in sums[kind]), reverse=True)
    assert {one["member"] for one in sums["members"]} == {one["member"] for one in flat}


@given(rounds, names)
def test_a_receipt_is_of_the_last_round_that_the_member_took_part_in(made: list[dict[str, Any]], member: str) -> None:
    took_part = [record for record in made if any(one["member"] == member for one in record["contributions"])]
    receipt = receipt_of(made, member)
    if not took_part:
        assert receipt is None
        return
    assert receipt is not None and receipt.member_id == member
    assert (receipt.round, receipt.version_cid) == (took_part[-1]["round"], took_part[-1]["cid"])
    assert receipt.outcome in {one["outcome"] for one in took_part[-1]["contributions"] if one["member"] == member}


def test_rounds_of_an_older_journal_count_for_nothing() -> None:
    assert ledger([{"round": 1}]) == {"members": [], "operators": []} and receipt_of([{"round": 1}], "m") is None


def test_a_round_is_unpacked_once_for_the_receipts_of_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(round: int) -> dict[str, Any]:
        work = [{"member": f"m{number}", "operator": "", "stage": 0, "frames": number, "outcome": "accepted", "reason": ""}
                for number in range(20)]  # fmt: skip
        return {"round": round, "cid": f"v{round}", "contributions": work}

    state = RunState(run_id="r", rounds=History())
    entrance = SimpleNamespace(key=MemberKey.from_seed(b"k" * 32), now_ms=lambda: 1)
    receipts = SignedReceipts(cast(Any, SimpleNamespace(state=state)), cast(Any, entrance))
    unpacked, loads = [], json.loads
    monkeypatch.setattr(history.json, "loads", lambda data: unpacked.append(data) or loads(data))
    for round in range(1, 4):
        state.rounds.append(record(round))
        for number in [*range(20), *range(20)]:
            signed = receipts.of(f"m{number}")
            assert signed is not None
            told = pb.ContributionReceipt.FromString(signed.payload)
            assert (told.round, told.member_id, told.frames, told.version_cid) == (round, f"m{number}", number, f"v{round}")
        assert receipts.of("nobody") is None
    assert len(unpacked) == 1 + 2 + 3
