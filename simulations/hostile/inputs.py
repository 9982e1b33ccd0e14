"""Malformed inputs for a reader of bytes, and what a reader may do with them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from simulations.hostile.mutations import blind, structured

RUN = "fuzzed"
NOW_MS = 1_800_000_000_000
_NUMBERS = (-1, 0, 1, 2**31, 2**48, 2**63, 2**64, 2**70, 1e308, -0.5)
_VALUES: tuple[Any, ...] = (*_NUMBERS, "", "x" * 5000, "\0", None, True, [], {}, [[]], [0] * 2000, {"a": {"b": {}}})

Make = Callable[[random.Random], tuple[str, bytes]]


@dataclass(frozen=True)
class Reader:
    """Something that reads bytes of strangers.

    Args:
        make: a malformed input. read: takes it; a numbered error refuses it.
        strict: every input that `make` gives must be refused.
    """

    name: str
    make: Make
    read: Callable[[bytes], object]
    strict: bool = False


def odd_json(draw: random.Random, value: Any) -> Any:
    """A copy of a JSON value with one part replaced, removed or added."""
    changed = copy.deepcopy(value)
    place: Any = changed
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draw.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.7:
            place = inner
            continue
        way = draw.random()
        if way < 0.15 and isinstance(place, dict):
            del place[key]
        elif way < 0.25 and isinstance(place, dict):
            place[draw.choice(("extra", "__proto__", "", "a" * 300))] = draw.choice(_VALUES)
        elif way < 0.3 and isinstance(place, list):
            place.extend(copy.deepcopy(place) * draw.choice((1, 50)))
        else:
            place[key] = draw.choice(_VALUES)
        break
    return changed


def message_maker(kind: Message) -> Make:
    """Malformed versions of a message, as bytes: half of them structured."""
    good = kind.SerializeToString()

    def make(draw: random.Random) -> tuple[str, bytes]:
        if draw.random() < 0.5:
            name, data = blind(draw, good)
            return name, data
        name, changed = structured(draw, kind)
        return "a field", changed.SerializeToString()

    return make


def blind_maker(good: bytes) -> Make:
    return lambda draw: blind(draw, good)
