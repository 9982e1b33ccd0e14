"""Mistakes as a person makes them: the real command, one line with number and remedy, and nothing lost or left behind."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from small_disks import disk_of

from protocol.identity import MemberKey
from protocol.ticket import Ticket
from tokenizer.corpus import default_corpus

pytestmark = pytest.mark.timeout(180)


def hocket(*arguments: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "XDG_DATA_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def mistake(answer: subprocess.CompletedProcess[str], number: str, exit_code: int, *words: str) -> None:
    """The command ended with this one line; what it printed before are lines of its progress."""
    assert answer.returncode == exit_code, answer.stderr
    assert "Traceback" not in answer.stderr
    *before, line = answer.stderr.splitlines()
    assert line.startswith(f"{number} ") and "Remedy: " in line
    for word in words:
        assert word in line, line
    assert not any(earlier.startswith("H") for earlier in before)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A few clips of the shipped corpus, to be damaged."""
    source, folder = default_corpus(), tmp_path / "corpus"
    (folder / "wavs").mkdir(parents=True)
    lines = (source / "metadata.csv").read_text(encoding="utf-8").splitlines()[:6]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for line in lines:
        shutil.copy(source / "wavs" / f"{line.split('|')[0]}.ogg", folder / "wavs")
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(256, tmp_path / "disk") as folder:
        yield folder


# ---- tickets and run files ----------------------------------------------------------------------------------------------


def test_a_ticket_with_one_wrong_letter(tmp_path: Path) -> None:
    bootstrap = ("/ip4/127.0.0.1/tcp/9/p2p/QmPeer",)
    line = Ticket("run-1", ("127.0.0.1:1",), MemberKey.generate().public, b"\x07" * 32, bootstrap).encode()
    letter = line[40]
    wrong = line[:40] + ("a" if letter != "a" else "b") + line[41:]
    state = tmp_path / "state"
    for command in (["worker", wrong, "--state-dir", state], ["status", wrong], ["ticket", "show", wrong, "--json"]):
        mistake(hocket(*command, home=tmp_path), "H104", 2)
    assert not state.exists()


def test_a_ticket_of_a_run_that_is_gone(tmp_path: Path) -> None:
    """The whole line is right, but nobody is there any more."""
    gone = "/ip4/127.0.0.1/tcp/9/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
    line = Ticket("run-1", ("127.0.0.1:9",), MemberKey.generate().public, b"\x07" * 32, (gone,)).encode()
    mistake(hocket("status", line, "--timeout", "2", home=tmp_path), "H301", 4)
    answer = hocket("worker", line, "--state-dir", tmp_path / "state", home=tmp_path)
    mistake(answer, "H311", 4)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("inner_step = 4", "rounds.inner_steps"),
        ("frames_per_step = 4", "rounds.frames_per_inner_step"),
        ("counts = 1", "rounds.count"),
    ],
)
def test_an_unknown_key_of_the_run_file_names_the_nearest(tmp_path: Path, wrong: str, named: str) -> None:
    run_toml = tmp_path / "run.toml"
    run_toml.write_text(f'[run]\nid = "a"\n[model]\npreset = "test"\nstages = 2\n[data]\nmanifest = "d"\n[rounds]\n{wrong}\n')
    mistake(hocket("coordinator", run_toml, "--state-dir", tmp_path / "s", home=tmp_path), "H102", 2, wrong.split()[0], named)
    assert not (tmp_path / "s").exists()


# ---- corpora ------------------------------------------------------------------------------------------------------------


def test_corpora_that_cannot_be_tokenised(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "out"

    def refused(folder: Path, number: str, *words: str, language: str = "en-US") -> None:
        answer = hocket("tokenize", folder, "--language", language, "--out", out, home=tmp_path)
        mistake(answer, number, 3, *words)
        assert not (out / "manifest.json").exists()

    refused(tmp_path / "nowhere", "H201", "nowhere")
    refused(corpus, "H202", "use ja", language="JP")
    table = (corpus / "metadata.csv").read_text(encoding="utf-8")
    names = [line.split("|")[0] for line in table.splitlines()]
    (corpus / "metadata.csv").write_bytes(b"\xff\xfe\x00 no text")
    refused(corpus, "H201", "metadata.csv")
    (corpus / "metadata.csv").write_text(table.split("\n", 1)[1], encoding="utf-8")
    refused(corpus, "H203", names[0])
    (corpus / "metadata.csv").write_text(table + "ghost|A text that nobody read.\n", encoding="utf-8")
    refused(corpus, "H203", "ghost")
    (corpus / "metadata.csv").write_text(table, encoding="utf-8")
    sound = (corpus / "wavs" / f"{names[1]}.ogg").read_bytes()
    (corpus / "wavs" / f"{names[1]}.ogg").write_bytes(b"OggS and then nothing")
    refused(corpus, "H208", names[1])
    soundfile.write(corpus / "wavs" / f"{names[1]}.ogg", np.zeros(1600, np.float32), 16000, format="OGG", subtype="OPUS")
    refused(corpus, "H204", names[1], "5 frames")
    (corpus / "wavs" / f"{names[1]}.ogg").write_bytes(sound)
    answer = hocket("tokenize", corpus, "--language", "en-US", "--out", out, home=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert (out / "manifest.json").is_file()


def test_phonemes_of_a_language_that_is_a_country(tmp_path: Path) -> None:
    mistake(hocket("phonemes", "hello", "--language", "JP", home=tmp_path), "H202", 3, "use ja")


# ---- a full disk --------------------------------------------------------------------------------------------------------


def test_tokenising_onto_a_full_disk_and_again_with_room(tmp_path: Path, corpus: Path, small_disk: Path) -> None:
    out = small_disk / "out"
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in corpus.rglob("*") if path.is_file()}
    arguments = ("tokenize", corpus, "--language", "en-US", "--out", out)
    mistake(hocket(*arguments, home=tmp_path), "H402", 7)
    assert not (out / "manifest.json").exists()
    assert before == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in corpus.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    answer = hocket(*arguments, home=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert (out / "manifest.json").is_file()


def test_a_key_cannot_be_kept_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(bytes(512 * 1024))
    line = Ticket("run-1", ("127.0.0.1:9",), MemberKey.generate().public, b"", ("/ip4/127.0.0.1/tcp/9/p2p/QmPeer",)).encode()
    mistake(hocket("worker", line, "--state-dir", small_disk / "state", home=tmp_path), "H402", 7)
