"""Backups of keys: what was sealed comes back, under its passphrase only, and whole or not at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code, HocketError
from protocol.key_backup import open_backup, seal_keys

FILES = {"member.key": b"one", "peer.key": bytes(range(256))}
BACKUP = seal_keys(FILES, "correct horse", {"member_id": "abc"})


def refused(data: bytes, passphrase: str = "correct horse") -> str:
    with pytest.raises(HocketError) as caught:
        open_backup(data, passphrase)
    assert caught.value.code is Code.IDENTITY_UNREADABLE
    return caught.value.detail


def test_keys_come_back_and_two_backups_share_nothing() -> None:
    assert open_backup(BACKUP, "correct horse") == (FILES, {"member_id": "abc"})
    other = json.loads(seal_keys(FILES, "correct horse", {"member_id": "abc"}))
    mine = json.loads(BACKUP)
    assert other["scrypt"]["salt"] != mine["scrypt"]["salt"] and other["nonce"] != mine["nonce"]
    assert other["sealed"] != mine["sealed"]
    assert b"one" not in BACKUP


def test_another_passphrase_does_not_open_it() -> None:
    assert "another passphrase" in refused(BACKUP, "correct horsf")


def test_what_it_says_of_itself_cannot_be_changed() -> None:
    changed = json.loads(BACKUP)
    changed["about"]["member_id"] = "abd"
    assert "damaged" in refused(json.dumps(changed).encode())


@pytest.mark.parametrize("changes", [
    {"n": 1 << 30}, {"n": 3}, {"n": 0}, {"r": 1 << 20}, {"p": 1 << 20}, {"n": "65536"}, {"n": -2}, {"p": True, "r": 0},
])  # fmt: skip
def test_a_file_that_asks_for_too_much_work_is_not_opened(changes: dict[str, object]) -> None:
    changed = json.loads(BACKUP)
    changed["scrypt"].update(changes)
    assert "work" in refused(json.dumps(changed).encode())


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["format", "about", "scrypt", "nonce", "sealed", "x"]), inner, max_size=5), max_leaves=8,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
@settings(max_examples=100)
def test_anything_else_is_refused_in_order(data: bytes) -> None:
    refused(data)


def test_too_much_is_not_read() -> None:
    assert "large" in refused(bytes(1 << 20))
