"""Attacks on the verification itself: other commitments than what was sent, witnesses that lie or do not work, false blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from protocol.generated import hocket_pb2 as pb
from simulations.attacks.base import Attack, Bar


@dataclass(frozen=True)
class Equivocation(Attack):
    """The member commits to another output than the one that it has sent on and signed; in the last stage to another input."""

    number: ClassVar = "A21"
    name: ClassVar = "equivocation"
    bar: ClassVar = Bar.PROOF

    def record(self, honest: pb.MicrobatchRecord) -> pb.MicrobatchRecord:
        """What is committed to. Pure."""
        false = pb.MicrobatchRecord()
        false.CopyFrom(honest)
        # Either is in a request that its sender has signed and its receiver keeps; a gradient that goes back is in none.
        if honest.gradient_in:
            false.output = hashlib.sha256(honest.output).digest()
        else:
            false.input = hashlib.sha256(honest.input).digest()
        return false


@dataclass(frozen=True)
class LyingWitness(Attack):
    """A witness that says of honest work that something else comes out.

    Args:
        lazy: nothing is computed: the answer is zeros. Otherwise it is the true one, times 1.5.
    """

    number: ClassVar = "A22"
    name: ClassVar = "lying_witness"
    bar: ClassVar = Bar.FABRICATED
    lazy: bool = False

    def answer(self, honest: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors of a witness's file with other values; what describes them stays. Pure."""
        factor = 0.0 if self.lazy else 1.5
        return {
            name: (value * factor).astype(value.dtype) if value.dtype.kind == "f" else value for name, value in honest.items()
        }


@dataclass(frozen=True)
class FalseBlocks(Attack):
    """A peer that answers for blocks with other bytes of the same length: of versions, shards and openings."""

    number: ClassVar = "A24"
    name: ClassVar = "false_blocks"
    bar: ClassVar = Bar.PROOF

    def served(self, data: bytes) -> bytes:
        """What is served for a block. Pure."""
        return data[:-1] + bytes([data[-1] ^ 0xFF]) if data else data


@dataclass(frozen=True)
class ManyNames(Attack):
    """One operator comes with many keys to get the majority of a stage; each of its workers is honest otherwise."""

    number: ClassVar = "A20"
    name: ClassVar = "many_names"
    bar: ClassVar = Bar.HARMLESS
