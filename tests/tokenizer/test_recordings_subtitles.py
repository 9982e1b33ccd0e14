"""SRT and WebVTT as cues."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.recordings.subtitles import MAX_AT_ONCE, Cue, read_subtitles

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Good</i> morning,
{\\an8}all of you.

2
00:01:00,250 --> 00:01:02,000 X1:10 X2:20
It is 5 &lt; 6 &amp; so on.
"""

VTT = """WEBVTT - a talk
Kind: captions

STYLE
::cue { color: red }

NOTE
more of it

intro
00:01.000 --> 00:02.500 align:start
<v.loud Mary Ann>Good <c.yellow>morning</c>.</v>

01:00:00.000 --> 01:00:01.000
<v Bob>Hi <ruby>kan<rt>reading</rt></ruby>&nbsp;there
"""


def read(folder: Path, text: str | bytes, name: str = "a.srt") -> list[Cue]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_subtitles(path)


def refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(HocketError) as caught:
        read(folder, text)
    assert caught.value.code is Code.SUBTITLES_UNREADABLE
    return str(caught.value)


def test_srt(tmp_path: Path) -> None:
    expected = [Cue(1.0, 2.5, "Good morning, all of you."), Cue(60.25, 62.0, "It is 5 < 6 & so on.")]
    assert read(tmp_path, SRT) == expected
    assert read(tmp_path, "\ufeff" + SRT.replace("\n", "\r\n")) == expected
    assert read(tmp_path, SRT.encode("utf-16")) == expected
    assert read(tmp_path, SRT.replace("\n", "\r")) == expected


def test_webvtt_names_its_speakers(tmp_path: Path) -> None:
    assert read(tmp_path, VTT) == [
        Cue(1.0, 2.5, "Good morning.", "Mary Ann"),
        Cue(3600.0, 3601.0, "Hi kan there", "Bob"),
    ]


def test_a_number_under_a_text_belongs_to_the_text(tmp_path: Path) -> None:
    text = "1\n00:00:01,000 --> 00:00:02,000\nPress\n\n9\n\n2\n00:00:03,000 --> 00:00:04,000\n7\n"
    assert [cue.text for cue in read(tmp_path, text)] == ["Press 9", "7"]


def test_speakers_and_sounds_in_brackets(tmp_path: Path) -> None:
    blocks = [
        "[SPEAKER_01]: Hello.",
        "[door slams]",
        "Well [sighs] yes.",
        "♪ la la ♪",
        "(applause)",
        "- No.\n- Yes.",
        "(a) first",
    ]
    text = "\n\n".join(f"00:00:{n:02},000 --> 00:00:{n:02},900\n{block}" for n, block in enumerate(blocks))
    cues = read(tmp_path, text)
    assert [(cue.speaker, cue.text) for cue in cues] == [
        ("SPEAKER_01", "Hello."),
        (None, "Well yes."),
        (None, "No. Yes."),
        (None, "(a) first"),
    ]


def test_two_voices_in_one_cue_are_nobody(tmp_path: Path) -> None:
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\n<v A>Yes.\n<v B>No.\n\n00:03.000 --> 00:04.000\n<v A>One <v A>two\n"
    assert [(cue.speaker, cue.text) for cue in read(tmp_path, text)] == [(None, "Yes. No."), ("A", "One two")]


def test_rolling_captions_are_given_once(tmp_path: Path) -> None:
    text = """WEBVTT

00:00.000 --> 00:02.000
 \nso<00:00.500><c> this</c>

00:02.000 --> 00:02.010
so this

00:02.010 --> 00:04.000
so this
is<00:02.500><c> it</c>

00:09.000 --> 00:10.000
is it
"""
    assert [cue.text for cue in read(tmp_path, text)] == ["so this", "is it", "is it"]
    plain = "WEBVTT\n\n00:00.000 --> 00:01.000\nNo.\n\n00:01.000 --> 00:02.000\nNo.\n"
    assert [cue.text for cue in read(tmp_path, plain)] == ["No.", "No."]


def test_cues_may_overlap_and_are_sorted(tmp_path: Path) -> None:
    text = "00:00:05,000 --> 00:00:09,000\nb\n\n00:00:01,000 --> 00:00:06,000\na\n"
    assert [cue.text for cue in read(tmp_path, text)] == ["a", "b"]


@pytest.mark.parametrize(
    "bad, said",
    [
        ("1\n00:00:01,000 -> 00:00:02,000\nx\n", "line 1"),
        ("1\n00:00:01,000 --> 00:00:0x,000\nx\n", "line 2"),
        ("1\n00:00:01,000 --> 00:00:00,500\nx\n", "line 2: the cue does not end"),
        ("1\n00:61:01,000 --> 01:00:00,500\nx\n", "end at 59"),
        ("hello\nthere\n", "line 1"),
        ("", "no cue"),
        ("WEBVTT\n", "no cue"),
        ("WEBVTT\n\na\nb\nc\n", "line 3"),
        (b"1\n00:00:01,000 --> 00:00:02,000\ncaf\xe9\n", "line 3: the file is not UTF-8"),
        ("1\n00:00:01,000 --> 00:00:02,000\n" + "x" * 5000, "5000 characters"),
        ("".join("00:00:01,000 --> 00:00:02,000\nx\n\n" for _ in range(MAX_AT_ONCE + 1)), f"more than {MAX_AT_ONCE} cues"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, bad: str | bytes, said: str) -> None:
    assert said in refusal(tmp_path, bad)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(HocketError) as caught:
        read_subtitles(tmp_path / "none.srt")
    assert caught.value.code is Code.SUBTITLES_UNREADABLE


words = st.lists(st.text("abcxyz éß", min_size=1, max_size=12).filter(lambda word: word.strip()), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**5), words), min_size=1, max_size=20), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, said: list, webvtt: bool) -> None:
    def time(ms: int) -> str:
        return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02}{'.' if webvtt else ','}{ms % 1000:03}"

    blocks = [
        f"{n + 1}\n{time(start)} --> {time(start + length)}\n" + "\n".join(lines) for n, (start, length, lines) in enumerate(said)
    ]
    cues = read(tmp_path_factory.mktemp("s"), ("WEBVTT\n\n" if webvtt else "") + "\n\n".join(blocks) + "\n")
    expected = sorted(
        ((start / 1000, (start + length) / 1000, " ".join(" ".join(lines).split())) for start, length, lines in said),
        key=lambda cue: cue[:2],
    )
    assert [(cue.start_s, cue.stop_s, cue.text) for cue in cues] == expected


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    try:
        cues = read(tmp_path_factory.mktemp("s"), b"WEBVTT\n\n00:01.000 --> 00:02.000\n" + raw)
    except HocketError as error:
        assert error.code is Code.SUBTITLES_UNREADABLE
    else:
        assert all(cue.stop_s > cue.start_s and cue.text for cue in cues)
