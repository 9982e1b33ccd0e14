"""Where the bytes of a recording lie: a file, or a part of one, such as a member of a tar that is never unpacked."""

from __future__ import annotations

import io
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from common.errors import Code, HocketError


@dataclass(frozen=True, slots=True)
class AudioSource:
    """The bytes of one recording.

    Args:
        path: of the file that holds them.
        offset: of the first byte. size_bytes: how many there are; None: to the end of the file.
        name: what messages call the recording; the path when empty.
    """

    path: Path
    offset: int = 0
    size_bytes: int | None = None
    name: str = ""

    @property
    def title(self) -> str:
        """The name for people; bytes of a file name that are not UTF-8 are written as escapes."""
        return (self.name or str(self.path)).encode(errors="backslashreplace").decode()

    @property
    def is_whole_file(self) -> bool:
        return self.offset == 0 and self.size_bytes is None

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {**asdict(self), "path": str(self.path)}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> AudioSource:
        return AudioSource(**{**fields, "path": Path(fields["path"])})

    def open(self) -> BinaryIO:
        """A seekable, read-only stream of these bytes alone.

        Raises:
            HocketError: AUDIO_UNREADABLE.
        """
        try:
            if not self.path.is_file():
                what = "is a folder" if self.path.is_dir() else "is no file"
                raise HocketError(Code.AUDIO_UNREADABLE, f"{self.title} {what}", remedy="name a recording that exists")
            file = self.path.open("rb")
        except OSError as error:
            detail = f"{self.title} ({error.strerror})"
            raise HocketError(Code.AUDIO_UNREADABLE, detail, remedy="check its name and rights") from error
        if self.is_whole_file:
            return file
        available = max(0, os.fstat(file.fileno()).st_size - self.offset)
        size = available if self.size_bytes is None else min(self.size_bytes, available)
        return cast(BinaryIO, io.BufferedReader(_Window(file, self.offset, size)))


class _Window(io.RawIOBase):
    """Bytes [offset, offset + size) of an open file, which is closed with it."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        super().__init__()
        self._file, self._offset, self._size, self._at = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = max(0, min(len(buffer), self._size - self._at))
        if wanted == 0:
            return 0
        self._file.seek(self._offset + self._at)
        data = self._file.read(wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
