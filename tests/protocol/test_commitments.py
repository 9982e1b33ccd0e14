"""Chains and Merkle trees: what is committed cannot be changed, split or reordered afterwards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.commitments import ChainStart, TensorsDigest, first_link, link_of, next_link, records_root, tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.merkle import merkle_root, prove, proves

START = ChainStart("run", 3, 1, "member", 2, "bafybase")
LEAVES = st.lists(st.binary(max_size=40), min_size=1, max_size=40)


@given(LEAVES, st.data())
def test_each_leaf_is_proved_and_no_other(leaves: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    other = data.draw(st.binary(max_size=40).filter(lambda one: one != leaves[index]))
    root, proof = merkle_root(leaves), prove(leaves, index)
    assert proves(proof, leaves[index], root)
    assert not proves(proof, other, root)


@given(LEAVES, LEAVES)
def test_different_leaves_have_different_roots(some: list[bytes], others: list[bytes]) -> None:
    assert (merkle_root(some) == merkle_root(others)) == (some == others)


def test_a_proof_of_another_length_is_none() -> None:
    leaves = [b"a", b"b", b"c"]
    proof = prove(leaves, 2)
    longer = type(proof)(proof.index, proof.size, (*proof.siblings, b"x" * 32))
    assert proves(proof, b"c", merkle_root(leaves)) and not proves(longer, b"c", merkle_root(leaves))
    with pytest.raises(IndexError):
        prove(leaves, 3)


def test_tensors_have_one_digest_whole_or_in_pieces() -> None:
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float32(1.5).reshape(())}
    pieces = TensorsDigest()
    pieces.begin("a", "float32", ())
    pieces.add(tensors["a"])
    pieces.begin("b", "float32", (2, 3))
    pieces.add(tensors["b"].reshape(-1)[:4])
    pieces.add(tensors["b"].reshape(-1)[4:])
    assert pieces.digest() == tensors_digest(tensors) == tensors_digest(dict(reversed(tensors.items())))


@pytest.mark.parametrize("change", [{"b": np.zeros((3, 2), np.float32)}, {"b": np.zeros((2, 3), np.int32)},
                                    {"c": np.zeros((2, 3), np.float32)}, {"b": np.full((2, 3), -0.0, np.float32)}])  # fmt: skip
def test_shape_dtype_name_and_bytes_are_bound(change: dict[str, np.ndarray]) -> None:
    assert tensors_digest(change) != tensors_digest({"b": np.zeros((2, 3), np.float32)})


def test_a_link_binds_everything_that_a_commit_says() -> None:
    begin = pb.StepCommit(round=3, generation=2, stage=1, step=0, update_digest=b"u" * 32, moments_digest=b"m" * 32)
    first = link_of(begin, START)
    assert first == first_link(START, b"u" * 32, b"m" * 32) and len(first) == 32
    records = [pb.MicrobatchRecord(id=number, frames=10, input=bytes([number]) * 32) for number in (5, 4)]
    step = pb.StepCommit(
        step=1, previous=first, update_digest=b"v" * 32, moments_digest=b"n" * 32, records=records, frames=20, lr=0.1
    )  # fmt: skip
    link = link_of(step, START)
    assert link == next_link(first, 1, 20, 0.1, b"v" * 32, b"n" * 32, records_root(reversed(records)))
    for name, value in [("step", 2), ("previous", b"p" * 32), ("update_digest", b"w" * 32), ("frames", 21), ("lr", 0.2)]:
        other = pb.StepCommit()
        other.CopyFrom(step)
        setattr(other, name, value)
        assert link_of(other, START) != link
    step.records[0].input = b"y" * 32
    assert link_of(step, START) != link
