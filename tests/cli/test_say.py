"""`hocket say`: where the text comes from and where the sound goes."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from cli.main import app
from cli.wav_stream import OPEN_LENGTH, stream_wav
from common.errors import Code, HocketError
from tokenizer.codec import load_codec
from tokenizer.phonemes import ENGLISH_SYMBOLS
from tts.config import preset
from tts.export import Card, write_export
from tts.stage_files import weights_of
from tts.stages import build_stage

runner = CliRunner()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("say")
    codec = load_codec("hocket-16k", n_codebooks=4)
    codec.save(folder / "codec")
    config = preset("test", n_codebooks=4, codebook_size=codec.codebook_size, n_phonemes=len(ENGLISH_SYMBOLS))
    card = Card(config=config, phonemes=tuple(ENGLISH_SYMBOLS), languages=("en-US",), speakers=("slt",))
    write_export(folder / "checkpoint", weights_of(build_stage(config, 0, 1, seed=3)), card, folder / "codec")
    return folder / "checkpoint"


def say(checkpoint: Path, out: Path | str, *arguments: str, stdin: bytes | None = None) -> Any:
    return runner.invoke(app, ["say", "--checkpoint", str(checkpoint), "--out", str(out), *arguments], input=stdin)


def sound(path: Path) -> np.ndarray:
    return np.asarray(soundfile.read(path, dtype="int16")[0])


def test_the_text_comes_from_an_argument_a_file_or_standard_input(checkpoint: Path, tmp_path: Path) -> None:
    text = "Good morning. How are you?"
    (tmp_path / "text.txt").write_text("\ufeff" + text, encoding="utf-8")
    ways = {"argument": ([text], None), "file": (["--file", str(tmp_path / "text.txt")], None), "stdin": (["-"], text.encode())}
    for name, (arguments, stdin) in ways.items():
        result = say(checkpoint, tmp_path / f"{name}.wav", *arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
    assert np.array_equal(sound(tmp_path / "argument.wav"), sound(tmp_path / "file.wav"))
    assert np.array_equal(sound(tmp_path / "argument.wav"), sound(tmp_path / "stdin.wav"))


def test_speech_streams_to_standard_output_as_wav(checkpoint: Path, tmp_path: Path) -> None:
    text = "Good morning. How are you?"
    assert say(checkpoint, tmp_path / "whole.wav", text).exit_code == 0
    result = say(checkpoint, "-", text)
    assert result.exit_code == 0 and result.stdout_bytes[:4] == b"RIFF"
    samples = np.frombuffer(result.stdout_bytes[44:], "<i2").astype(int)
    whole = sound(tmp_path / "whole.wav").astype(int)
    assert samples.shape == whole.shape
    assert np.abs(samples - whole).max() <= 8, "but for rounding"


def test_the_open_header_is_one_that_readers_take() -> None:
    out = io.BytesIO()
    stream_wav(out, [np.zeros(10, np.float32), np.full(5, 3.0, np.float32)], 16000)
    data = out.getvalue()
    assert struct.unpack_from("<I", data, 40)[0] == OPEN_LENGTH and len(data) == 44 + 30
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == 16000 and list(samples[9:]) == [0, *[32767] * 5]


def test_a_player_that_goes_away_ends_the_stream_quietly() -> None:
    class Gone(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    left = iter([np.zeros(4, np.float32)] * 100)
    stream_wav(Gone(), left, 16000)
    assert len(list(left)) == 99


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["Hello.", "--language", "fr"], Code.LANGUAGE_REFUSED, "en-US"),
        (["Hello.", "--speaker", "eve"], Code.OPTION_INVALID, "slt"),
        (["h @", "--phonemes"], Code.NO_PHONEMES, "@"),
        ([""], Code.NO_PHONEMES, "nothing to say"),
        (["Hello.", "--file", "x.txt"], Code.OPTION_INVALID, "--file"),
        (["--file", "no-such-file.txt"], Code.OPTION_INVALID, "no-such-file"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(
    checkpoint: Path, tmp_path: Path, arguments: list[str], code: Code, part: str
) -> None:
    result = say(checkpoint, tmp_path / "x.wav", *arguments)
    assert isinstance(result.exception, HocketError) and result.exception.code is code
    assert part in str(result.exception) and not (tmp_path / "x.wav").exists()


def test_its_own_speaker_and_language_are_taken_by_name(checkpoint: Path, tmp_path: Path) -> None:
    assert say(checkpoint, tmp_path / "plain.wav", "Hello.").exit_code == 0
    named = say(checkpoint, tmp_path / "named.wav", "Hello.", "--speaker", "slt", "--language", "en-US")
    assert named.exit_code == 0
    assert np.array_equal(sound(tmp_path / "plain.wav"), sound(tmp_path / "named.wav"))
