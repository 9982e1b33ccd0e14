"""The records of the finished rounds, kept packed: a run has thousands, and few of them are read.

A record is some 25 kilobytes of Python objects, and a tenth of that as JSON.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

SUMMED = ("duplicate_microbatches", "dropped_microbatches", "repeated_rows")
"""What is added up over the run."""


class History(Sequence[dict[str, Any]]):
    """Records in the order of their rounds. What is read of it is a copy."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._rounds: list[int] = []
        self._places: dict[str, list[int]] = {}
        self._totals: Counter[str] = Counter()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the record of a round that is later than all before.

        Args:
            record: JSON; `round`, and `cid` of the version that the round made.
        """
        self._places.setdefault(record["cid"], []).append(len(self._packed))
        self._rounds.append(int(record["round"]))
        self._packed.append(_pack(record))
        self._totals.update({name: int(record.get(name, 0)) for name in SUMMED})

    def set_heldout_loss(self, cid: str, loss: float | None) -> None:
        """Note the held-out loss of a version; nothing happens where no round made it."""
        for place in self._places.get(cid, ()):
            self._packed[place] = _pack({**self[place], "heldout_loss": loss})

    def total(self, name: str) -> int:
        """The sum of one of `SUMMED` over all rounds."""
        return self._totals[name]

    def packed(self) -> list[bytes]:
        """The records as they are kept: each the JSON of one, on one line."""
        return list(self._packed)

    def after(self, round_number: int, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """The first `limit` records of rounds later than that, and whether there are more."""
        first = bisect_right(self._rounds, round_number)
        return self[first : first + limit], len(self) > first + limit

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [json.loads(packed) for packed in self._packed[index]]
        record: dict[str, Any] = json.loads(self._packed[index])
        return record

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (json.loads(packed) for packed in self._packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __len__(self) -> int:
        return len(self._packed)


def _pack(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()
