"""Where a worker's ticket comes from: the command line, a file, or standard input."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from cli.options import ticket_line
from common.errors import Code, HocketError


def test_a_ticket_is_the_first_line_of_a_file_or_of_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ticket.txt"
    path.write_text("hocket1:abc \nmore\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("hocket1:def\n"))
    assert ticket_line("hocket1:x", None) == "hocket1:x"
    assert ticket_line(None, str(path)) == "hocket1:abc"
    assert ticket_line(None, "-") == "hocket1:def"


@pytest.mark.parametrize(("ticket", "source"), [(None, None), ("hocket1:x", "-")])
def test_one_place_and_one_only(ticket: str | None, source: str | None) -> None:
    with pytest.raises(HocketError) as caught:
        ticket_line(ticket, source)
    assert caught.value.code is Code.OPTION_INVALID


def test_a_place_without_a_ticket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    for source in (str(tmp_path / "none.txt"), "-"):
        with pytest.raises(HocketError) as caught:
            ticket_line(None, source)
        assert caught.value.code is Code.TICKET_INVALID


def test_a_worker_that_waits_ends_with_a_numbered_error_when_nobody_has_a_ticket_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli.main", "worker", "--ticket-from", "-", "--state-dir", str(tmp_path / "state")]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2 and "H104" in ended.stderr and "Traceback" not in ended.stderr
