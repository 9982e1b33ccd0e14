"""A network for each worker: real namespaces, skipped where the machine does not let us make any."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from simulations.links import BRIDGE, Links, namespace

ECHO = """
import socket
server = socket.create_server(("0.0.0.0", 7000))
print("up", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100))
    connection.close()
"""


def with_links(work: Callable[[Links], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            links = await Links.create()
        except HocketError as error:
            if error.code is Code.NETWORK_REFUSED:
                pytest.skip(error.line())
            raise
        async with links:
            await work(links)

    asyncio.run(run())


async def echo(host: str, timeout_s: float = 5.0) -> bytes:
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, 7000)
        writer.write(b"hello")
        answer = await reader.read()
        writer.close()
        return answer


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_a_worker_is_reached_until_its_cable_is_cut_and_again_when_it_is_mended() -> None:
    before = interfaces()

    async def work(links: Links) -> None:
        place = links.reserve()
        process = await asyncio.create_subprocess_exec(
            *links.within_new, sys.executable, "-c", ECHO, stdout=asyncio.subprocess.PIPE
        )
        try:
            await links.attach(place, process)
            assert process.stdout is not None and await process.stdout.readline() == b"up\n"
            assert namespace(process.pid) not in ("", namespace(os.getpid()))
            assert await echo(place.address) == b"hello"
            await links.cut(place)
            with pytest.raises(TimeoutError):
                await echo(place.address, timeout_s=0.4)
            assert process.returncode is None
            await links.mend(place)
            assert await echo(place.address) == b"hello"
        finally:
            process.kill()
            await process.wait()

    with_links(work)
    assert interfaces() <= before, "a cable was left behind"


def test_places_differ_and_the_hub_is_no_place() -> None:
    async def work(links: Links) -> None:
        addresses = [links.reserve().address for _ in range(600)]
        assert len({*addresses, links.hub}) == 601
        network = links.hub.rsplit(".", 2)[0]
        assert all(address.startswith(network + ".") for address in addresses)
        assert all(1 <= int(address.split(".")[3]) <= 250 for address in addresses)

    with_links(work)


def test_a_process_that_ends_before_it_has_a_network_is_told_of() -> None:
    async def work(links: Links) -> None:
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()
        with pytest.raises(HocketError) as caught:
            await links.attach(links.reserve(), process)
        assert caught.value.code is Code.NETWORK_REFUSED

    with_links(work)


def test_without_the_commands_the_error_names_the_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HocketError, match="no command ip") as caught:
        asyncio.run(Links.create())
    assert caught.value.code is Code.NETWORK_REFUSED


def test_the_hub_keeps_its_address_when_a_worker_goes() -> None:
    """Others know it by that address: what they send to it would be lost for as long as they believe in the old one."""

    async def work(links: Links) -> None:
        seen = set()
        for _ in range(4):  # the addresses of cables are random
            process = await asyncio.create_subprocess_exec(*links.within_new, "sleep", "60")
            try:
                await links.attach(links.reserve(), process)
                seen.add(await hub_address(links))
            finally:
                process.kill()
                await process.wait()
        seen.add(await hub_address(links))
        assert len(seen) == 1

    with_links(work)


async def hub_address(links: Links) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *links.within_hub, "ip", "-o", "link", "show", BRIDGE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.partition(b"link/ether ")[2].split()[0]
