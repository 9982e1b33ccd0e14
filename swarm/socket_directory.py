"""Where a libp2p daemon and we have our sockets."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from common.files import disk_error

MAX_SOCKET_PATH_BYTES = 107  # of 108, with a closing zero
LONGEST_SOCKET_NAME = "p2pclient-01234567890.sock"


class SocketDirectory:
    """A fresh directory for our sockets in the state directory; what an earlier process left there when it was killed goes.

    Where its path is too long for a socket, the sockets are named through our open descriptor of it, which the daemon, a
    process of the same user, can follow too.
    """

    def __init__(self, state_dir: Path) -> None:
        self._place = state_dir.resolve() / "sockets"
        self._descriptor: int | None = None
        try:
            self.remove()
            self._place.mkdir(parents=True, mode=0o700)
            self.path = self._place
            if len(os.fsencode(self.path / LONGEST_SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES:
                self._descriptor = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY)
                self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        except OSError as error:
            raise disk_error(error, self._place) from error

    def remove(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
