"""How far two honest machines' results lie apart, as measured, and the limits that follow: a table by device class and encoding.

A device class is a text such as `cpu-x86_64-float32`: kind, architecture and dtype of a worker's computation. A row of the table
names two patterns of classes (`*-float32`), in either order, and an encoding; the first row that fits counts. `hocket calibrate`
measures and writes such a table; the one that comes with the program is `calibration.json` beside this file.
"""

from __future__ import annotations

import platform
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

Positive = Annotated[float, Field(gt=0, lt=1)]


def device_class(dtype: str = "float32") -> str:
    """What two machines share whose results are close: the kind of device, its architecture, and the dtype of its passes."""
    return f"cpu-{platform.machine()}-{dtype}"


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
            first, second = row.classes
            fits = any(fnmatchcase(a, first) and fnmatchcase(b, second) for a, b in ((ours, theirs), (theirs, ours)))
            if row.wire == wire and fits:
                return row
        names = f"{ours[:MAX_CLASS_CHARACTERS]!r} and {theirs[:MAX_CLASS_CHARACTERS]!r}"
        raise HocketError(Code.CALIBRATION_INVALID, f"no row for {names} over {wire[:10]}")


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


def limits_for(ours: str, theirs: str, wire: str, table: Calibration | None = None) -> Row:
    """As `Calibration.row_for`, of the shipped table where none is given."""
    return (table or shipped_calibration()).row_for(ours, theirs, wire)
