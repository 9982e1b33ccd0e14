"""Commands around runs, data and voices, called in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from common.errors import Code, HocketError
from protocol.identity import MemberKey
from protocol.ticket import Ticket

runner = CliRunner()


def run(*arguments: str) -> Any:
    """Output of a command that succeeds."""
    result = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fails(*arguments: str) -> HocketError:
    """The numbered error of a command that fails."""
    result = runner.invoke(app, list(arguments))
    assert isinstance(result.exception, HocketError), result.output
    return result.exception


@pytest.fixture(scope="module")
def ticket() -> Ticket:
    key = MemberKey.generate()
    return Ticket("run-1", ("127.0.0.1:1",), key.public, b"\x07" * 32, ("/ip4/127.0.0.1/tcp/9/p2p/QmPeer",), invitation="secret")


def test_a_ticket_is_shown_without_its_secret(ticket: Ticket) -> None:
    facts = json.loads(run("ticket", "show", ticket.encode(), "--json"))
    assert facts["run_id"] == "run-1" and facts["coordinator_addresses"] == ["127.0.0.1:1"]
    assert facts["tls_sha256"] == "07" * 32 and facts["invitation"] is True
    lines = run("ticket", "show", ticket.encode())
    assert "run-1" in lines and "secret" not in lines


def test_the_status_of_a_run_that_is_down_says_so(ticket: Ticket) -> None:
    assert fails("status", ticket.encode(), "--timeout", "2").code is Code.COORDINATOR_UNREACHABLE


def test_the_shipped_codec_is_shown() -> None:
    facts = json.loads(run("codec", "show", "--json"))
    assert facts["sample_rate"] == 16000 and facts["n_codebooks"] == 8
    assert facts["bits_per_second"] == 8 * 8 * facts["frame_rate"]
    assert "16000" in run("codec", "show")


def test_a_codec_that_is_none_is_refused(tmp_path: Path) -> None:
    assert fails("codec", "show", str(tmp_path)).code is Code.CODEC_UNREADABLE


def test_training_a_codec_needs_folders_of_recordings(tmp_path: Path) -> None:
    error = fails("codec", "train", str(tmp_path / "none"), "--out", str(tmp_path / "codec"))
    assert error.code is Code.CORPUS_UNREADABLE and not (tmp_path / "codec").exists()


def test_tokenising_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "data"), "--key", str(tmp_path / "key"))
    assert fails("tokenize", str(tmp_path / "none"), "-l", "en-US", *out).code is Code.CORPUS_UNREADABLE
    assert fails("tokenize", str(tmp_path), "-l", "JP", *out).code is Code.LANGUAGE_REFUSED
    assert fails("tokenize", str(tmp_path), "-l", "en-US", "--codebooks", "99", *out).code is Code.OPTION_INVALID


def test_saying_something_needs_an_export(tmp_path: Path) -> None:
    error = fails("say", "hello", "--checkpoint", str(tmp_path), "--out", str(tmp_path / "x.wav"))
    assert error.code is Code.CHECKPOINT_INVALID and not (tmp_path / "x.wav").exists()


def test_a_coordinator_names_the_key_that_its_run_file_must_not_have(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nid = "a"\n[model]\npreset = "test"\nstage = 2\n')
    error = fails("coordinator", str(path), "--state-dir", str(tmp_path / "state"))
    assert error.code is Code.RUN_FILE_UNKNOWN_KEY and "model.stages" in error.detail
    assert fails("coordinator", str(tmp_path / "none.toml")).code is Code.RUN_FILE_UNREADABLE
