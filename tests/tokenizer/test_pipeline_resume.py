"""A tokeniser that is killed, at any point, and called again: the result is the same to the byte, however many processes work."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tokenizer.corpus import default_corpus
from tokenizer.work import WORK

pytestmark = pytest.mark.timeout(300)

CLIPS = 40  # three jobs


def tokenize(corpus: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "tokenize", str(corpus), "-l", "en-US", "-o", str(out), "--codebooks", "2"]
    command += ["--key", str(corpus.parent / "key"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first clips of the shipped corpus, one of them spoilt."""
    folder = tmp_path_factory.mktemp("corpus") / "corpus"
    (folder / "wavs").mkdir(parents=True)
    lines = (default_corpus() / "metadata.csv").read_text().splitlines()[:CLIPS]
    (folder / "metadata.csv").write_text("".join(f"{line}\n" for line in lines))
    for line in lines:
        name = f"{line.split('|')[0]}.ogg"
        shutil.copy(default_corpus() / "wavs" / name, folder / "wavs" / name)
    (folder / "wavs" / "slt-0020.ogg").write_bytes(b"no sound")
    return folder


LENIENT = ("--allow-refused", "0.1")


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "data"
    answer = tokenize(corpus, out, *LENIENT)
    assert answer.returncode == 0, answer.stderr
    return files_of(out)


# Each call is killed one step further than the one before it, so each goes on with what a kill has left.
POINTS = (
    "tokenize.plan.after",
    "tokenize.job.before:job=1",
    "tokenize.job.after:job=1",
    "tokenize.align.after",
    "tokenize.shard.half",
    "tokenize.manifest.before",
    "tokenize.manifest.after",
)


def test_killed_at_every_point_in_turn(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "data"
    for point in POINTS:
        answer = tokenize(corpus, out, *LENIENT, "--fault", f"{point}:kill")
        assert answer.returncode == -signal.SIGKILL, f"{point}: {answer.stderr}"
        assert (out / WORK / "plan.json").is_file()
        assert (out / "manifest.json").is_file() == (point == "tokenize.manifest.after")
        if point == "tokenize.job.before:job=1":
            assert os.listdir(out / WORK / "jobs") == ["000000.safetensors"]
        if point == "tokenize.shard.half":
            assert [name for name in os.listdir(out / "shards") if name.startswith(".")], "half a file is there"
    answer = tokenize(corpus, out, *LENIENT)
    assert answer.returncode == 0 and "going on" in answer.stderr, answer.stderr
    assert files_of(out) == undisturbed


def test_two_processes_one_of_which_dies(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """The result does not depend on the number of processes; the job of one that dies is done once more, and this is said."""
    out = tmp_path / "data"
    answer = tokenize(corpus, out, *LENIENT, "--processes", "2", "--fault", "tokenize.job.before:job=2:kill")
    assert answer.returncode == 0, answer.stderr
    assert "a worker process ended with -9 in encode job 2; the job is done once more" in answer.stderr
    assert files_of(out) == undisturbed


def test_a_job_that_kills_every_worker_is_an_error_that_keeps_the_rest(
    corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "data"
    fault = "tokenize.job.before:job=2:kill"
    answer = tokenize(corpus, out, *LENIENT, "--processes", "2", "--fault", fault, "--fault", fault)
    assert answer.returncode == 5 and "H409" in answer.stderr.splitlines()[-1] and "second time" in answer.stderr
    assert sorted(os.listdir(out / WORK / "jobs")) == ["000000.safetensors", "000001.safetensors"]
    # The other number of processes goes on with the same work.
    answer = tokenize(corpus, out, *LENIENT)
    assert answer.returncode == 0 and "going on" in answer.stderr
    assert files_of(out) == undisturbed


def test_too_many_refused_stop_early_and_can_be_allowed(corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "data"
    answer = tokenize(corpus, out)  # one of 40 is more than 2 %
    assert answer.returncode == 3 and "H208" in answer.stderr.splitlines()[-1] and "slt-0020" in answer.stderr
    jobs = sorted(os.listdir(out / WORK / "jobs"))
    assert jobs == ["000000.safetensors", "000001.safetensors"], "the last job, after the bad clip, was not done"
    answer = tokenize(corpus, out, *LENIENT)
    assert answer.returncode == 0 and "going on" in answer.stderr
    assert files_of(out) == undisturbed
