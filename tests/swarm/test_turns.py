"""Who brings a block: all agree without a word, no two wait for each other, and nobody is waited for without end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.pace import LIAR_LEFT_OUT_S, SHUNNED_S, STALLED_LEFT_OUT_S, Paces
from swarm.turns import LONGEST_PAUSE_S, PATIENCE_S, Turns

CIDS = [f"block{number}" for number in range(60)]
NAMES = [f"peer{number}" for number in range(8)]


def views(knows: dict[str, set[str]]) -> dict[str, Turns]:
    """Each peer's view, in which it knows some of the others."""
    made = {}
    for peer, others in knows.items():
        made[peer] = Turns(peer, NAMES)
        for other in others:
            made[peer].joined(other, running=False)
    return made


def test_among_peers_who_know_one_another_one_brings_each_block_and_the_others_ask_it() -> None:
    seen = views({peer: set(NAMES) for peer in NAMES})
    share = dict.fromkeys(NAMES, 0)
    for cid in CIDS:
        holders = {peer: seen[peer].holder(cid, ()) for peer in NAMES}
        (first,) = [peer for peer, holder in holders.items() if holder is None]
        assert {holder for holder in holders.values() if holder} == {first}
        share[first] += 1
    assert min(share.values()) > 0


@given(st.data())
def test_whatever_each_knows_no_two_wait_for_each_other(data: st.DataObject) -> None:
    knows = {peer: set(data.draw(st.lists(st.sampled_from(NAMES), unique=True), label=peer)) for peer in NAMES}
    lacking = {peer: set(data.draw(st.lists(st.sampled_from(NAMES), max_size=3), label=f"lacking {peer}")) for peer in NAMES}
    seen = views(knows)
    for cid in CIDS[:10]:
        for peer in NAMES:
            chain = [peer]
            while (holder := seen[chain[-1]].holder(cid, lacking[chain[-1]])) is not None:
                assert holder not in chain, "they wait in a circle"
                assert holder in knows[chain[-1]] - lacking[chain[-1]]
                chain.append(holder)


def test_only_candidates_join_and_one_that_left_does_not_come_back() -> None:
    turns = Turns("me", ["a", "b", "me"])
    for peer in ("a", "stranger", "me"):
        turns.joined(peer, running=peer == "a")
    assert turns.fellows == turns.running == ["a"]
    assert turns.left("a") and not turns.left("a")
    turns.joined("a", running=False)
    assert turns.fellows == []
    assert turns.holder("x", ()) is None


def test_a_fellow_is_given_up_once_it_has_brought_nothing_for_a_while() -> None:
    turns = Turns("me", ["a"])
    turns.joined("a", running=False)
    assert turns.look_again_s(0.0) is None, "it is not waited for yet"
    turns.asked("a", 10.0)
    turns.asked("a", 12.0)
    assert turns.look_again_s(10.0) == PATIENCE_S
    assert turns.give_up(10.0 + PATIENCE_S - 0.1) == []
    turns.brought("a", 14.0)
    turns.asked("a", 14.5)
    assert turns.give_up(10.0 + PATIENCE_S) == []
    turns.took(2.0)
    assert turns.give_up(14.5 + PATIENCE_S + 7.9) == [], "holders are slow, so fellows may be"
    assert turns.give_up(14.5 + PATIENCE_S + 8.0) == ["a"]


def test_a_fellow_that_answers_too_soon_is_asked_less_and_less_often() -> None:
    turns = Turns("me", ["a"])
    turns.joined("a", running=False)
    now, times = 0.0, []
    for _ in range(8):
        assert turns.free(now) == ["a"]
        turns.still_fetching("a", now, took_s=0.0)
        wait = turns.look_again_s(now)
        assert wait is not None and turns.free(now + wait / 2) == []
        times.append(wait)
        now += wait
    assert times == sorted(times) and times[-1] == LONGEST_PAUSE_S
    turns.still_fetching("a", now, took_s=5.0)
    assert turns.free(now) == ["a"], "it has waited itself"


def test_near_peers_come_first_and_those_that_failed_last() -> None:
    paces = Paces()
    for _ in range(5):
        paces.answered("far", 0.3, 100)
        paces.answered("near", 0.02, 100)
        paces.answered("near but slow", 0.02, 100)
        paces.answered("near but slow", 2.0, 1 << 20)
        paces.answered("near", 0.1, 1 << 20)
    names = ["near but slow", "far", "near", "unknown"]
    assert paces.nearest(names, 0.0) == ["unknown", "near", "far", "near but slow"]
    assert paces.expected_s("near", 1 << 20) < 0.15
    paces.failed("near", 100.0)
    assert paces.nearest(names, 100.0)[-1] == "near" and paces.shunned("near", 100.0) and not paces.left_out("near", 100.0)
    assert not paces.shunned("near", 100.0 + SHUNNED_S)
    paces.failed("near", 200.0, lied=True)
    paces.failed("near", 201.0)
    paces.answered("near", 0.01, 100)
    paces.stalled("near", 202.0)
    assert paces.left_out("near", 200.0 + LIAR_LEFT_OUT_S - 1) and not paces.left_out("near", 200.0 + LIAR_LEFT_OUT_S)
    paces.stalled("far", 0.0)
    assert paces.left_out("far", STALLED_LEFT_OUT_S - 1) and not paces.left_out("far", STALLED_LEFT_OUT_S)
