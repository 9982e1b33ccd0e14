"""`hocket key`: a worker's identity survives the loss of its machine, and nothing is overwritten."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app, understood
from common.errors import Code
from protocol.identity import MemberKey, PeerKey

runner = CliRunner()


def run(*arguments: str, typed: str = "") -> str:
    result = runner.invoke(app, ["key", *arguments], input=typed)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*arguments: str, typed: str = "") -> Code:
    result = runner.invoke(app, ["key", *arguments], input=typed)
    error = understood(result.exception) if result.exception is not None else None
    assert error is not None, result.output
    return error.code


def test_keys_go_into_a_backup_and_come_back_as_they_were(tmp_path: Path) -> None:
    state, backup, word = tmp_path / "state", tmp_path / "keys.json", tmp_path / "word"
    state.mkdir()
    member, peer = MemberKey.load_or_create(state / "member.key"), PeerKey.load_or_create(state / "peer.key")
    word.write_text("a long passphrase\nand a second line\n")
    run("backup", "--out", str(backup), "--state-dir", str(state), "--passphrase-file", str(word))
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    for name in ("member.key", "peer.key"):
        assert (state / name).read_bytes() not in backup.read_bytes()
    there = tmp_path / "new"
    run("restore", str(backup), "--state-dir", str(there), typed="a long passphrase\n")
    for name in ("member.key", "peer.key"):
        assert (there / name).read_bytes() == (state / name).read_bytes()
        assert stat.S_IMODE((there / name).stat().st_mode) == 0o600
    shown = json.loads(run("show", "--state-dir", str(there), "--json"))
    assert shown == {"member_id": member.member_id, "peer_id": peer.peer_id}


def test_nothing_is_overwritten_and_a_wrong_passphrase_changes_nothing(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "keys.json"
    state.mkdir()
    MemberKey.load_or_create(state / "member.key")
    typed = "a long passphrase\na long passphrase\n"
    run("backup", "--out", str(backup), "--state-dir", str(state), typed=typed)
    before = backup.read_bytes()
    assert refusal("backup", "--out", str(backup), "--state-dir", str(state), typed=typed) is Code.OUTPUT_EXISTS
    assert backup.read_bytes() == before
    other = tmp_path / "other"
    other.mkdir()
    key = MemberKey.load_or_create(other / "member.key")
    assert refusal("restore", str(backup), "--state-dir", str(other), typed="a long passphrase\n") is Code.OUTPUT_EXISTS
    assert MemberKey.load_or_create(other / "member.key").member_id == key.member_id
    new = tmp_path / "new"
    assert refusal("restore", str(backup), "--state-dir", str(new), typed="another passphrase\n") is Code.IDENTITY_UNREADABLE
    assert not (new / "member.key").exists()


def test_mistakes_are_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert refusal("show", "--state-dir", str(state)) is Code.IDENTITY_UNREADABLE
    assert not state.exists(), "looking makes no key"
    state.mkdir()
    MemberKey.load_or_create(state / "member.key")
    short = ("backup", "--out", str(tmp_path / "keys"), "--state-dir", str(state))
    assert refusal(*short, typed="short\nshort\n") is Code.OPTION_INVALID
    assert refusal(*short, "--passphrase-file", str(tmp_path / "none")) is Code.OPTION_INVALID
