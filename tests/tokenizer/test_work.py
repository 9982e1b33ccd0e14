"""The work folder: what it keeps, when it starts over, and what it never touches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.corpus import Clip, Corpus
from tokenizer.work import WORK, inputs_of, open_work


def leave(out: Path, plan: dict[str, object]) -> None:
    """Work that ends with an error after one result."""
    with pytest.raises(HocketError), open_work(out) as work:
        work.bind(plan)
        work.job(0).parent.mkdir(parents=True, exist_ok=True)
        work.job(0).write_bytes(b"result")
        raise HocketError(Code.DISK_FULL, "")


def test_the_same_plan_goes_on_and_another_starts_over(tmp_path: Path) -> None:
    leave(tmp_path, {"inputs": "a"})
    with pytest.raises(HocketError), open_work(tmp_path) as work:
        assert work.bind({"inputs": "a"}) and work.job(0).read_bytes() == b"result"
        raise HocketError(Code.DISK_FULL, "")
    with pytest.raises(HocketError), open_work(tmp_path) as work:
        assert not work.bind({"inputs": "b"}) and not work.job(0).exists()
        raise HocketError(Code.DISK_FULL, "")
    assert list(tmp_path.iterdir()) == [], "without results nothing is left behind"


def test_a_plan_that_was_being_replaced_keeps_nothing_of_the_old(tmp_path: Path) -> None:
    leave(tmp_path, {"inputs": "a"})
    (tmp_path / WORK / "plan.json").unlink()  # the first thing that starting over does
    with open_work(tmp_path) as work:
        assert not work.bind({"inputs": "a"}) and not work.job(0).exists()


def test_finished_work_leaves_no_folder(tmp_path: Path) -> None:
    with open_work(tmp_path) as work:
        work.bind({})
        work.cut(3).parent.mkdir(parents=True)
        work.cut(3).write_bytes(b"x")
    assert not (tmp_path / WORK).exists()


def test_a_folder_with_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(HocketError) as caught, open_work(tmp_path):
        pass
    assert caught.value.code is Code.OUTPUT_EXISTS and os.listdir(tmp_path) == ["thesis.txt"]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tokenizer.work import open_work\n"
        "with open_work(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(HocketError) as caught, open_work(tmp_path):
            pass
        assert caught.value.code is Code.STATE_LOCKED
        other.stdin.close()
        assert other.wait() == 0
    with open_work(tmp_path):
        pass


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / ".bafx.parquet.k3v_9abc.part").write_bytes(b"half")
    (shards / "bafy.parquet").write_bytes(b"whole")
    (shards / ".hidden").write_bytes(b"a person's own")
    with open_work(tmp_path):
        pass
    assert sorted(os.listdir(shards)) == [".hidden", "bafy.parquet"]


def corpus_of(folder: Path, **changes: object) -> Corpus:
    clip = {"id": "a", "audio": AudioSource(folder / "a.wav"), "text": "one", **changes}
    return Corpus(folder, [Clip(**clip)], [])  # type: ignore[arg-type]


def test_inputs_change_with_every_file_and_every_word(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"123")
    os.utime(tmp_path / "a.wav", ns=(10, 10))
    first = inputs_of(corpus_of(tmp_path))
    assert inputs_of(corpus_of(tmp_path)) == first
    others: list[dict[str, object]] = [
        {"id": "b"}, {"text": "two"}, {"language": "de"}, {"speaker": "x"}, {"licence": "y"}, {"start_s": 1.0}, {"stop_s": 2.0},
    ]  # fmt: skip
    digests = {inputs_of(corpus_of(tmp_path, **change)) for change in others}
    os.utime(tmp_path / "a.wav", ns=(10, 11))
    digests.add(inputs_of(corpus_of(tmp_path)))
    (tmp_path / "a.wav").write_bytes(b"1234")
    os.utime(tmp_path / "a.wav", ns=(10, 10))
    digests.add(inputs_of(corpus_of(tmp_path)))
    assert len(digests | {first}) == len(others) + 3
    (tmp_path / "a.wav").unlink()
    with pytest.raises(HocketError) as caught:
        inputs_of(corpus_of(tmp_path))
    assert caught.value.code is Code.CORPUS_UNREADABLE


@given(one=st.dictionaries(st.text(max_size=5), st.integers()), two=st.dictionaries(st.text(max_size=5), st.integers()))
def test_alignments_with_other_settings_are_other_files(one: dict[str, int], two: dict[str, int]) -> None:
    from tokenizer.work import Work

    work = Work(Path("w"))
    assert (work.alignment("en", one) == work.alignment("en", two)) == (one == two)
