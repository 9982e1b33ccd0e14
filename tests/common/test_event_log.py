"""The event log: whole lines only, whatever ended the last write."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_disks import disk_of

from common.errors import Code, HocketError
from common.log import EventLog, read_events


def test_events_are_appended_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "events.jsonl"
    assert read_events(path) == []
    for number in range(2):
        log = EventLog(path)
        log.write("started", number=number, text="Grüße\n")
        log.close()
    events = read_events(path)
    assert [(event["event"], event["number"], event["text"]) for event in events] == [
        ("started", 0, "Grüße\n"),
        ("started", 1, "Grüße\n"),
    ]
    assert all(event["pid"] > 0 and event["time"] > 1.6e9 for event in events)


@pytest.mark.parametrize("size", [0, 10, 200_000])
def test_a_line_that_a_kill_cut_is_left_out_and_does_not_spoil_the_next(tmp_path: Path, size: int) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("one")
    log.close()
    with path.open("ab") as stream:
        stream.write(b'{"event":"' + b"x" * size)
    assert [event["event"] for event in read_events(path)] == ["one"]
    log = EventLog(path)
    log.write("two")
    log.close()
    assert [event["event"] for event in read_events(path)] == ["one", "two"]


def test_a_path_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HocketError) as caught:
        EventLog(tmp_path / "file" / "events.jsonl")
    assert caught.value.code is Code.STATE_UNREADABLE


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(64, tmp_path / "disk") as folder:
        yield folder


def test_a_full_disk_is_named_and_the_log_goes_on_once_there_is_room(small_disk: Path) -> None:
    path = small_disk / "events.jsonl"
    log = EventLog(path)
    written = 0
    with pytest.raises(HocketError) as caught:
        while True:
            log.write("step", number=written, padding="p" * 300)
            written += 1
    assert caught.value.code is Code.DISK_FULL and written > 10
    assert [event["number"] for event in read_events(path)] == list(range(written))
    subprocess.run(["mount", "-o", "remount,size=256k", str(small_disk)], check=True)
    log.write("step", number=written)
    log.close()
    assert [event["number"] for event in read_events(path)] == list(range(written + 1))
