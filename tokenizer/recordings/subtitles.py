"""Subtitles as cues: SRT (as players read it) and WebVTT (W3C), with the speakers that they name."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import Code, HocketError

MAX_FILE_BYTES = 32 << 20  # a day of speech has some 2 MiB of subtitles
MAX_CUES = 200_000
MAX_TEXT = 4000  # characters of one cue
MAX_AT_ONCE = 64  # cues that are shown at the same time
ARROW = "-->"

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{3}))?"
_TIMING = re.compile(rf"\s*{_TIME}[ \t]*{ARROW}[ \t]*{_TIME}(?=[ \t]|$)(.*)")
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?[ \t]+([^<>]*)>", re.IGNORECASE)
_INLINE_TIME = re.compile(r"<\d{1,4}:[\d:.]{4,16}>")
_RUBY_READING = re.compile(r"<rt(?:\.[^\s<>]*)?>[^<>]*(?:</rt>|(?=<|$))", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<\d{1,4}:[\d:.]{4,16}>|\{\\[^{}]*\}")
_BRACKET_SPEAKER = re.compile(r"\[([^\[\]]{1,100})\]:\s*")
_SOUND = re.compile(r"\[[^\[\]]*\]")
_ASIDE = re.compile(r"[(（][^()（）]*[)）]")
_SKIPPED_BLOCKS = ("NOTE", "STYLE", "REGION")


@dataclass(frozen=True)
class Cue:
    """What is said from `start_s` to `stop_s` seconds, on one line without markup; `speaker` where the file names one."""

    start_s: float
    stop_s: float
    text: str
    speaker: str | None = None


def read_subtitles(path: Path) -> list[Cue]:
    """Cues of an SRT or WebVTT file, sorted by their start; cues may overlap.

    Styling is left out, entities are read, and so are voice tags (`<v Name>`) and `[Name]:` at the start of a cue. A cue
    with several voices has no speaker. Descriptions of sounds (`[door slams]`, a cue that is one bracket, music) are left
    out, and a cue that has nothing else with them. Captions that roll (with times inside their lines, each repeating
    the lines before) are given once.

    Raises:
        HocketError: SUBTITLES_UNREADABLE, with the line where there is one.
    """
    text = _read_text(path)
    lines = text.split("\n")
    webvtt = lines[0].split(" ")[0].split("\t")[0] == "WEBVTT"
    rolling = webvtt and _INLINE_TIME.search(text) is not None
    shown: list[str] = []  # the lines of the cue before, where captions roll
    shown_until = 0.0
    cues: list[Cue] = []
    for number, timing, payload in _vtt_blocks(path, lines) if webvtt else _srt_blocks(path, lines):
        start_s, stop_s = _times(path, number, timing)
        if rolling:
            plain = [line for line in (_plain(line) for line in payload) if line]
            if start_s <= shown_until + 0.1:
                payload = payload if not shown else _without_repeats(payload, shown)
            shown, shown_until = plain, stop_s
        cue = _cue(start_s, stop_s, payload)
        if cue is not None and len(cue.text) > MAX_TEXT:
            raise _fault(path, number, f"the cue has {len(cue.text)} characters; at most {MAX_TEXT} fit")
        if cue is not None:
            cues.append(cue)
        if len(cues) > MAX_CUES:
            raise _fault(path, number, f"there are more than {MAX_CUES} cues")
    if not cues:
        raise HocketError(Code.SUBTITLES_UNREADABLE, f"{path} has no cue with words: is it SRT or WebVTT?")
    cues.sort(key=lambda cue: (cue.start_s, cue.stop_s))
    _check_crowd(path, cues)
    return cues


def _read_text(path: Path) -> str:
    """The file's text with `\\n` as its only line end."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise HocketError(Code.SUBTITLES_UNREADABLE, f"{path}: {error.strerror or error}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise HocketError(Code.SUBTITLES_UNREADABLE, f"{path} has more than {MAX_FILE_BYTES} bytes")
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _fault(path, line, "the file is not UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _srt_blocks(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, timing line, text lines) of each cue. A text may hold blank lines: a cue ends where the next begins."""
    timings = [place for place, line in enumerate(lines) if ARROW in line]
    first = timings[0] if timings else len(lines)
    for place in range(first):  # before the first cue there may be its counter, nothing else
        if lines[place].strip() and not (place == first - 1 and lines[place].strip().isdigit()):
            raise _fault(path, place + 1, f"neither SRT nor WebVTT begins with {lines[place][:60]!r}")
    for place, following in zip(timings, [*timings[1:], len(lines)], strict=False):
        payload = list(lines[place + 1 : following])
        # The counter of the next cue stands after a blank line; a number right under a text belongs to the text.
        is_last = following == len(lines)
        if not is_last and payload and payload[-1].strip().isdigit() and (len(payload) == 1 or not payload[-2].strip()):
            payload.pop()
        yield place + 1, lines[place], [line for line in payload if line.strip()]


def _vtt_blocks(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, timing line, text lines) of each cue; header, notes, styles and regions are passed over.

    As the specification has it, a text ends at an empty line (one of spaces is part of it) or before the next time.
    """
    place = 0
    while place < len(lines) and lines[place]:
        place += 1
    while place < len(lines):
        if not lines[place].strip():
            place += 1
            continue
        start = place
        time = next((n for n in (start, start + 1) if n < len(lines) and ARROW in lines[n]), None)
        place = start + 1 if time is None else time + 1
        while place < len(lines) and lines[place] and not (time is not None and ARROW in lines[place]):
            place += 1
        if time is not None:
            yield time + 1, lines[time], list(lines[time + 1 : place])
        elif lines[start].split()[0] not in _SKIPPED_BLOCKS:
            raise _fault(path, start + 1, f"a block without a time: {lines[start][:60]!r}")


def _times(path: Path, number: int, line: str) -> tuple[float, float]:
    found = _TIMING.fullmatch(line)
    if found is None:
        raise _fault(path, number, f"not a time as in 00:00:01,000 --> 00:00:02,500: {line.strip()[:80]!r}")
    groups = [int(group or 0) for group in found.groups()[:8]]
    if max(groups[1], groups[2], groups[5], groups[6]) > 59:
        raise _fault(path, number, f"minutes and seconds end at 59: {line.strip()[:80]!r}")
    start_ms, stop_ms = (((h * 60 + m) * 60 + s) * 1000 + ms for h, m, s, ms in (groups[:4], groups[4:8]))
    if stop_ms <= start_ms:
        raise _fault(path, number, f"the cue does not end after its start: {line.strip()[:80]!r}")
    return start_ms / 1000, stop_ms / 1000


def _plain(line: str) -> str:
    """A line without markup, entities read, spaces single."""
    return " ".join(html.unescape(_TAG.sub("", _RUBY_READING.sub("", line))).split())


def _without_repeats(payload: list[str], shown: list[str]) -> list[str]:
    """`payload` without the lines at its start that the cue before already showed at its end."""
    plain = [_plain(line) for line in payload]
    longest = max((n for n in range(1, min(len(plain), len(shown)) + 1) if plain[:n] == shown[-n:]), default=0)
    return payload[longest:]


def _cue(start_s: float, stop_s: float, payload: list[str]) -> Cue | None:
    """The cue of text lines, or None where nothing is said in it."""
    joined = "\n".join(payload)
    voices = {" ".join(html.unescape(name).split()) for name in _VOICE.findall(joined)} - {""}
    lines = [_plain(line) for line in payload]
    # Two lines that both begin with a dash are said by two people; the dash itself is no word.
    lines = [re.sub(r"^[-\u2010-\u2015]\s*(?=\S)", "", line) for line in lines]
    text = " ".join(line for line in lines if line)
    bracketed = _BRACKET_SPEAKER.match(text)
    if bracketed is not None:
        voices.add(" ".join(bracketed[1].split()))
        text = text[bracketed.end() :]
    text = " ".join(_SOUND.sub(" ", text).split())
    if not text or text[0] in "♪♫♩♬" or _ASIDE.fullmatch(text):
        return None
    return Cue(start_s, stop_s, text, voices.pop() if len(voices) == 1 else None)


def _check_crowd(path: Path, cues: list[Cue]) -> None:
    """Refuse more cues at one time than people could say: the columns of a block's activity are bounded by it."""
    edges = sorted(itertools.chain(((cue.start_s, 1) for cue in cues), ((cue.stop_s, -1) for cue in cues)))
    crowd = 0
    for at_s, change in edges:
        crowd += change
        if crowd > MAX_AT_ONCE:
            raise HocketError(Code.SUBTITLES_UNREADABLE, f"{path}: more than {MAX_AT_ONCE} cues at {at_s:.3f} s")


def _fault(path: Path, number: int, what: str) -> HocketError:
    return HocketError(Code.SUBTITLES_UNREADABLE, f"{path}, line {number}: {what}")
