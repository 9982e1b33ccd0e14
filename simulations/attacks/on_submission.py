"""Submissions that contradict what the member has signed or what the round asks for: other bases, other files, other claims.

An attack of this kind is told of every submission that an honest worker would make, and says what is sent in its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from protocol.generated import hocket_pb2 as pb
from simulations.attacks.base import Attack, Bar

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Sent:
    """A submission: its head, without size and digest of the file, and the file's tensors."""

    head: pb.UpdateHead
    tensors: Tensors


class SubmissionAttack(Attack, ABC):
    """An attack on the submission as a whole. Pure."""

    @abstractmethod
    def change(self, honest: Sent, past: Sequence[Sent]) -> Sent:
        """What is sent instead.

        Args:
            honest: of this round. past: the honest ones of earlier rounds, the oldest first; it may be empty.
        """


def changed_head(head: pb.UpdateHead, **fields: int | str) -> pb.UpdateHead:
    """A copy of a head with other fields."""
    copy = pb.UpdateHead()
    copy.CopyFrom(head)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


@dataclass(frozen=True)
class Delayed(SubmissionAttack):
    """The update of an earlier round once more, under the head of this one."""

    number: ClassVar = "A8"
    name: ClassVar = "delayed"
    bar: ClassVar = Bar.PROOF

    def change(self, honest: Sent, past: Sequence[Sent]) -> Sent:
        return Sent(honest.head, past[0].tensors) if past else honest


@dataclass(frozen=True)
class OtherBase(SubmissionAttack):
    """The own update, said to be one of another version than the round's."""

    number: ClassVar = "A17"
    name: ClassVar = "other_base"
    bar: ClassVar = Bar.PROOF
    base_cid: str = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"

    def change(self, honest: Sent, past: Sequence[Sent]) -> Sent:
        stale = past[-1].head.base_cid if past else self.base_cid
        return Sent(changed_head(honest.head, base_cid=stale), honest.tensors)


@dataclass(frozen=True)
class OtherShapes(SubmissionAttack):
    """A file that does not hold the stage's tensors.

    Args:
        how: transposed, missing, extra, float64 or scalar: what is wrong with its first matrix.
    """

    number: ClassVar = "A18"
    name: ClassVar = "other_shapes"
    bar: ClassVar = Bar.PROOF
    how: str = "transposed"

    def change(self, honest: Sent, past: Sequence[Sent]) -> Sent:
        tensors = dict(honest.tensors)
        name = next(name for name in sorted(tensors) if tensors[name].ndim == 2 and len(set(tensors[name].shape)) == 2)
        match self.how:
            case "transposed":
                tensors[name] = np.ascontiguousarray(tensors[name].T)
            case "missing":
                del tensors[name]
            case "extra":
                tensors[name + ".more"] = tensors[name]
            case "float64":
                tensors[name] = tensors[name].astype(np.float64)
            case "scalar":
                tensors[name] = np.zeros((), np.float32)
            case _:
                raise ValueError(f"other_shapes: {self.how!r} is none of transposed, missing, extra, float64, scalar")
        return Sent(honest.head, tensors)


@dataclass(frozen=True)
class Replayed(Attack):
    """The signed head of the first submission is sent again, byte by byte, in every later round.

    Args:
        tries: in each round; then nothing is sent in it.
    """

    number: ClassVar = "A12"
    name: ClassVar = "replayed"
    bar: ClassVar = Bar.PROOF
    tries: int = 3


@dataclass(frozen=True)
class InflatedClaim(SubmissionAttack):
    """An honest file under a head that claims far more work than was done, so as to outweigh all others."""

    number: ClassVar = "A16"
    name: ClassVar = "inflated_claim"
    bar: ClassVar = Bar.HARMLESS
    frames: int = 1_000_000_000

    def change(self, honest: Sent, past: Sequence[Sent]) -> Sent:
        return Sent(changed_head(honest.head, frames=self.frames), honest.tensors)
