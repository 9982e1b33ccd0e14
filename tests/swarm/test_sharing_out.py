"""Many fetches of one file against one another, by the deciders and in any order: all end, and nobody waits in vain."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import content
from swarm.block_plan import FetchPlan
from swarm.turns import PATIENCE_S, Turns

ORIGIN = "origin"


@dataclass
class Request:
    """Blocks that a peer has asked another for."""

    asker: str
    provider: str
    cids: list[str]
    awaited: bool


@dataclass
class World:
    """Peers that fetch one file; each is its plan. The origin has all of it."""

    blocks: dict[str, bytes]
    root: str
    names: list[str]
    random: Random
    plans: dict[str, FetchPlan] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    under_way: list[Request] = field(default_factory=list)
    origin_sent: int = 0
    now: float = 0.0

    def join(self, name: str) -> None:
        """A peer begins: it meets those who fetch already, and they meet it, as the block service has it."""
        plan = FetchPlan(self.root, (), max_bytes=1 << 20, origins=[ORIGIN], turns=Turns(name, self.names))
        plan.put_back(plan.take_fresh(64))
        for other, theirs in self.plans.items():
            if other not in self.gone:
                theirs.met(name, has_root=False, fetching=not plan.finished)
                plan.met(
                    other,
                    has_root=not theirs.awaits(self.root),
                    fetching=not theirs.finished,
                    coming=theirs.coming(self.root),
                )
        self.plans[name] = plan

    def ask(self, name: str) -> None:
        """All requests that a peer has to make now."""
        plan = self.plans[name]
        plan.turns.give_up(self.now)
        busy = [one.provider for one in self.under_way if one.asker == name]
        for provider in [*plan.providers, *(peer for peer in plan.turns.fellows if peer not in plan.providers)]:
            if busy.count(provider) < 2 and (batch := plan.take(provider, max_blocks=3, max_bytes=1 << 20)):
                self.under_way.append(Request(name, provider, batch, False))
        for peer in plan.turns.free(self.now):
            if peer not in busy and (batch := plan.take_awaited(peer, max_blocks=3, max_bytes=1 << 20)):
                plan.turns.asked(peer, self.now)
                self.under_way.append(Request(name, peer, batch, True))

    def has(self, provider: str, cid: str) -> bool:
        if provider == ORIGIN:
            return True
        plan = self.plans[provider]
        return plan.knows(cid) and not plan.awaits(cid)

    def waits(self, request: Request) -> bool:
        """Whether a provider holds an answer back: it has none of the blocks, and one is on its way to it."""
        if not request.awaited or request.provider in self.gone:
            return False
        plan = self.plans[request.provider]
        return not any(self.has(request.provider, cid) for cid in request.cids) and any(map(plan.may_await, request.cids))

    def answer(self, request: Request) -> None:
        plan = self.plans[request.asker]
        self.under_way.remove(request)
        if request.asker in self.gone:
            return
        if request.provider in self.gone:
            plan.put_back(request.cids)
            plan.failed(request.provider, "gone", lied=False, max_failures=1)
            return
        brought = False
        for cid in request.cids:
            if self.has(request.provider, cid):
                self.origin_sent += request.provider == ORIGIN
                plan.arrived(cid, self.blocks[cid])
                brought = True
            elif request.awaited and self.plans[request.provider].may_await(cid):
                plan.still_fetching(cid, coming=self.plans[request.provider].coming(cid))
            else:
                plan.lacks(request.provider, cid)
        if brought:
            plan.turns.brought(request.provider, self.now)
        elif request.awaited:
            plan.turns.still_fetching(request.provider, self.now, took_s=2.0)
        plan.put_back(plan.take_fresh(64))

    def play(self, leavers: set[str], late: list[str]) -> None:
        """Until everybody who stays has the file; peers come late and go in the middle."""
        for _ in range(5_000):
            alive = [name for name in self.plans if name not in self.gone]
            if not late and all(self.plans[name].finished for name in alive):
                return
            if late and self.random.random() < 0.1:
                self.join(late.pop())
                continue
            for name in alive:
                if not self.plans[name].finished:
                    self.ask(name)
            ready = [request for request in self.under_way if not self.waits(request)]
            if ready:
                self.now += 0.01
                self.answer(self.random.choice(ready))
            else:
                # Everybody waits for somebody: what a peer that is gone would have brought is given up in time.
                self.now += 2.0
                assert self.under_way or late or any(self.plans[name].turns.fellows for name in alive)
                for request in list(self.under_way):
                    self.answer(request)
            if leavers and self.random.random() < 0.05:
                self.gone.add(leavers.pop())
        raise AssertionError("it does not come to an end")


def world(size: int, peers: int, random: Random) -> World:
    data = hashlib.shake_128(b"file").digest(size)
    blocks = dict(content.iter_blocks(data, chunk_bytes=max(1, size // 24), max_links=8))
    return World(blocks, list(blocks)[-1], [f"peer{number}" for number in range(peers)], random)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2000), st.integers(1, 6), st.integers(0, 3), st.integers(0, 3), st.randoms(use_true_random=False))
def test_everybody_who_stays_gets_the_file_whoever_comes_late_and_goes(
    size: int, peers: int, late: int, leavers: int, random: Random
) -> None:
    made = world(size, peers, random)
    later = made.names[max(1, peers - late) :]
    for name in made.names[: len(made.names) - len(later)]:
        made.join(name)
    made.play(set(made.names[:leavers][: peers - 1]), later)
    assert made.origin_sent >= len(made.blocks) or made.gone


@given(st.integers(100, 2000), st.integers(2, 8), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_origin_sends_each_block_once_to_peers_who_begin_together(size: int, peers: int, random: Random) -> None:
    made = world(size, peers, random)
    for name in made.names:
        made.join(name)
    made.play(set(), [])
    assert made.origin_sent == len(made.blocks)
    assert made.now < PATIENCE_S * len(made.blocks)
