"""Openings come back as they were written, with the digests that both ends of an edge have committed to."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.openings import (
    ABOUT,
    About,
    MicrobatchAbout,
    group_digest,
    opening_tensors,
    read_pass,
    read_request,
    read_step,
)
from protocol.tensor_files import read_tensors, write_tensors
from protocol.tensors import ENCODINGS, EncodedTensor, decode, digest_of, encode


def about(*ids: int, **changes: object) -> About:
    values = {
        "run_id": "r", "round": 2, "base_cid": "b", "member_id": "m", "stage": 1, "stages": 3, "generation": 4,
        "step": 5, "seed": 6,
        "microbatches": tuple(MicrobatchAbout(id=one, frames=7, inner_step_frames=28, wire="int8") for one in ids),
    }  # fmt: skip
    return About.model_validate(values | changes)


def travelled(encoding: str, seed: int = 0) -> list[EncodedTensor]:
    generator = np.random.default_rng(seed)
    hidden = generator.standard_normal((2, 5, 8), dtype=np.float32)
    return [encode("hidden", hidden, encoding), encode("codes", generator.integers(0, 9, (2, 2, 4)).astype(np.uint16), "fp32")]


@given(encoding=st.sampled_from(ENCODINGS), seed=st.integers(0, 2**32))
def test_what_travelled_keeps_its_digest_and_its_values(encoding: str, seed: int) -> None:
    group = travelled(encoding, seed)
    back = [encode("grad", np.ones((2, 5, 8), np.float32), encoding)]
    opened = read_pass(opening_tensors(about(3), {"input": group, "gradient_in": back}))
    assert opened.input.digest == digest_of(one.head for one in group) == group_digest(group)
    np.testing.assert_array_equal(opened.input.arrays["hidden"], decode(group[0].head, group[0].data))
    assert opened.input.arrays["codes"].dtype == np.uint16 and opened.gradient_in.arrays["grad"].shape == (2, 5, 8)
    assert opened.output.digest == b"" and not opened.output.arrays
    assert opened.microbatch.id == 3 and opened.about.round == 2


def test_bytes_that_no_encoder_would_have_made_keep_their_digest_too() -> None:
    """A sender may write int8 values that do not reach 127; who received them must be able to show what came."""
    honest = encode("hidden", np.ones((2, 4), np.float32), "int8")
    raw = bytes(honest.data[:8]) + bytes([100] * 8)
    head = pb.TensorHead()
    head.CopyFrom(honest.head)
    head.sha256 = hashlib.sha256(raw).digest()
    opened = read_pass(opening_tensors(about(1), {"input": [EncodedTensor(head, raw)]}))
    assert opened.input.digest == digest_of([head])
    assert digest_of([encode("hidden", opened.input.arrays["hidden"], "int8").head]) != digest_of([head])


def test_a_step_through_a_file(tmp_path: Path) -> None:
    state = {"weights.a": np.arange(6, dtype=np.float32).reshape(2, 3), "moments.a.step": np.float32(3).reshape(())}
    batch = {"phonemes": np.arange(4).reshape(2, 2), "speaker": np.zeros((2, 3), np.float32)}
    groups = {"mb.8.input": batch, "mb.8.gradient_in": travelled("bf16"), "mb.9.input": batch}
    plain = {f"before.{n}": t for n, t in state.items()} | {f"after.{n}": t + 1 for n, t in state.items()}
    tensors = opening_tensors(about(8, 9, lr=0.1 + 0.2, frames=28, clip_norm=1.0), groups, plain)
    write_tensors(tmp_path / "f", tensors)
    opened = read_step(read_tensors(tmp_path / "f"))
    assert opened.about.lr == 0.1 + 0.2
    assert tensors_digest(opened.before) == tensors_digest(state)
    assert tensors_digest(opened.after) == tensors_digest({n: t + 1 for n, t in state.items()})
    assert opened.passes[8].input.digest == opened.passes[9].input.digest == tensors_digest(batch)
    assert opened.passes[8].gradient_in.digest == group_digest(travelled("bf16"))
    assert opened.passes[9].gradient_in.digest == b""


def test_signed_messages() -> None:
    tensors = opening_tensors(about(1), {}, {"request": np.frombuffer(b"one", np.uint8)})
    found, request, answer = read_request(tensors)
    assert (request, answer) == (b"one", b"") and found.microbatches[0].id == 1


def _changed(tensors: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    text = tensors[ABOUT].tobytes()
    return {
        "no about": {n: t for n, t in tensors.items() if n != ABOUT},
        "no JSON": tensors | {ABOUT: np.frombuffer(b"{", np.uint8)},
        "another format": tensors | {ABOUT: np.frombuffer(text.replace(b"opening/1", b"opening/2"), np.uint8)},
        "a key too many": tensors | {ABOUT: np.frombuffer(text.replace(b'{"format"', b'{"x":1,"format"'), np.uint8)},
        "a tensor too many": tensors | {"other": np.zeros(1, np.float32)},
        "a tensor of the group too many": tensors | {"input.other": np.zeros(1, np.uint8)},
        "a tensor missing": {n: t for n, t in tensors.items() if n != "input.hidden"},
        "no bytes": tensors | {"input.hidden": np.zeros(40, np.float32)},
        "another shape": tensors | {ABOUT: np.frombuffer(text.replace(b"[2,5,8]", b"[2,5,9]"), np.uint8)},
        "a huge shape": tensors | {ABOUT: np.frombuffer(text.replace(b"[2,5,8]", b"[2,5,4611686018427387904]"), np.uint8)},
        "two microbatches": tensors | {ABOUT: np.frombuffer(about(1, 2).model_dump_json().encode(), np.uint8)},
        "one microbatch twice": tensors | {ABOUT: np.frombuffer(about(1, 1).model_dump_json().encode(), np.uint8)},
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    ["no about", "no JSON", "another format", "a key too many", "a tensor too many", "a tensor of the group too many",
     "a tensor missing", "no bytes", "another shape", "a huge shape", "two microbatches", "one microbatch twice"],
)  # fmt: skip
def test_what_does_not_fit_is_refused(kind: str) -> None:
    tensors = opening_tensors(about(3), {"input": travelled("int8")})
    with pytest.raises(HocketError) as caught:
        read_pass(_changed(tensors, kind))
    assert caught.value.code in (Code.OPENING_INVALID, Code.TENSOR_INVALID, Code.MESSAGE_TOO_LARGE)
