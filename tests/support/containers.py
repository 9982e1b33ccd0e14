"""Runs an image's commands as a compose file asks, without a Docker engine: namespaces, a read-only root, no rights."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from image_build import Image, merged


class Container:
    """One service.

    Args:
        image: built. mounts: of the host, by place, with whether they are read-only.
        hosts: names that it can look up. folder: for its parts on the host.
        within: a command that starts another in the network it shall have.
    """

    def __init__(
        self,
        image: Image,
        mounts: Mapping[str, tuple[Path, bool]],
        hosts: Mapping[str, str],
        folder: Path,
        within: tuple[str, ...],
    ) -> None:
        self._image = image
        self._mounts = mounts
        self._folder = folder
        self._within = within
        self._process: asyncio.subprocess.Process | None = None
        engine = folder / "engine"  # as an engine does: names, and places for what is mounted
        for place in ("/etc", *mounts):
            (engine / place.lstrip("/")).mkdir(parents=True)
        (engine / "etc" / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
        self._root = merged((folder / "engine", *image.layers), folder / "root")
        self.log = folder / "log"

    def __enter__(self) -> Container:
        self._place = self._root.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._root.__exit__(None, None, None)

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    def _as_user(self, command: tuple[str, ...]) -> str:
        """A shell command that enters the root and gives up all rights."""
        uid, gid = self._image.user.split(":")
        bare = ("setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs", "--bounding-set=-all",
                "--inh-caps=-all")  # fmt: skip
        inner = f"cd {self._image.folder} && exec {shlex.join((*bare, *command))}"
        return f"exec chroot {self._place} /bin/sh -c {shlex.quote(inner)}"

    async def start(self, command: list[str]) -> asyncio.subprocess.Process:
        """Start the entry point with a command; the process's only child is the container's first process."""
        root = self._place
        lines = ["set -e", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        lines.append(f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp")
        for place, (path, read_only) in self._mounts.items():
            lines.append(f"mount --bind {path} {root}{place}")
            if read_only:
                lines.append(f"mount -o remount,bind,ro {root}{place}")
        script = "\n".join([*lines, self._as_user((*self._image.entrypoint, *command))])
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._within, "unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script,
                env=dict(self._image.env), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        return self._process

    def _first(self) -> int:
        """The container's process 1, by the host's number; ProcessLookupError when there is none yet or any more."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            raise ProcessLookupError
        return int(children[0])

    async def inside(self, *command: str) -> tuple[int, str]:
        """Run a command beside, as `docker exec` does; its status and output."""
        target = str(self._first())
        process = await asyncio.create_subprocess_exec(
            "nsenter", "--target", target, "--mount", "--pid", "--net", "--", "/bin/sh", "-c", self._as_user(command),
            env=dict(self._image.env), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    async def healthy(self) -> tuple[int, str]:
        """What the image's health check says."""
        return await self.inside(*self._image.health)

    async def stop(self, limit_s: float) -> int | None:
        """Ask it to stop as `docker stop` does; its status, None when it had to be killed."""
        os.kill(self._first(), signal.SIGTERM)
        try:
            async with asyncio.timeout(limit_s):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            return None

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
