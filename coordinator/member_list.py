"""The organiser's list of those who may join: a text file, read anew when it has changed."""

from __future__ import annotations

from pathlib import Path

from common.errors import Code, HocketError
from protocol.identity import public_from_member_id

MAX_BYTES = 4 << 20


def parse_members(text: str, name: str) -> dict[str, str]:
    """Operator by member id: a line holds a member id and, after white space, whose it is; `#` begins a remark.

    Raises:
        HocketError: RUN_FILE_INVALID with the number of the first line that does not fit.
    """
    members: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split(maxsplit=1)
        if not words:
            continue
        try:
            public_from_member_id(words[0])
        except HocketError as error:
            raise HocketError(Code.RUN_FILE_INVALID, f"line {number} of {name}: {error.detail}") from error
        members[words[0]] = words[1].strip() if len(words) > 1 else ""
    return members


class MemberList:
    """The file of `membership.list`.

    Args:
        path: of the file.

    Raises:
        HocketError: RUN_FILE_UNREADABLE, RUN_FILE_INVALID; at a later look as well, so that a slip lets nobody in or out unseen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._members: dict[str, str] = {}
        self()

    def __call__(self) -> dict[str, str]:
        """Operator by member id, as the file has it now."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._stamp:
                if stat.st_size > MAX_BYTES:
                    raise HocketError(Code.RUN_FILE_INVALID, f"{self._path} has {stat.st_size} bytes; {MAX_BYTES} at most")
                self._members = parse_members(self._path.read_text(encoding="utf-8"), str(self._path))
                self._stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise HocketError(Code.RUN_FILE_UNREADABLE, f"{self._path} ({error})") from error
        return self._members
