"""`hocket say`: where the text comes from and where the sound goes."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from typer.testing import CliRunner
from untrained_export import one_hot_voices, untrained

from cli.main import app
from cli.wav_stream import OPEN_LENGTH, stream_wav
from common.errors import Code, HocketError
from tokenizer.codec import load_codec

runner = CliRunner()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations, which threads that wait for each other only slow down
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("say"), speakers=("slt",))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two voices and two languages that share their phonemes."""
    voices = one_hot_voices("ada", "bo")
    folder = tmp_path_factory.mktemp("many")
    return untrained(folder, {"n_languages": 2}, languages=("en-GB", "en-US"), speakers=("ada", "bo"), voices=voices)


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


# ---- what each parameter does ------------------------------------------------------------------------------------------------


def spoken(checkpoint: Path, out: Path, *arguments: str) -> np.ndarray:
    result = say(checkpoint, out, *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return sound(out)


@pytest.fixture(scope="module")
def plain(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What is heard with no option at all."""
    return spoken(checkpoint, tmp_path_factory.mktemp("plain") / "plain.wav", "Good morning.")


def differ(one: np.ndarray, two: np.ndarray) -> bool:
    return one.shape != two.shape or not np.array_equal(one, two)


@pytest.mark.parametrize(
    "option",
    [["--temperature", "0"], ["--temperature", "1.5"], ["--top-k", "1"], ["--top-k", "0"], ["--guidance", "1"], ["--seed", "4"]],
)
def test_an_option_of_sampling_changes_what_is_heard(
    checkpoint: Path, plain: np.ndarray, tmp_path: Path, option: list[str]
) -> None:
    other = spoken(checkpoint, tmp_path / "other.wav", "Good morning.", *option)
    assert plain.shape == other.shape, "only the rate changes the length"
    assert differ(plain, other)


def test_what_is_said_by_default_is_what_the_help_says(checkpoint: Path, plain: np.ndarray, tmp_path: Path) -> None:
    options = ["--rate", "1", "--temperature", "0.6", "--top-k", "10", "--guidance", "2", "--seed", "0"]
    assert not differ(plain, spoken(checkpoint, tmp_path / "said.wav", "Good morning.", *options))
    shown = runner.invoke(app, ["say", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for option, default in (("rate", "1.0"), ("temperature", "0.6"), ("top-k", "(10)"), ("guidance", "(2.0)"), ("seed", "0")):
        (line,) = [line for line in shown.splitlines() if f"--{option} " in line]
        assert f"[default: {default}]" in line


@pytest.mark.parametrize("rate", [0.8, 1.4])
def test_the_rate_is_a_factor_on_the_length_exact_to_a_frame(checkpoint: Path, tmp_path: Path, rate: float) -> None:
    hop, text = load_codec("hocket-16k").hop, "The boat from London was thirty minutes late."
    plain = len(spoken(checkpoint, tmp_path / "plain.wav", text))
    other = len(spoken(checkpoint, tmp_path / "other.wav", text, "--rate", str(rate)))
    assert abs(other - rate * plain) <= hop * (1 + rate) / 2


def test_a_speaker_and_a_language_are_heard(many: Path, tmp_path: Path) -> None:
    line = "/ h ə l ˈoʊ"
    first = spoken(many, tmp_path / "first.wav", line, "--phonemes")
    for option in (["--speaker", "ada"], ["--language", "en-GB"], ["--language", "EN_gb"]):
        assert not differ(first, spoken(many, tmp_path / "named.wav", line, "--phonemes", *option)), "the first is the default"
    for option in (["--speaker", "bo"], ["--language", "en-US"]):
        assert differ(first, spoken(many, tmp_path / "other.wav", line, "--phonemes", *option))


def test_phonemes_are_what_the_command_phonemes_writes(checkpoint: Path, plain: np.ndarray, tmp_path: Path) -> None:
    shown = runner.invoke(app, ["phonemes", "Good morning.", "-l", "en-US"]).stdout.splitlines()
    assert not differ(plain, spoken(checkpoint, tmp_path / "read.wav", shown[1], "--phonemes"))
    other = shown[1].replace("ˈʊ", "ˈi")
    assert other != shown[1] and differ(plain, spoken(checkpoint, tmp_path / "other.wav", other, "--phonemes"))


def test_a_long_text_from_a_file_is_spoken_sentence_by_sentence(checkpoint: Path, plain: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Good morning. How are you?", encoding="utf-8")
    both = spoken(checkpoint, tmp_path / "both.wav", "--file", str(tmp_path / "text.txt"))
    assert len(plain) < len(both) and np.abs(both[: len(plain)].astype(int) - plain).max() <= 8, "but for the scale of the peak"


def test_a_model_that_was_never_without_text_takes_no_guidance(tmp_path: Path) -> None:
    plain = untrained(tmp_path, {"cond_dropout": 0.0})
    usual = spoken(plain, tmp_path / "usual.wav", "Hello.")
    assert not differ(usual, spoken(plain, tmp_path / "one.wav", "Hello.", "--guidance", "1"))
    for out in (tmp_path / "no.wav", "-"):
        result = say(plain, out, "Hello.", "--guidance", "2")
        assert isinstance(result.exception, HocketError) and result.exception.code is Code.OPTION_INVALID
        assert "condition dropout" in result.exception.line() and not result.stdout_bytes
    assert not (tmp_path / "no.wav").exists()


def test_more_codes_than_a_codebook_has_cannot_be_chosen_among(checkpoint: Path, tmp_path: Path) -> None:
    size = load_codec("hocket-16k").codebook_size
    every = spoken(checkpoint, tmp_path / "all.wav", "Hello.", "--top-k", "0")
    assert not differ(every, spoken(checkpoint, tmp_path / "size.wav", "Hello.", "--top-k", str(size)))
    result = say(checkpoint, tmp_path / "no.wav", "Hello.", "--top-k", str(size + 1))
    assert isinstance(result.exception, HocketError) and result.exception.code is Code.OPTION_INVALID
    assert str(size) in result.exception.detail and not (tmp_path / "no.wav").exists()


def test_an_unknown_speaker_is_one_line_that_says_what_there_is(many: Path, tmp_path: Path) -> None:
    def line(checkpoint: Path) -> str:
        result = say(checkpoint, tmp_path / "x.wav", "Hello.", "--speaker", "eve")
        assert isinstance(result.exception, HocketError) and result.exception.code is Code.OPTION_INVALID
        assert result.exception.exit_code == 2 and "\n" not in result.exception.line()
        return result.exception.line()

    assert "it has ada, bo" in line(many)
    (tmp_path / "mixed").mkdir()
    mixed = line(untrained(tmp_path / "mixed", speakers=("ada", "bo")))
    assert "without speaker embeddings" in mixed and "--speakers" in mixed
    (tmp_path / "crowd").mkdir()
    names, voice = [f"v{number}" for number in range(30)], (1.0,) + (0.0,) * 7
    crowd = line(untrained(tmp_path / "crowd", {"speaker_dim": 8}, speakers=names, voices=dict.fromkeys(names, voice)))
    assert "v19 and 10 more" in crowd
    (tmp_path / "evil").mkdir()
    name = "\x1b[2Jada"
    assert "\x1b" not in line(untrained(tmp_path / "evil", speakers=(name,), voices=one_hot_voices(name))), "a stranger wrote it"


def test_a_ticket_belongs_to_a_cid(checkpoint: Path, tmp_path: Path) -> None:
    result = say(checkpoint, tmp_path / "x.wav", "Hello.", "--ticket", "hocket1:abc")
    assert isinstance(result.exception, HocketError) and "--ticket" in result.exception.detail
