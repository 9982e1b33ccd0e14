"""Openings: the files in which a replica shows what it has committed to, and a witness what it has computed.

A safetensors file. What travelled between two stages is kept as it travelled, in its wire encoding: its digest is the one that
both ends have committed to, whatever made the bytes. `about` says what the file belongs to and how its tensors were encoded.
There are

* `PASS_INPUT`: groups `input` (what came from the stage before; in stage 0 the arrays of its batch) and `gradient_in` (what came
  back from the next stage; absent in the last);
* `PASS_OUTPUT` and `WITNESS`: groups `output` (what was sent on; in the last stage `ce` float64 [K] and `count` int64 [K], sums
  per codebook) and `gradient_out` (what was returned; absent in stage 0);
* `STEP`: `before.weights.NAME`, `before.moments.NAME.KEY`, the same under `after.`, and the groups `input` and `gradient_in` of
  each microbatch after `mb.ID.`;
* `REQUEST`: `request` and `answer`, uint8: the signed messages as they came from the stage before and from the next one.

Readers check everything against itself before they use it; whether the digests are those that were committed to is for the
caller to see.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import Code, HocketError
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.tensors import MAX_NAME_CHARACTERS, EncodedTensor, decode, digest_of

FORMAT = "hocket-opening/1"
ABOUT = "about"
MAX_ABOUT_BYTES = 4 << 20

Count = Annotated[int, Field(ge=0, lt=2**64)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]

# What crosses an edge of the pipeline: as it travelled, or the plain arrays where nothing travelled.
Group = Sequence[EncodedTensor] | Mapping[str, np.ndarray]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Head(_Part):
    """How a tensor travelled, as in `TensorHead`; size and digest are those of its bytes in the file."""

    name: Name
    dtype: Name
    shape: tuple[Count, ...] = Field(max_length=8)
    encoding: Name


class MicrobatchAbout(_Part):
    """A microbatch.

    Args:
        frames: of it. inner_step_frames: of its sender's inner step. wire: encoding that its answer was asked for in.
    """

    id: Count
    frames: Count
    inner_step_frames: Count
    wire: Name


class About(_Part):
    """What an opening belongs to.

    Args:
        run_id, round, base_cid: of the round. member_id, stage, stages, generation: who made it.
        step: of the chain; 0 in a witness's. seed: of the run's random masks.
        microbatches: that it holds. heads: by group.
        lr, frames, ramp, weight_decay, clip_norm, ordered: of the optimizer step; `ramp` is a factor within `lr`.
    """

    format: str = FORMAT
    run_id: str
    round: Count
    base_cid: str
    member_id: str
    stage: Count
    stages: Count
    generation: Count
    step: Count
    seed: Count
    microbatches: tuple[MicrobatchAbout, ...]
    heads: dict[str, tuple[Head, ...]] = {}
    frames: Count = 0
    lr: Finite = 0.0
    ramp: Finite = 1.0
    weight_decay: Finite = 0.0
    clip_norm: Finite = 0.0
    ordered: bool = True


def group_digest(group: Group) -> bytes:
    """The digest by which a commitment names a group."""
    return tensors_digest(group) if isinstance(group, Mapping) else digest_of(one.head for one in group)


def group_arrays(group: Group) -> dict[str, np.ndarray]:
    """The arrays of a group, decoded; the errors of `decode`."""
    return dict(group) if isinstance(group, Mapping) else {one.head.name: decode(one.head, one.data) for one in group}


def opening_tensors(
    about: About, groups: Mapping[str, Group], plain: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """The tensors of an opening's file, for `write_tensors`.

    Args:
        about: without heads. groups: by name. plain: further tensors.
    """
    tensors: dict[str, np.ndarray] = dict(plain or {})
    heads: dict[str, tuple[Head, ...]] = {}
    for name, group in groups.items():
        if isinstance(group, Mapping):
            tensors |= {f"{name}.{key}": value for key, value in group.items()}
            continue
        heads[name] = tuple(
            Head(name=one.head.name, dtype=one.head.dtype, shape=tuple(one.head.shape), encoding=one.head.encoding)
            for one in group
        )
        tensors |= {f"{name}.{one.head.name}": np.frombuffer(one.data, np.uint8) for one in group}
    whole = about.model_copy(update={"heads": heads})
    tensors[ABOUT] = np.frombuffer(whole.model_dump_json().encode(), np.uint8)
    return tensors


# ---- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crossing:
    """A group that was read: its arrays and the digest by which it was committed to; no arrays and b"" where there is none."""

    arrays: dict[str, np.ndarray]
    digest: bytes


@dataclass(frozen=True)
class OpenedPass:
    """A pass of one microbatch, as far as the file shows it.

    Args:
        input: in stage 0 of its batch, `hidden`, `codes`, `n_frames`, `speaker`, `language` otherwise. gradient_in: `grad`.
        output: `hidden` and what travels along; in the last stage `ce` and `count`. gradient_out: `grad`.
    """

    about: About
    microbatch: MicrobatchAbout
    input: Crossing
    gradient_in: Crossing
    output: Crossing
    gradient_out: Crossing


@dataclass(frozen=True)
class OpenedStep:
    """An inner step.

    Args:
        before, after: `weights.NAME` and `moments.NAME.KEY`; no moments before the first step of an optimizer.
        passes: by microbatch id.
    """

    about: About
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    passes: dict[int, OpenedPass]


def _bad(reason: str) -> HocketError:
    return HocketError(Code.OPENING_INVALID, reason)


def read_about(tensors: Mapping[str, np.ndarray]) -> About:
    """What an opening says of itself; OPENING_INVALID when it does not."""
    text = tensors.get(ABOUT)
    if text is None or text.dtype != np.uint8 or text.ndim != 1 or text.size > MAX_ABOUT_BYTES:
        raise _bad("it does not say what it belongs to")
    try:
        about = About.model_validate_json(text.tobytes())
    except ValidationError as error:
        raise _bad(f"{ABOUT}: {error.errors()[0]['msg']}") from error
    if about.format != FORMAT:
        raise _bad(f"it is of format {about.format[:40]!r}, not {FORMAT}")
    if len({one.id for one in about.microbatches}) != len(about.microbatches):
        raise _bad("a microbatch is named twice")
    return about


def _take(tensors: dict[str, np.ndarray], about: About, group: str) -> Crossing:
    """Take a group's tensors out of `tensors`."""
    found = {name.removeprefix(f"{group}."): tensors.pop(name) for name in list(tensors) if name.startswith(f"{group}.")}
    heads = about.heads.get(group)
    if heads is None:
        return Crossing(found, tensors_digest(found) if found else b"")
    if len(heads) != len(found) or {head.name for head in heads} != set(found):
        raise _bad(f"the tensors of {group} are not those that it names")
    encoded = [_encoded(head, found[head.name]) for head in heads]
    return Crossing(group_arrays(encoded), group_digest(encoded))


def _encoded(head: Head, data: np.ndarray) -> EncodedTensor:
    if data.dtype != np.uint8 or data.ndim != 1:
        raise _bad(f"{head.name!r} is no string of bytes")
    raw = np.ascontiguousarray(data).data
    return EncodedTensor(
        pb.TensorHead(
            name=head.name, dtype=head.dtype, shape=head.shape, encoding=head.encoding, size_bytes=data.nbytes,
            sha256=hashlib.sha256(raw).digest(),
        ),
        raw,
    )  # fmt: skip


def _pass(tensors: dict[str, np.ndarray], about: About, microbatch: MicrobatchAbout, prefix: str = "") -> OpenedPass:
    names = ("input", "gradient_in", "output", "gradient_out")
    taken = [_take(tensors, about, prefix + name) for name in names]
    return OpenedPass(about, microbatch, *taken)


Opened = TypeVar("Opened")


def _nothing_left(tensors: Mapping[str, np.ndarray], about: About, opened: Opened, groups: Iterable[str]) -> Opened:
    if tensors or not set(about.heads) <= set(groups):
        raise _bad(f"tensors that do not belong to it: {sorted(tensors)[:3] or sorted(about.heads)[:3]}")
    return opened


def read_pass(tensors: Mapping[str, np.ndarray]) -> OpenedPass:
    """Read a PASS_INPUT, PASS_OUTPUT or WITNESS.

    Raises:
        HocketError: OPENING_INVALID, TENSOR_INVALID, MESSAGE_TOO_LARGE, NOT_FINITE.
    """
    about = read_about(tensors)
    if len(about.microbatches) != 1:
        raise _bad(f"it is of {len(about.microbatches)} microbatches, not of one")
    left = {name: tensor for name, tensor in tensors.items() if name != ABOUT}
    opened = _pass(left, about, about.microbatches[0])
    return _nothing_left(left, about, opened, ("input", "gradient_in", "output", "gradient_out"))


def read_step(tensors: Mapping[str, np.ndarray]) -> OpenedStep:
    """Read a STEP; errors as in `read_pass`. Names and shapes of the weights are the caller's to compare with the stage."""
    about = read_about(tensors)
    left = {name: tensor for name, tensor in tensors.items() if name != ABOUT}
    states: list[dict[str, np.ndarray]] = []
    for when in ("before.", "after."):
        states.append({name.removeprefix(when): left.pop(name) for name in list(left) if name.startswith(when)})
    passes = {one.id: _pass(left, about, one, f"mb.{one.id}.") for one in about.microbatches}
    groups = [f"mb.{one.id}.{name}" for one in about.microbatches for name in ("input", "gradient_in")]
    return _nothing_left(left, about, OpenedStep(about, states[0], states[1], passes), groups)


def read_request(tensors: Mapping[str, np.ndarray]) -> tuple[About, bytes, bytes]:
    """Read a REQUEST: the signed request and the signed answer as they came, empty where there was none."""
    about = read_about(tensors)
    left = {name: tensor for name, tensor in tensors.items() if name != ABOUT}
    request, answer = (left.pop(name, np.empty(0, np.uint8)) for name in ("request", "answer"))
    if request.dtype != np.uint8 or answer.dtype != np.uint8:
        raise _bad("request or answer is no string of bytes")
    return _nothing_left(left, about, (about, request.tobytes(), answer.tobytes()), ())
