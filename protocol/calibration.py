"""How far two honest machines' results lie apart, as measured, and the limits that follow: a table by device class and encoding.

A device class is a text such as `cpu-x86_64-float32`: kind, architecture and dtype of a worker's computation. A row of the table
names two patterns of classes (`cpu-*-float32`), in either order, and an encoding; the first row that fits counts. `hocket
calibrate` measures and writes such a table; the one that comes with the program is `calibration.json` beside this file.

A coarser dtype has wider limits, so a member's word for its own dtype must not choose them: a network trains in one dtype,
TRAINING_DTYPE, and a member that says another is not taken (`class_refusal`).
"""

from __future__ import annotations

import platform
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import Code, HocketError
from protocol.agreement import Limits

SHIPPED = Path(__file__).with_name("calibration.json")
MAX_TABLE_BYTES = 1 << 20
MAX_CLASS_CHARACTERS = 64
TRAINING_DTYPE = "float32"
_CLASS = re.compile(r"[a-z]+-[A-Za-z0-9_.]+-(?P<dtype>[a-z0-9]+)")

Positive = Annotated[float, Field(gt=0, lt=1)]


def device_class(dtype: str = TRAINING_DTYPE, device: str = "cpu", architecture: str = "") -> str:
    """What two machines share whose results are close: the kind of device, its architecture, and the dtype of its passes.

    Args:
        architecture: of the device; this machine's processor where it is empty.
    """
    return f"{device}-{architecture or platform.machine()}-{dtype}"


def class_refusal(text: str) -> str:
    """Why a member that says it is of this class cannot take part, or "" if it can.

    Whoever says nothing is held to what TRAINING_DTYPE allows, like everybody else.
    """
    if not text:
        return ""
    found = _CLASS.fullmatch(text) if len(text) <= MAX_CLASS_CHARACTERS else None
    if found is None:
        return f"{text[:MAX_CLASS_CHARACTERS]!r} is no device class"
    return "" if found["dtype"] == TRAINING_DTYPE else f"it computes in {found['dtype']}, and this network in {TRAINING_DTYPE}"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TensorLimits(_Part):
    """As `protocol.agreement.Limits`."""

    median: Positive
    maximum: Positive
    norm: Positive
    projection: Positive
    floor: Positive = 0.1

    def limits(self) -> Limits:
        return Limits(self.median, self.maximum, self.norm, self.projection, self.floor)


class StepLimits(_Part):
    """How far an optimizer's moments after a step may lie from recomputed ones, over what the step added to them.

    Args:
        tensor: in L2, of each tensor. value: of each single value, where what the step added is not small beside the rest.
    """

    tensor: Positive
    value: Annotated[float, Field(gt=0, lt=8)]


class Row(_Part):
    """Limits of one pair of device classes and one encoding.

    Args:
        hidden, grad: of the hidden states and of their gradients. loss: relative, of a codebook's sum. step: of a replayed step.
    """

    classes: tuple[str, str]
    wire: Literal["fp32", "bf16", "int8"]
    hidden: TensorLimits
    grad: TensorLimits
    loss: Positive
    step: StepLimits


class Calibration(_Part):
    """A whole table. `measured` says where its numbers come from."""

    format: Literal["hocket-calibration/1"] = "hocket-calibration/1"
    measured: str = ""
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]

    def row_for(self, ours: str, theirs: str, wire: str) -> Row:
        """The limits for results of two device classes.

        Raises:
            HocketError: CALIBRATION_INVALID when the table says nothing of them.
        """
        for row in self.rows:
            if self._fits(row, ours, theirs, wire):
                return row
        names = f"{ours[:MAX_CLASS_CHARACTERS]!r} and {theirs[:MAX_CLASS_CHARACTERS]!r}"
        raise HocketError(Code.CALIBRATION_INVALID, f"no row for {names} over {wire[:10]}")

    @staticmethod
    def _fits(row: Row, ours: str, theirs: str, wire: str) -> bool:
        first, second = row.classes
        pairs = ((ours, theirs), (theirs, ours))
        return row.wire == wire and any(fnmatchcase(a, first) and fnmatchcase(b, second) for a, b in pairs)

    def row_between(self, ours: str, theirs: str, wire: str) -> Row:
        """As `row_for`; a class of which the table says nothing is judged like the referee's own: no name is a way out.

        Raises:
            HocketError: CALIBRATION_INVALID when the table does not even know TRAINING_DTYPE on a processor.
        """
        own = device_class()
        for pair in ((ours, theirs), (own, theirs), (ours, own)):
            if any(self._fits(row, *pair, wire) for row in self.rows):
                return self.row_for(*pair, wire)
        return self.row_for(own, own, wire)


def read_calibration(path: Path) -> Calibration:
    """Read a table from a file.

    Raises:
        HocketError: CALIBRATION_INVALID.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_TABLE_BYTES + 1)
    except OSError as error:
        raise HocketError(Code.CALIBRATION_INVALID, f"{path} ({error.strerror})") from error
    if len(text) > MAX_TABLE_BYTES:
        raise HocketError(Code.CALIBRATION_INVALID, f"{path} has more than {MAX_TABLE_BYTES} bytes")
    try:
        return Calibration.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HocketError(Code.CALIBRATION_INVALID, f"{path}: {where}: {first['msg']}") from error


@cache
def shipped_calibration() -> Calibration:
    """The table that comes with the program."""
    return read_calibration(SHIPPED)
