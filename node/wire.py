"""train_step on the wire: requests and answers made, read, and checked against the model and against each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from protocol.generated import hocket_pb2 as pb
from protocol.tensors import EncodedTensor, decode_all, encode, split_body
from swarm.carrier import Message
from tts.batch import Side, hidden_shape
from tts.config import ModelConfig

TRAIN_STEP_PROTOCOL = "hocket/train_step/1"
REQUEST_METHOD = "train_step"
ANSWER_METHOD = "train_step_answer"
SIDE_NAMES = ("codes", "n_frames", "speaker", "language")
MAX_REQUEST_BYTES = 256 << 20
MAX_BASE_CID_CHARACTERS = 128


@dataclass(frozen=True)
class Losses:
    """Sums over a microbatch, float64 on this side of the wire.

    Args:
        ce: sum of the cross-entropy per codebook. count: codes in it.
        auxiliary: further losses by name as (sum, count).
    """

    ce: tuple[float, ...] = ()
    count: tuple[int, ...] = ()
    auxiliary: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __add__(self, other: Losses) -> Losses:
        if not self.ce or not other.ce:
            ce, count = self.ce or other.ce, self.count or other.count
        else:
            ce = tuple(a + b for a, b in zip(self.ce, other.ce, strict=True))
            count = tuple(a + b for a, b in zip(self.count, other.count, strict=True))
        auxiliary = dict(self.auxiliary)
        for name, (total, number) in other.auxiliary.items():
            had, had_number = auxiliary.get(name, (0.0, 0))
            auxiliary[name] = (had + total, had_number + number)
        return Losses(ce, count, auxiliary)

    def codebooks(self) -> list[pb.CodebookLoss]:
        return [pb.CodebookLoss(ce_sum=ce, count=count) for ce, count in zip(self.ce, self.count, strict=True)]

    def auxiliaries(self) -> list[pb.AuxiliaryLoss]:
        return [pb.AuxiliaryLoss(name=name, sum=total, count=count) for name, (total, count) in sorted(self.auxiliary.items())]


@dataclass(frozen=True)
class StepInput:
    """What travels into a stage.

    Args:
        hidden: float32 [B, S, D].
        side: `codes` uint16 [B, K, T], `n_frames` int32 [B], `speaker` float32 [B, E], `language` int32 [B].
    """

    hidden: np.ndarray
    side: Mapping[str, np.ndarray]

    def encode(self, encoding: str) -> list[EncodedTensor]:
        """Ready for the wire; only `hidden` takes the encoding. NOT_FINITE when there is nothing to be learnt from it."""
        return [encode("hidden", self.hidden, encoding), *(encode(name, self.side[name], "fp32") for name in SIDE_NAMES)]


def _bad(detail: str) -> HocketError:
    return HocketError(Code.INPUT_INVALID, detail)


def read_input(request: pb.TrainStepRequest, body: memoryview, config: ModelConfig) -> tuple[StepInput, Side]:
    """Check the tensors of a request against the model and the request itself; nothing is computed before they fit.

    Returns: the arrays as they came, to be passed on unchanged, and the same as checked tensors.

    Raises:
        HocketError: INPUT_INVALID, TENSOR_INVALID, NOT_FINITE, MESSAGE_TOO_LARGE.
    """
    arrays = decode_all(request.tensors, body)
    if set(arrays) != {"hidden", *SIDE_NAMES}:
        raise _bad(f"tensors {sorted(arrays)}, not hidden, {', '.join(SIDE_NAMES)}")
    hidden = arrays.pop("hidden")
    side = Side.from_arrays(arrays, config)
    if hidden.dtype != np.float32 or hidden.shape != hidden_shape(config, side):
        raise _bad(f"hidden is {hidden.dtype} {hidden.shape}, not float32 {hidden_shape(config, side)}")
    if side.frames != request.frames:
        raise _bad(f"{side.frames} frames came, {request.frames} were announced")
    if request.mode == pb.TRAIN and not 1 <= request.frames <= request.inner_step_frames:
        raise _bad(f"a microbatch of {request.frames} frames in an inner step of {request.inner_step_frames}")
    return StepInput(hidden, arrays), side


def received(heads: Iterable[pb.TensorHead], message: Message) -> tuple[EncodedTensor, ...]:
    """The tensors of a message as they travelled; it has been decoded once, so that heads and body fit."""
    listed = list(heads)
    return tuple(EncodedTensor(head, data) for head, data in zip(listed, split_body(listed, message.body_bytes), strict=True))


def parse_signed(head: bytes) -> pb.Signed:
    try:
        return pb.Signed.FromString(head)
    except DecodeError as error:
        raise HocketError(Code.SIGNATURE_INVALID, "the message is not a signed one") from error


def parse_request(payload: bytes) -> pb.TrainStepRequest:
    """INPUT_INVALID for bytes that are no request, and for a name of a version that no version has: the answer repeats it."""
    try:
        request = pb.TrainStepRequest.FromString(payload)
    except DecodeError as error:
        raise _bad("the request cannot be read") from error
    if len(request.base_cid) > MAX_BASE_CID_CHARACTERS:
        raise _bad(f"a version's name of {len(request.base_cid)} characters")
    return request


@dataclass(frozen=True)
class Exchange:
    """What came back from the next stage for one microbatch.

    Args:
        came: the answer's tensors, as they travelled. signed: the answer's signed head, serialized.
    """

    came: tuple[EncodedTensor, ...]
    signed: bytes


@dataclass(frozen=True)
class StepAnswer:
    """What comes back from a stage.

    Args:
        grad: float32 [B, S, D], gradient of the sum objective; None in eval mode.
        losses: of the microbatch, of this stage and all behind it.
        path: (stage, peer, digest of its input, pid) of every stage passed, the answering one first.
        attempts_used: failed tries spent.
        encoded: `grad` as it travels, where it has been encoded already.
        exchange: with the stage that answered; None in what is answered.
    """

    grad: np.ndarray | None
    losses: Losses
    path: tuple[pb.PathEntry, ...]
    attempts_used: int
    encoded: EncodedTensor | None = None
    exchange: Exchange | None = None

    def encode(self, encoding: str) -> tuple[pb.TrainStepAnswer, list[bytes | memoryview]]:
        """The answer's message and body. NOT_FINITE when the gradient is not."""
        tensors: list[EncodedTensor] = []
        if self.encoded is not None and self.encoded.head.encoding == {"fp32": "raw"}.get(encoding, encoding):
            tensors = [self.encoded]
        elif self.grad is not None:
            tensors = [encode("grad", self.grad, encoding)]
        answer = pb.TrainStepAnswer(
            tensors=[tensor.head for tensor in tensors],
            losses=self.losses.codebooks(),
            auxiliary=self.losses.auxiliaries(),
            path=self.path,
            attempts_used=self.attempts_used,
        )
        return answer, [tensor.data for tensor in tensors]


def read_answer(
    answer: pb.TrainStepAnswer, message: Message, *, mode: pb.Mode, shape: tuple[int, ...], config: ModelConfig, next_stage: int
) -> StepAnswer:
    """Check an answer that is no refusal.

    Args:
        shape: of the hidden states that were sent. next_stage: that was called.

    Raises:
        HocketError: PEER_REFUSED for nonsense, TENSOR_INVALID, NOT_FINITE, MESSAGE_TOO_LARGE.
    """
    grad: np.ndarray | None = None
    arrays = decode_all(answer.tensors, message.body_bytes)
    if mode == pb.TRAIN:
        grad = arrays.pop("grad", None)
        if grad is None or grad.dtype != np.float32 or grad.shape != shape:
            raise HocketError(
                Code.PEER_REFUSED,
                f"the gradient is {'missing' if grad is None else f'{grad.dtype} {grad.shape}'}, not float32 {shape}",
            )
    if arrays:
        raise HocketError(Code.PEER_REFUSED, f"tensors that were not asked for: {sorted(arrays)[:3]}")
    if len(answer.losses) != config.n_codebooks or any(
        not math.isfinite(loss.ce_sum) or loss.ce_sum < 0 for loss in answer.losses
    ):
        raise HocketError(Code.PEER_REFUSED, f"{len(answer.losses)} losses that do not fit {config.n_codebooks} codebooks")
    if any(not math.isfinite(loss.sum) for loss in answer.auxiliary):
        raise HocketError(Code.PEER_REFUSED, "an auxiliary loss that is not finite")
    if [entry.stage for entry in answer.path] != list(range(next_stage, next_stage + len(answer.path))) or not answer.path:
        raise HocketError(Code.PEER_REFUSED, f"a path over stages {[entry.stage for entry in answer.path]}")
    losses = Losses(
        tuple(loss.ce_sum for loss in answer.losses),
        tuple(loss.count for loss in answer.losses),
        {loss.name: (loss.sum, loss.count) for loss in answer.auxiliary},
    )
    return StepAnswer(grad, losses, tuple(answer.path), answer.attempts_used)
