"""What was read last, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteCache(Generic[Key, Value]):
    """Values by key, the least recently used one dropped first. The one that came last stays whatever its size.

    Args:
        max_bytes: of all values together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get(self, key: Key) -> Value | None:
        """The value of a key, which is used by that; None where there is none."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size_bytes: int) -> None:
        """Keep a value of so many bytes, in place of an earlier one of its key."""
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = (value, size_bytes)
        self.held_bytes += size_bytes - before
        while self.held_bytes > self.max_bytes and len(self._values) > 1:
            _, (_, dropped) = self._values.popitem(last=False)
            self.held_bytes -= dropped
