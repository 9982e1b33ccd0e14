"""What a killed process left half-written goes when the folder has an owner again; nothing else does."""

from __future__ import annotations

from pathlib import Path

from common.files import atomic_write, remove_leftovers
from common.lock import locked
from common.writer import temporary_of


def test_half_written_files_go_at_the_start(tmp_path: Path) -> None:
    atomic_write(tmp_path / "blocks" / "aa" / "whole", b"1")
    (tmp_path / "blocks" / "aa" / ".whole.x1_y2z3w.part").write_bytes(b"h")
    temporary_of(tmp_path / "model").write_bytes(b"ha")
    for name in (".hidden", "update.part", ".part.txt"):
        (tmp_path / name).write_bytes(b"kept")
    with locked(tmp_path):
        found = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert found == [".hidden", ".part.txt", "lock", "update.part", "whole"]
    assert remove_leftovers(tmp_path) == 0
