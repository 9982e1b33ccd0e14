"""The background writer: files whole or absent, callers that wait only when they must, failures told, cheap crashes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from common.errors import Code, HocketError
from common.faults import Faults
from common.write_queue import Answer, Keep
from common.writer import BackgroundWriter, plain_memory, temporary_of

MIB = 1 << 20


class Gate(Faults):
    """Holds the writer's thread at a point until it is let through; counts how often the point was reached."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self.point = point
        self.reached = threading.Semaphore(0)
        self.through = threading.Semaphore(0)

    def reach(self, point: str, **facts: object) -> None:
        if point == self.point:
            self.reached.release()
            assert self.through.acquire(timeout=20)


def filled_with(letter: bytes) -> Callable[[memoryview], None]:
    def fill(target: memoryview) -> None:
        target[:] = letter * len(target)

    return fill


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert not list(tmp_path.glob(".*.part")), "nothing is left beside the targets"


def test_a_saved_file_is_the_bytes_at_the_time_of_the_save(folder: Path) -> None:
    source = bytearray(b"first" * 1000)
    with BackgroundWriter(4 * MIB) as writer:
        writer.save_parts(folder / "deep" / "file", [b"head", memoryview(source)])
        source[:] = b"later" * 1000
    assert (folder / "deep" / "file").read_bytes() == b"head" + b"first" * 1000


def test_a_newer_save_replaces_one_that_waits_and_a_written_one_is_not_put_in_place_over_it(folder: Path) -> None:
    gate = Gate("writer.write.half")
    with BackgroundWriter(4 * MIB, faults=gate) as writer:
        writer.save(folder / "a", MIB, filled_with(b"1"))
        assert gate.reached.acquire(timeout=20)
        assert writer.save(folder / "a", MIB, filled_with(b"2")).freed == ()
        assert len(writer.save(folder / "a", MIB, filled_with(b"3")).freed) == 1
        gate.through.release()
        assert gate.reached.acquire(timeout=20)  # the third is half written: the first was not put in place
        assert not (folder / "a").exists()
        gate.through.release()
    assert (folder / "a").read_bytes() == b"3" * MIB


def test_a_caller_waits_when_the_buffer_is_full_and_goes_on_when_there_is_room(folder: Path) -> None:
    gate = Gate("writer.write.half")
    with BackgroundWriter(2 * MIB, faults=gate) as writer:
        writer.save(folder / "a", MIB, filled_with(b"a"), keep=Keep.PINNED)
        assert gate.reached.acquire(timeout=20)
        writer.save(folder / "b", MIB, filled_with(b"b"), keep=Keep.PINNED)
        began = threading.Event()
        done = threading.Event()

        def third() -> None:
            began.set()
            writer.save(folder / "c", MIB, filled_with(b"c"))
            done.set()

        caller = threading.Thread(target=third)
        caller.start()
        assert began.wait(20) and not done.wait(0.05)
        gate.through.release(3)
        assert done.wait(20)
        caller.join()
    assert [(folder / name).read_bytes()[:1] for name in "abc"] == [b"a", b"b", b"c"]


def test_memory_is_used_again_and_stays_within_the_limit(folder: Path) -> None:
    made: list[int] = []

    def allocate(size_bytes: int) -> memoryview:
        made.append(size_bytes)
        return plain_memory(size_bytes)

    with BackgroundWriter(3 * MIB, allocate=allocate) as writer:
        for number in range(20):
            writer.save(folder / f"{number % 2}", 2 * MIB - number, filled_with(b"x"))
            writer.drain()
        assert made == [2 * MIB]
        writer.save(folder / "small", 10, filled_with(b"y"))
        writer.save(folder / "large", 3 * MIB, filled_with(b"z"))
    assert made == [2 * MIB, MIB, 3 * MIB]
    assert (folder / "0").stat().st_size == 2 * MIB - 18


def test_a_file_larger_than_the_buffer_is_refused(folder: Path) -> None:
    with BackgroundWriter(MIB) as writer, pytest.raises(HocketError) as refused:
        writer.save(folder / "a", MIB + 1, filled_with(b"a"))
    assert refused.value.code is Code.OPTION_INVALID


def test_a_failure_reaches_the_caller_once_and_the_writer_goes_on(folder: Path) -> None:
    (folder / "in the way").write_bytes(b"")
    with BackgroundWriter(MIB) as writer:
        writer.save(folder / "in the way" / "a", 10, filled_with(b"a"))
        with pytest.raises(HocketError) as told:
            writer.drain()
        assert told.value.code is Code.STATE_UNREADABLE
        writer.check()
        writer.save(folder / "b", 10, filled_with(b"b"))
    assert (folder / "b").read_bytes() == b"b" * 10


def test_a_failure_is_told_at_the_next_save_and_at_the_end(folder: Path) -> None:
    (folder / "taken").mkdir()
    (folder / "taken" / "inside").write_bytes(b"")
    writer = BackgroundWriter(MIB)
    writer.save(folder / "taken", 10, filled_with(b"a"))  # a folder cannot be renamed over
    with pytest.raises(HocketError):
        writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        writer.save(folder / "b", 10, filled_with(b"b"))
    temporary_of(folder / "taken").unlink()


def test_a_filling_that_fails_leaves_nothing_behind(folder: Path) -> None:
    def fill(target: memoryview) -> None:
        raise ArithmeticError("no values")

    with BackgroundWriter(MIB) as writer:
        with pytest.raises(ArithmeticError):
            writer.save(folder / "a", MIB, fill)
        writer.save(folder / "b", MIB, filled_with(b"b"))
    assert [path.name for path in folder.iterdir()] == ["b"]


def test_a_forgotten_path_is_not_written_after_all(folder: Path) -> None:
    gate = Gate("writer.write.half")
    with BackgroundWriter(4 * MIB, faults=gate) as writer:
        writer.save(folder / "a", MIB, filled_with(b"1"))
        assert gate.reached.acquire(timeout=20)
        writer.save(folder / "a", MIB, filled_with(b"2"))
        writer.forget(folder / "a")
        gate.through.release()
    assert list(folder.iterdir()) == []


def test_the_best_ranked_files_stay_on_disk(folder: Path) -> None:
    (folder / "earlier").write_bytes(b"e")
    with BackgroundWriter(4 * MIB, keep_ranked=2, ranked={folder / "earlier": 2.5}) as writer:
        for score in (3.0, 2.0, 4.0, 1.0):
            offer = writer.save(folder / str(score), 10, filled_with(b"r"), keep=Keep.RANKED, score=score)
            writer.drain()
            assert (offer.answer is Answer.OUTRANKED) == (score == 4.0)
        writer.save(folder / "pinned", 10, filled_with(b"p"), keep=Keep.PINNED)
    assert sorted(path.name for path in folder.iterdir()) == ["1.0", "2.0", "pinned"]


CHILD = """
import signal, sys
from pathlib import Path
from common.faults import Fault, Faults
from common.stop import stop_signals
from common.writer import BackgroundWriter

def stop(number, frame):
    raise SystemExit(128 + number)

for number in stop_signals():
    signal.signal(number, stop)
folder, how, faults = Path(sys.argv[1]), sys.argv[2], Faults([Fault.parse(line) for line in sys.argv[3:]])
size = 8 << 20

def fill(letter):
    def filled(target):
        target[:] = letter * len(target)
    return filled

writer = BackgroundWriter(64 << 20, faults=faults)
if how == "left open":
    writer.save(folder / "a", size, fill(b"1"))
    sys.exit(0)
with writer:
    writer.save(folder / "a", size, fill(b"0"))
    writer.drain()
    print("one", flush=True)
    writer.save(folder / "a", size, fill(b"1"))
    writer.save(folder / "b", size, fill(b"2"))
    print("saved", flush=True)
    if how == "wait":
        signal.pause()
"""


def child(folder: Path, how: str, *faults: str) -> subprocess.Popen[str]:
    here = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), how, *faults], stdout=subprocess.PIPE, text=True, cwd=here,
        env=os.environ | {"PYTHONPATH": str(here)},
    )  # fmt: skip


def test_everything_is_written_after_a_stop_signal(folder: Path) -> None:
    process = child(folder, "wait")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["one\n", "saved\n"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert {path.name: path.read_bytes()[-1:] for path in folder.iterdir()} == {"a": b"1", "b": b"2"}
    process.stdout.close()


def test_a_writer_that_nobody_closed_is_drained_at_the_end(folder: Path) -> None:
    process = child(folder, "left open")
    assert process.wait(30) == 0
    assert (folder / "a").stat().st_size == 8 << 20
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("point", ["writer.write.half", "writer.replace.before", "writer.replace.after"])
def test_a_crash_at_any_point_leaves_the_old_file_or_the_new_one(tmp_path: Path, point: str) -> None:
    process = child(tmp_path, "wait", f"{point}:path=b:kill")
    assert process.wait(30) == -signal.SIGKILL
    assert process.stdout is not None
    process.stdout.close()
    assert (tmp_path / "a").read_bytes() == b"1" * (8 << 20), "what was in place stays"
    done = (tmp_path / "b").exists()
    assert done == (point == "writer.replace.after")
    if done:
        assert (tmp_path / "b").read_bytes() == b"2" * (8 << 20)
    with BackgroundWriter(64 << 20) as writer:  # the next process writes over what the crash left
        writer.save(tmp_path / "b", 5, filled_with(b"3"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "b").read_bytes() == b"33333"


@pytest.mark.parametrize("size_bytes", [32, 33, 1000, (20 << 20) + 5])
def test_a_sealed_file_ends_with_the_digest_of_what_is_before(tmp_path: Path, size_bytes: int) -> None:
    body = np.random.default_rng(size_bytes).integers(0, 256, size_bytes - 32, np.uint8).tobytes()
    with BackgroundWriter(64 << 20) as writer:
        writer.save_parts(tmp_path / "sealed", [body, bytes(32)], sealed=True)
        writer.drain()
        assert writer.idle
        # The buffer is used again; a plain save is written as it is.
        writer.save_parts(tmp_path / "plain", [body, bytes(32)])
    assert (tmp_path / "sealed").read_bytes() == body + hashlib.sha256(body).digest()
    assert (tmp_path / "plain").read_bytes() == body + bytes(32)


def test_a_failure_that_nobody_asks_for_is_logged_and_does_not_spoil_the_end_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be made here")
    script = (
        "import logging, sys; from pathlib import Path; from common.writer import BackgroundWriter\n"
        "logging.basicConfig(format='%(message)s')\n"
        "BackgroundWriter(1 << 20).save_parts(Path(sys.argv[1]) / 'file' / 'a', [b'a'])"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and len(ended.stderr.splitlines()) == 1 and "H401" in ended.stderr
