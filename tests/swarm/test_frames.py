"""The byte format of a message: whole or an error, whatever is cut or changed."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from swarm import frames
from swarm.carrier import Message

parts = st.lists(st.binary(max_size=700), max_size=4)
messages = st.builds(Message, st.binary(max_size=300), parts)


def wire(message: Message) -> bytes:
    return b"".join(frames.encode(message))


def read(data: bytes, limit_bytes: int = 1 << 20) -> Message | None:
    """The message in `data`; None if it is not finished there."""
    assembler = frames.Assembler(limit_bytes)
    position = 0
    while position + frames.FRAME.size <= len(data):
        kind, size = frames.frame_header(data[position : position + frames.FRAME.size])
        position += frames.FRAME.size
        if position + size > len(data):
            return None
        message = assembler.add(kind, data[position : position + size])
        position += size
        if message is not None:
            return message
    return None


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    back = read(wire(message))
    assert back is not None
    assert back.head == message.head
    assert bytes(back.body_bytes) == b"".join(message.body)
    assert len(back.body) == (1 if any(message.body) else 0)


@pytest.mark.parametrize("size", [0, 1, frames.SMALL_BYTES, frames.MAX_PAYLOAD_BYTES, frames.MAX_PAYLOAD_BYTES + 1, 1_000_003])
def test_bodies_around_the_chunk_size(size: int) -> None:
    body = hashlib.shake_128(b"seed").digest(size)
    back = read(wire(Message(b"head", [body])), limit_bytes=size + 4)
    assert back is not None
    assert bytes(back.body_bytes) == body


@given(messages, st.data())
def test_a_cut_message_is_never_a_message(message: Message, data: st.DataObject) -> None:
    whole = wire(message)
    assert read(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


@given(messages, st.data())
def test_a_changed_byte_never_gives_another_head_or_size(message: Message, data: st.DataObject) -> None:
    """The body's bytes are guarded by the stream's encryption and by the digests of what it carries."""
    whole = bytearray(wire(message))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= data.draw(st.integers(1, 255))
    try:
        back = read(bytes(whole))
    except HocketError as error:
        assert error.code in (Code.STREAM_BROKEN, Code.MESSAGE_TOO_LARGE)
    else:
        assert back is None or (back.head, back.body_size_bytes) == (message.head, message.body_size_bytes)


@given(st.lists(st.tuples(st.sampled_from(frames.FrameType), st.binary(max_size=60)), max_size=6))
def test_no_sequence_of_frames_does_more_than_break_the_stream(sequence: list[tuple[frames.FrameType, bytes]]) -> None:
    assembler = frames.Assembler(4096)
    try:
        for kind, payload in sequence:
            assembler.add(kind, payload)
    except HocketError as error:
        assert error.code in (Code.STREAM_BROKEN, Code.MESSAGE_TOO_LARGE)


def test_size_is_refused_from_the_head_alone() -> None:
    assembler = frames.Assembler(1000)
    with pytest.raises(HocketError) as caught:
        assembler.add(frames.FrameType.HEAD, frames.SIZE.pack(1 << 62) + b"head")
    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    assert not assembler.started


def test_limit_counts_head_and_body() -> None:
    message = Message(b"1234", [b"567890"])
    assert read(wire(message), limit_bytes=10) is not None
    with pytest.raises(HocketError) as caught:
        read(wire(message), limit_bytes=9)
    assert caught.value.code is Code.MESSAGE_TOO_LARGE


def test_a_head_has_one_frame() -> None:
    largest = Message(bytes(frames.MAX_HEAD_BYTES))
    assert read(wire(largest)) == Message(largest.head, [])
    with pytest.raises(HocketError) as caught:
        list(frames.encode(Message(bytes(frames.MAX_HEAD_BYTES + 1))))
    assert caught.value.code is Code.MESSAGE_TOO_LARGE


def test_a_body_beyond_its_announcement_is_broken() -> None:
    assembler = frames.Assembler(1000)
    assembler.add(frames.FrameType.HEAD, frames.SIZE.pack(3))
    with pytest.raises(HocketError) as caught:
        assembler.add(frames.FrameType.BODY, b"four")
    assert caught.value.code is Code.STREAM_BROKEN


def test_parts_of_any_item_size_are_sent_as_bytes() -> None:
    import array

    numbers = array.array("d", [1.0, -2.5, 3.25])
    message = Message(b"", [memoryview(numbers)])
    assert message.body_size_bytes == 24
    back = read(wire(message))
    assert back is not None
    assert bytes(back.body_bytes) == numbers.tobytes()


@given(st.integers(0, 65535), st.text(max_size=3000))
def test_error_frames(number: int, detail: str) -> None:
    data = frames.error_frame(number, detail)
    kind, size = frames.frame_header(data[: frames.FRAME.size])
    assert kind is frames.FrameType.ERROR
    assert size == len(data) - frames.FRAME.size <= 2 + frames.MAX_DETAIL_BYTES
    found, text = frames.read_error(data[frames.FRAME.size :])
    assert found == number
    if len(detail.encode("utf-8", errors="replace")) <= frames.MAX_DETAIL_BYTES:
        assert text == detail.encode("utf-8", errors="replace").decode("utf-8")


@pytest.mark.parametrize(("size", "kind"), [(0, 0), (0, 6), (frames.MAX_PAYLOAD_BYTES + 1, 2)])
def test_foreign_frames_break_the_stream(size: int, kind: int) -> None:
    with pytest.raises(HocketError) as caught:
        frames.frame_header(frames.FRAME.pack(size, kind))
    assert caught.value.code is Code.STREAM_BROKEN


def test_golden_bytes() -> None:
    """The format as it is written down, so that another implementation can rely on it."""
    digest = hashlib.sha256(b"hi").digest()
    expected = b"\x00\x00\x00\x0a\x01" + (3).to_bytes(8, "big") + b"hi"
    expected += b"\x00\x00\x00\x03\x02" + b"abc"
    expected += b"\x00\x00\x00\x28\x03" + (5).to_bytes(8, "big") + digest
    assert wire(Message(b"hi", [b"a", b"bc"])) != expected  # parts keep their own frames
    assert wire(Message(b"hi", [b"abc"])) == expected
    assert frames.WAITING_FRAME == b"\x00\x00\x00\x00\x04"
    assert frames.error_frame(307, "no") == b"\x00\x00\x00\x04\x05\x01\x33no"


def test_what_is_announced_and_not_sent_takes_no_memory() -> None:
    """A stranger may open many streams and announce the largest body on each."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    assemblers = [frames.Assembler(512 << 20) for _ in range(16)]
    for assembler in assemblers:
        assert assembler.add(frames.FrameType.HEAD, frames.SIZE.pack(256 << 20) + b"head") is None
        assert assembler.add(frames.FrameType.BODY, bytes(1000)) is None
    assert resident_bytes() - before < 64 << 20
