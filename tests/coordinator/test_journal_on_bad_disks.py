"""The journal on a disk that is full or read-only for a while: a numbered error, and afterwards every event that was told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_disks import disk_of

from common.errors import Code, HocketError
from common.faults import NO_FAULTS
from coordinator.journal import Journal


def mounted(*arguments: str) -> None:
    made = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(512, tmp_path / "disk") as folder:
        yield folder


def numbers(journal: Journal) -> list[int]:
    return [event.data["number"] for event in journal.events()]


def appended(journal: Journal, told: list[int], code: Code) -> bool:
    """Append the next event; False when the disk did not take it, which must be told with `code`."""
    number = len(told)
    try:
        journal.append("count", 1.0, {"number": number, "text": "x" * 500})
    except HocketError as error:
        assert error.code is code
        return False
    told.append(number)
    return True


def test_a_full_disk(disk: Path) -> None:
    journal = Journal(disk / "journal.sqlite", NO_FAULTS)
    told: list[int] = []
    (disk / "filler").write_bytes(bytes(300_000))
    while appended(journal, told, Code.DISK_FULL):
        assert len(told) < 2000
    assert len(told) > 10 and not appended(journal, told, Code.DISK_FULL)
    (disk / "filler").unlink()
    assert appended(journal, told, Code.DISK_FULL)
    assert numbers(journal) == told
    journal.close()
    again = Journal(disk / "journal.sqlite", NO_FAULTS)
    assert numbers(again) == told and again.last_time() == 1.0
    again.close()


def test_a_disk_that_becomes_read_only(disk: Path) -> None:
    journal = Journal(disk / "journal.sqlite", NO_FAULTS)
    told: list[int] = []
    for _ in range(5):
        assert appended(journal, told, Code.STATE_UNREADABLE)
    journal.close()
    mounted("-o", "remount,ro", str(disk))
    with pytest.raises(HocketError) as caught:
        Journal(disk / "journal.sqlite", NO_FAULTS)
    assert caught.value.code is Code.STATE_UNREADABLE
    mounted("-o", "remount,rw", str(disk))
    again = Journal(disk / "journal.sqlite", NO_FAULTS)
    assert numbers(again) == told and appended(again, told, Code.STATE_UNREADABLE)
    again.close()
