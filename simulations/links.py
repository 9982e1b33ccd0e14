"""A network for each worker of a cluster, so that one can be cut off while its process goes on.

Every worker runs in a network namespace of its own, joined by a virtual cable to a bridge in one more namespace, the hub, in
which the coordinator runs. A cut takes the cable down: nothing that was sent arrives, in either direction, and nobody is told.
The namespaces have no names and no way out, and each goes with its last process; the hub's holder ends with its standard input,
which is ours, so nothing is left behind however this process ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from common.errors import Code, HocketError

logger = logging.getLogger(__name__)

TOOLS = ("ip", "nsenter", "unshare")
BRIDGE = "hub"
ENTER_S = 10.0
POLL_S = 0.02
BRIDGE_MAC = "02:00:00:00:00:01"
"""Given, since a bridge takes the lowest of its cables' own otherwise, and so another one, unknown to all, when a cable goes."""
PREFIX_BITS = 16
NETWORKS = range(64, 128)
"""Second byte of 10.N.0.0/16, private by RFC 1918."""


@dataclass(frozen=True)
class Link:
    """The place of one worker. Args: address: IPv4, by which the others reach it. cable: the hub's end."""

    address: str
    cable: str


async def _run(*command: str, text: str = "") -> str:
    """Run a command; its output. NETWORK_REFUSED with its last word when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, fault = await process.communicate(text.encode())
    if process.returncode != 0:
        last = fault.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
        raise HocketError(Code.NETWORK_REFUSED, f"{command[0]}: {last[0]}")
    return output.decode()


def namespace(pid: int) -> str:
    """The network namespace of a process, by the kernel's name; empty when the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Links:
    """The networks of one cluster. A context manager; `create` makes it.

    Args:
        holder: keeps the hub's namespace. network: N of 10.N.0.0/16.
    """

    def __init__(self, holder: asyncio.subprocess.Process, network: int) -> None:
        self._holder = holder
        self._network = network
        self._given = 0

    @classmethod
    async def create(cls) -> Links:
        """Make the hub and a cable to it from here.

        Raises:
            HocketError: NETWORK_REFUSED when a tool is missing, or this process may not make networks.
        """
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise HocketError(Code.NETWORK_REFUSED, f"there is no command {missing[0]} here")
        taken = {line.split()[3].split("/")[0] for line in (await _run("ip", "-4", "-o", "addr")).splitlines()}
        free = [number for number in NETWORKS if not any(address.startswith(f"10.{number}.") for address in taken)]
        if not free:
            raise HocketError(Code.NETWORK_REFUSED, f"every network 10.{NETWORKS[0]}.0.0/16 and above is taken here")
        network = free[os.getpid() % len(free)]
        holder = await asyncio.create_subprocess_exec(
            "unshare", "--net", "--", "cat",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        links = cls(holder, network)
        try:
            await links._inside(holder)
            await links._in_hub(
                f"link set lo up\nlink add {BRIDGE} address {BRIDGE_MAC} type bridge\n"
                f"addr add {links.hub}/{PREFIX_BITS} dev {BRIDGE}\n"
                f"link set {BRIDGE} up\n"
            )
            ours = links.outside
            await _run("ip", "link", "add", ours, "type", "veth", "peer", "name", "outside", "netns", str(holder.pid))
            await links._in_hub(f"link set outside master {BRIDGE} up\n")
            await _run("ip", "-batch", "-", text=f"addr add 10.{network}.0.2/{PREFIX_BITS} dev {ours}\nlink set {ours} up\n")
        except BaseException:
            await links.close()
            raise
        return links

    async def __aenter__(self) -> Links:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def hub(self) -> str:
        """The hub's address, on which the coordinator listens."""
        return f"10.{self._network}.0.1"

    @property
    def outside(self) -> str:
        """The name of our own end of the cable to the hub."""
        return f"hk{os.getpid()}n{self._network}"

    @property
    def within_hub(self) -> tuple[str, ...]:
        """A command that starts another inside the hub, under the same pid."""
        return ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--")

    @property
    def within_new(self) -> tuple[str, ...]:
        """A command that starts another in a network of its own, which `attach` joins to the hub, under the same pid."""
        return ("unshare", "--net", "--")

    def reserve(self) -> Link:
        """A place for one more worker."""
        number = self._given
        self._given += 1
        return Link(f"10.{self._network}.{1 + number // 250}.{1 + number % 250}", f"cable{number}")

    async def attach(self, link: Link, process: asyncio.subprocess.Process) -> None:
        """Join the network of a process, started by `within_new`, to the hub.

        Raises:
            HocketError: NETWORK_REFUSED, CHILD_FAILED when the process has ended.
        """
        await self._inside(process)
        await self._in_hub(
            f"link add {link.cable} type veth peer name eth0 netns {process.pid}\nlink set {link.cable} master {BRIDGE} up\n"
        )
        await _run(
            "nsenter", f"--net=/proc/{process.pid}/ns/net", "--", "ip", "-batch", "-",
            text=f"link set lo up\naddr add {link.address}/{PREFIX_BITS} dev eth0\nlink set eth0 up\n",
        )  # fmt: skip

    async def cut(self, link: Link) -> None:
        """Take the cable down. NETWORK_REFUSED when it is gone with its worker."""
        await self._in_hub(f"link set {link.cable} down\n")

    async def mend(self, link: Link) -> None:
        """Take the cable up again. NETWORK_REFUSED when it is gone with its worker."""
        await self._in_hub(f"link set {link.cable} up\n")

    async def _in_hub(self, batch: str) -> None:
        await _run(*self.within_hub, "ip", "-batch", "-", text=batch)

    async def _inside(self, process: asyncio.subprocess.Process) -> None:
        """Wait until a process that was started in a network of its own has entered it."""
        ours = namespace(os.getpid())
        try:
            async with asyncio.timeout(ENTER_S):
                while process.returncode is None and namespace(process.pid) in ("", ours):
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise HocketError(Code.NETWORK_REFUSED, f"no network of its own after {ENTER_S:.0f} s") from error
        if process.returncode is not None:
            fault = (await process.stderr.read()).decode(errors="replace").strip() if process.stderr is not None else ""
            raise HocketError(Code.NETWORK_REFUSED, fault or f"a process ended with {process.returncode} before it had one")

    async def close(self) -> None:
        """Let the hub go: its holder ends with its input. The others' networks go with their processes."""
        if Path("/sys/class/net", self.outside).exists():  # it would go with the hub, but some time later
            await _run("ip", "link", "del", self.outside)
        if self._holder.stdin is not None:
            self._holder.stdin.close()
        await self._holder.wait()
