"""Malformed versions of messages: each a function of a seeded generator and of a message that would be fine.

Two ways are mixed. Structured ones know what a message is: they set one field, at any depth, to a value at the edge of its type
or beyond what an honest sender would say. Blind ones know bytes only. Each result says what was done, for the tally.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MAX_TEXT = 20_000
Kind = TypeVar("Kind", bound=Message)

_INTEGERS = {
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1), FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1), FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}  # fmt: skip
_FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 1e308, 5e-324)
_TEXTS = (
    "", " ", "\0", "../../../etc/passwd", "/dev/zero", "%s%n%x", "{0.__class__}", "\u202e\u0000", "\n\n\x1b[2J", "a" * MAX_TEXT,
    "-1", "null", "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku", "\U0001f3b6" * 500,
)  # fmt: skip


def blind(draw: random.Random, data: bytes) -> tuple[str, bytes]:
    """Bytes that differ from `data` without any regard for what they mean."""
    ways: list[tuple[str, Callable[[], bytes]]] = [
        ("random bytes", lambda: draw.randbytes(draw.choice((0, 1, 7, 64, 1024)))),
        ("cut", lambda: data[: draw.randrange(max(1, len(data)))]),
        ("bits flipped", lambda: _flipped(draw, data)),
        ("bytes added", lambda: data + draw.randbytes(draw.choice((1, 16, 4096)))),
        ("part removed", lambda: _without_part(draw, data)),
        ("part repeated", lambda: _with_part_again(draw, data)),
        ("a huge length", lambda: _with_huge_length(draw, data)),
        ("deep nesting", lambda: b"\x0a\xff\xff\xff\xff\x0f" * draw.choice((10, 2000))),
    ]
    name, make = draw.choice(ways)
    made = make()
    return (name, made) if made != data else ("bytes added", data + b"\x07")


def _flipped(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(draw.choice((1, 1, 3, 20))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _span(draw: random.Random, data: bytes) -> tuple[int, int]:
    start = draw.randrange(len(data) + 1)
    return start, min(len(data), start + draw.choice((1, 4, 32, 256)))


def _without_part(draw: random.Random, data: bytes) -> bytes:
    start, stop = _span(draw, data)
    return data[:start] + data[stop:]


def _with_part_again(draw: random.Random, data: bytes) -> bytes:
    start, stop = _span(draw, data)
    return data[:stop] + data[start:stop] * draw.choice((1, 100)) + data[stop:]


def _with_huge_length(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(len(data) + 1)
    huge = draw.choice((b"\xff" * 8, b"\xff\xff\xff\xff\x0f", b"\x7f" + b"\xff" * 7, b"\x80" * 9 + b"\x01"))
    return data[:start] + huge + data[start + len(huge) :]


def structured(draw: random.Random, message: Kind) -> tuple[str, Kind]:
    """A copy of `message` with one field, at any depth, set to a value that an honest sender would hardly send."""
    good = message.SerializeToString(deterministic=True)
    while True:
        name, changed = _with_one_odd_field(draw, message)
        if changed.SerializeToString(deterministic=True) != good:
            return name, changed


def _with_one_odd_field(draw: random.Random, message: Kind) -> tuple[str, Kind]:
    """A copy with one field set, maybe to what it was."""
    changed = type(message)()
    changed.CopyFrom(message)
    target: Message = changed
    path: list[str] = []
    while True:
        fields: Any = target.DESCRIPTOR.fields
        field: FieldDescriptor = draw.choice(list(fields))
        path.append(field.name)
        inner = _inner(draw, target, field)
        if inner is None or draw.random() < 0.2:
            break
        target = inner
    what = _repeated(draw, target, field) if field.is_repeated else _single(draw, target, field)
    return f"{message.DESCRIPTOR.name}.{'.'.join(path)}: {what}", changed


def _inner(draw: random.Random, message: Message, field: FieldDescriptor) -> Message | None:
    """A message inside a field to go down into; None where there is none."""
    if field.message_type is None:
        return None
    value: Any = getattr(message, field.name)
    if field.is_repeated:
        return draw.choice(list(value)) if value else None
    value.SetInParent()
    found: Message = value
    return found


def _repeated(draw: random.Random, message: Message, field: FieldDescriptor) -> str:
    values: Any = getattr(message, field.name)
    way = draw.choice(("none", "many", "reversed", "twice"))
    items = list(values)
    if way == "many" or not items:
        count = draw.choice((1, 65, 1000))
        for _ in range(count):
            if field.message_type is not None:
                values.add()
            else:
                values.append(_value(draw, field)[1])
        return f"{count} more"
    del values[:]
    values.extend(items * 2 if way == "twice" else reversed(items) if way == "reversed" else [])
    return way


def _single(draw: random.Random, message: Message, field: FieldDescriptor) -> str:
    if field.message_type is not None or draw.random() < 0.1:
        message.ClearField(field.name)
        return "absent"
    name, value = _value(draw, field)
    setattr(message, field.name, value)
    return name


def _value(draw: random.Random, field: FieldDescriptor) -> tuple[str, Any]:
    if field.type in _INTEGERS:
        low, high = _INTEGERS[field.type]
        value = draw.choice((0, 1, low, high, high - 1, high // 2, draw.randint(low, high), draw.randrange(1000)))
        return f"{'small' if abs(value) < 1000 else 'huge'} number", value
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return "odd float", draw.choice(_FLOATS)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "bool", draw.random() < 0.5
    if field.type == FieldDescriptor.TYPE_STRING:
        return "odd text", draw.choice(_TEXTS)
    return "other bytes", draw.randbytes(draw.choice((0, 1, 31, 32, 33, 64, 5000)))
