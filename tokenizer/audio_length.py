"""Finding out from its container alone that a recording is cut off.

Decoders take what there is: half of a WAV is a shorter WAV to them. But most containers say how long they are, or how they end.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import BinaryIO

SLACK_BYTES = 64  # by which writers err without a loss that can be heard
# A writer to a pipe cannot know the length, and writes the largest one, or one near to 2 GiB (sox, arecord).
UNKNOWN_32 = 0x7FFF_0000
UNKNOWN_64 = 1 << 62
MAX_CHUNKS = 100_000
HEAD_BYTES = 256
W64_RIFF = bytes.fromhex("726966662e91cf11a5d628db04c10000")
W64_TAIL = bytes.fromhex("f3acd3118cd100c04f8edb8a")  # of the identifiers of all chunks but the first
OGG_END = 4
MAX_OGG_PAGE = 27 + 255 + 255 * 255
MP4_TYPES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"styp", b"moof")


def missing_bytes(file: BinaryIO) -> int:
    """How many bytes a recording lacks, by what its container says.

    0 for what is whole, of unknown length, or in a container other than WAV, RF64, W64, AIFF, AU, CAF, Ogg, MP4, Matroska, and
    MP3 where the encoder left the length; 1 for an Ogg without its end.

    Args:
        file: seekable; it is at its beginning afterwards.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(HEAD_BYTES)
    try:
        missing = _missing(file, head, size)
    except (struct.error, IndexError):  # it ends inside a header; a reader will say more
        missing = 0
    file.seek(0)
    return missing if missing > SLACK_BYTES or head[:4] == b"OggS" else 0


def _missing(file: BinaryIO, head: bytes, size: int) -> int:
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return _riff(file, size)
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return max((at + length - size for name, at, length in _chunks(file, 12, size, ">4sI") if name == b"SSND"), default=0)
    if head[:4] == b".snd":
        start, length = struct.unpack_from(">II", head, 4)
        return 0 if length >= UNKNOWN_32 else int(start + length - size)
    if head[:16] == W64_RIFF:
        return _w64(file, size)
    if head[:4] == b"caff":
        sound = (at + length - size for name, at, length in _chunks(file, 8, size, ">4sQ", even=False) if name == b"data")
        return max((lack for lack in sound if lack < UNKNOWN_64), default=0)
    if head[:4] == b"OggS":
        return _ogg(file, size)
    if head[4:8] in MP4_TYPES:
        return _mp4(file, size)
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _matroska(head, size)
    if head[:3] == b"ID3" or head[:2] in (b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2"):
        return _mp3(file, head, size)
    return 0


def _chunks(file: BinaryIO, at: int, size: int, form: str, *, even: bool = True) -> Iterator[tuple[bytes, int, int]]:
    """(name, offset of the content, its length) of consecutive chunks."""
    width = struct.calcsize(form)
    for _ in range(MAX_CHUNKS):
        if at + width > size:
            return
        file.seek(at)
        name, length = struct.unpack(form, file.read(width))
        yield name, at + width, length
        at += width + length + (length % 2 if even else 0)


def _riff(file: BinaryIO, size: int) -> int:
    long = 0  # the length of the sound in an RF64, which comes first
    for name, at, length in _chunks(file, 12, size, "<4sI"):
        if name == b"ds64":
            file.seek(at)
            long = struct.unpack("<QQ", file.read(16))[1]
        elif name == b"data":
            if length == 0xFFFF_FFFF and 0 < long < UNKNOWN_64:
                return int(at + long - size)
            return 0 if length >= UNKNOWN_32 else at + length - size
    return 0


def _w64(file: BinaryIO, size: int) -> int:
    at = 40
    for _ in range(MAX_CHUNKS):
        if at + 24 > size:
            return 0
        file.seek(at)
        name, tail, length = struct.unpack("<4s12sQ", file.read(24))  # the length counts these 24 bytes
        if tail == W64_TAIL and name == b"data":
            return 0 if length >= UNKNOWN_64 else int(at + length - size)
        at += max(24, (length + 7) // 8 * 8)
    return 0


def _ogg(file: BinaryIO, size: int) -> int:
    """What the last page lacks; 1 if it is whole and does not say that it is the last of its stream (RFC 3533)."""
    file.seek(max(0, size - 2 * MAX_OGG_PAGE))
    tail = file.read(2 * MAX_OGG_PAGE)
    at = tail.rfind(b"OggS\0")
    if at < 0:
        return 0  # what follows the pages is not Ogg, such as a large tag
    page = tail[at:]
    if len(page) < 27 or len(page) < 27 + page[26]:
        return max(1, 27 - len(page))
    length = 27 + page[26] + sum(page[27 : 27 + page[26]])
    return max(length - len(page), 0 if page[5] & OGG_END else 1)


def _mp4(file: BinaryIO, size: int) -> int:
    at = 0
    for _ in range(MAX_CHUNKS):
        if at + 8 > size:
            return 0
        file.seek(at)
        length, name = struct.unpack(">I4s", file.read(8))
        if length == 1:
            length = struct.unpack(">Q", file.read(8))[0]
        if length < 8:  # 0: to the end of the file
            return 0
        if at + length > size and all(32 <= one < 127 for one in name):
            return int(at + length - size)
        at += length
    return 0


def _matroska(head: bytes, size: int) -> int:
    length, width = _vint(head, 4)
    at = 4 + width + length
    if at + 4 > len(head) or head[at : at + 4] != b"\x18\x53\x80\x67":
        return 0
    length, width = _vint(head + b"\0" * 8, at + 4)
    unknown = (1 << 7 * width) - 1
    return 0 if length == unknown else at + 4 + width + length - size


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """A number of Matroska's variable width (RFC 8794), and its width."""
    width = 9 - data[at].bit_length()
    if width > 8:
        raise IndexError("no such width")
    return int.from_bytes(data[at : at + width], "big") & ((1 << 7 * width) - 1), width


def _mp3(file: BinaryIO, head: bytes, size: int) -> int:
    """By the Xing header in the first frame, if it gives the length."""
    at = 0
    if head[:3] == b"ID3":
        at = 10 + sum((head[6 + place] & 0x7F) << 7 * (3 - place) for place in range(4))
    file.seek(at)
    frame = file.read(64)
    place = max(frame.find(b"Xing"), frame.find(b"Info"))
    if place < 0 or len(frame) < place + 16:
        return 0
    flags, *numbers = struct.unpack_from(">III", frame, place + 4)
    if not flags & 2:
        return 0
    return int(numbers[flags & 1]) + at - size
