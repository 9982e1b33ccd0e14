"""The benchmark of tokenisation: both ways do the same work, and its arithmetic is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.cut_stage import straightforward_bytes
from benchmarks.long_recording import RATE, SHIPPED, join, spoken_clips
from benchmarks.tokenize import CHECKOUT, TokenizeBench, _both_ways, parse_rows, ratios_of
from common.errors import Code, HocketError
from simulations.usage import resident_bytes
from tokenizer.audio import read_audio
from tokenizer.recordings.subtitles import read_subtitles


def test_a_long_recording_says_who_speaks_where(tmp_path: Path) -> None:
    clips = spoken_clips(CHECKOUT / SHIPPED)[:7]
    audio = join(clips, 0.6, 3, tmp_path)
    cues = read_subtitles(audio.with_suffix(".vtt"))
    samples = soundfile.read(audio, dtype="float32")[0]
    assert 36 <= len(samples) / RATE < 50
    assert [cue.speaker for cue in cues] == [f"S{n % 3 + 1}" for n in range(len(cues))]
    for n in (0, len(cues) - 1):
        clip = clips[n % len(clips)]
        start = round(cues[n].start_s * RATE)
        assert cues[n].text == " ".join(clip.text.split())
        expected = read_audio(clip.path, RATE)
        found = samples[start : start + len(expected)]
        np.testing.assert_allclose(found, np.clip(expected, -1, 1), atol=1e-4)


def test_both_ways_of_cutting_find_the_same_pieces_and_voices(tmp_path: Path) -> None:
    for package in ("silero_vad", "resemblyzer"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    settings = TokenizeBench(compared_minutes=0.4, compared_speakers=2, repeats=1)
    lines: list[str] = []
    rows = _both_ways(settings, spoken_clips(CHECKOUT / SHIPPED)[:5], tmp_path, lines.append)
    assert [row["row"] for row in rows] == ["cut_hocket", "cut_straightforward"] and len(lines) == 2
    assert rows[0]["cosine_of_embeddings"] > 0.97 and rows[0]["clips"] == rows[1]["clips"] >= 5
    assert ratios_of(rows) == {"speed_vs_straightforward": rows[1]["seconds"] / rows[0]["seconds"]}


def test_growth_is_from_the_shortest_to_the_longest_recording() -> None:
    rows = [{"row": f"tokenize_{n}", "peak_rss_mib": size} for n, size in enumerate((500.0, 900.0, 520.0))]
    assert ratios_of(rows) == {"rss_growth_mib": 20.0}
    assert ratios_of(rows[:1]) == {}


def test_the_straightforward_way_is_foretold_by_its_windows() -> None:
    assert straightforward_bytes(4.7 * 3600, 21) == 21150 * 21 * 160 * 40 * 4


def test_rows_are_minutes_and_speakers() -> None:
    assert parse_rows("5:3, 0.5:21") == ((5.0, 3), (0.5, 21))
    for bad in ("5", "5:x", "0:3", "5:0", "nan:2"):
        with pytest.raises(HocketError) as caught:
            parse_rows(bad)
        assert caught.value.code is Code.OPTION_INVALID


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found as on Linux")
def test_memory_is_that_of_a_process_and_its_children() -> None:
    inner = "import sys; print('up', flush=True); sys.stdin.read()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert len(resident_bytes(child.pid)) == 2 and min(resident_bytes(child.pid)) > 1 << 20
        child.stdin.close()
    assert resident_bytes(child.pid) == [] and len(resident_bytes(os.getpid())) >= 1
