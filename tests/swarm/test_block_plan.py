"""Which block to ask whom for: every file is fetched whenever somebody honest has each block, whatever the others do."""

from __future__ import annotations

import hashlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol import content
from swarm.block_plan import FetchPlan


def tree(data: bytes, chunk_bytes: int, max_links: int) -> tuple[str, dict[str, bytes]]:
    blocks = dict(content.iter_blocks(data, chunk_bytes=chunk_bytes, max_links=max_links))
    return list(blocks)[-1], blocks


@given(
    st.integers(0, 400),
    st.integers(1, 60),
    st.integers(2, 4),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_fetches_whatever_some_honest_provider_has(size: int, chunk: int, fan: int, count: int, random: Random) -> None:
    """Providers lack blocks, fail and answer in any order; each block is with at least one that never fails."""
    chunk = max(chunk, size // 60 + 1)
    root, blocks = tree(hashlib.shake_128(b"x").digest(size), chunk, fan)
    providers = [f"peer{number}" for number in range(count)]
    holds = {provider: {cid for cid in blocks if random.random() < 0.6} for provider in providers}
    honest = providers[random.randrange(count)]
    holds[honest] = set(blocks)
    on_disk = {cid for cid in blocks if random.random() < 0.3}
    plan = FetchPlan(root, providers, max_bytes=size)
    taken: list[tuple[str, list[str]]] = []
    asked: set[tuple[str, str]] = set()
    there: set[str] = set()
    for _ in range(20_000):
        if plan.finished:
            break
        if fresh := plan.take_fresh(3):
            plan.put_back([cid for cid in fresh if cid not in on_disk])
            for cid in fresh:
                if cid in on_disk:
                    there.add(cid)
                    plan.arrived(cid, blocks[cid])
            continue
        provider = random.choice(plan.providers)
        if batch := plan.take(provider, max_blocks=3, max_bytes=200):
            assert not [cid for other, cids in taken for cid in cids if cid in batch], "one block asked for twice at once"
            assert not there & set(batch), "a block asked for that is there"
            assert not {(provider, cid) for cid in batch} & asked, "a provider asked again for what it lacks"
            taken.append((provider, batch))
        elif not taken:
            continue
        if taken and random.random() < 0.7:
            provider, batch = taken.pop(random.randrange(len(taken)))
            if provider != honest and random.random() < 0.3:
                plan.put_back(batch)
                plan.failed(provider, "gone", lied=random.random() < 0.5, max_failures=2)
                continue
            for cid in batch:
                if cid in holds[provider]:
                    there.add(cid)
                    plan.arrived(cid, blocks[cid])
                else:
                    asked.add((provider, cid))
                    plan.lacks(provider, cid)
    assert plan.finished
    assert there == set(blocks)
    assert honest in plan.providers


def test_a_batch_is_bounded_by_declared_sizes() -> None:
    root, blocks = tree(hashlib.shake_128(b"y").digest(1000), 100, 1024)
    plan = FetchPlan(root, ["peer"], max_bytes=1000)
    assert plan.take("peer", max_blocks=64, max_bytes=1000) == []  # still to be looked for on disk
    plan.put_back(plan.take_fresh(64))
    assert plan.take("peer", max_blocks=64, max_bytes=1) == [root]  # of unknown size, but alone
    plan.arrived(root, blocks[root])
    plan.put_back(plan.take_fresh(64))
    assert len(plan.take("peer", max_blocks=64, max_bytes=250)) == 3
    assert len(plan.take("peer", max_blocks=2, max_bytes=10_000)) == 2
    assert len(plan.take("peer", max_blocks=64, max_bytes=10_000)) == 5


def test_a_file_larger_than_allowed_is_refused_at_its_root() -> None:
    root, blocks = tree(bytes(range(200)) * 10, 100, 1024)
    plan = FetchPlan(root, ["peer"], max_bytes=1999)
    assert plan.take_fresh(64) == [root]
    with pytest.raises(HocketError) as caught:
        plan.arrived(root, blocks[root])
    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    assert not plan.take_fresh(64)


def test_a_child_that_contradicts_its_parent_is_refused() -> None:
    small = content.block_cid(content.RAW, b"abc")
    lie = content.encode_node([content.Link(small, 500, 500), content.Link(content.block_cid(content.RAW, b"defg"), 4, 4)])
    root = content.block_cid(content.DAG_PB, lie)
    plan = FetchPlan(root, ["peer"], max_bytes=1000)
    plan.arrived(root, lie)
    with pytest.raises(HocketError) as caught:
        plan.arrived(small, b"abc")
    assert caught.value.code is Code.BLOCK_DAMAGED


def test_a_tree_deeper_than_any_file_is_refused() -> None:
    cid, size, dag = content.block_cid(content.RAW, b"leaf"), 4, 4
    blocks = {cid: b"leaf"}
    for _ in range(content.MAX_DEPTH + 1):
        node = content.encode_node([content.Link(cid, size, dag)])
        cid, dag = content.block_cid(content.DAG_PB, node), dag + len(node)
        blocks[cid] = node
    plan = FetchPlan(cid, ["peer"], max_bytes=1000)
    with pytest.raises(HocketError) as caught:
        while fresh := plan.take_fresh(1):
            plan.arrived(fresh[0], blocks[fresh[0]])
    assert caught.value.code is Code.BLOCK_DAMAGED


def test_blocks_that_say_little_in_many_bytes_are_refused() -> None:
    """A chunk of one byte costs some fifty in its parent."""
    size = 30_000
    root, blocks = tree(hashlib.shake_128(b"z").digest(size), 1, 1024)
    plan = FetchPlan(root, ["peer"], max_bytes=size)
    received = 0
    with pytest.raises(HocketError) as caught:
        while fresh := plan.take_fresh(64):
            for cid in fresh:
                received += len(blocks[cid])
                plan.arrived(cid, blocks[cid])
    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    assert received < size + size // 64 + 2 * content.MAX_BLOCK_BYTES < sum(map(len, blocks.values())) + content.MAX_BLOCK_BYTES


def test_faults_are_told_apart() -> None:
    root, _ = tree(b"data", 100, 10)
    plan = FetchPlan(root, ["a", "b", "a"], max_bytes=10)
    plan.put_back(plan.take_fresh(1))
    assert plan.providers == ["a", "b"]
    plan.lacks("a", plan.take("a", max_blocks=1, max_bytes=1)[0])
    assert plan.take("a", max_blocks=1, max_bytes=1) == []
    assert not plan.failed("b", "silent", lied=False, max_failures=2)
    assert plan.fault().code is Code.BLOCK_NOT_FOUND
    assert "b: silent" in plan.fault().detail
    assert plan.failed("b", "other bytes", lied=True, max_failures=9)
    assert not plan.failed("b", "other bytes", lied=True, max_failures=9)
    assert plan.providers == ["a"]
    assert plan.fault().code is Code.BLOCK_DAMAGED


def test_a_root_that_is_no_cid() -> None:
    with pytest.raises(HocketError) as caught:
        FetchPlan("Qm", [], max_bytes=1)
    assert caught.value.code is Code.CID_INVALID
