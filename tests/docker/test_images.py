"""The Dockerfile and the compose file carried out without a Docker engine: the images' own install and start commands.

A clean Debian root takes the place of the base image, and the packages come from a folder that the host's pip has filled. Each
service of ours then runs read-only, as its user, without rights, in a network of its own, until a round is trained.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from docker_files import HAVE_TOOLS, ROOT, WITHOUT_TOOLS, compose, stages

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5400)]

SUITE = "bookworm"
TOOLS = ("debootstrap", "unshare", "nsenter", "ip", "mount")
WORKERS = ("worker-1", "worker-2", "worker-3")
LIMIT_S = 900.0
EVERY_S = 2.0
GRACE_S = 30.0


def why_not() -> str:
    """Why this machine cannot carry out the images; empty if it can."""
    if not HAVE_TOOLS:
        return WITHOUT_TOOLS
    if os.geteuid() != 0:
        return "the images are built and confined by root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt install debootstrap iproute2 util-linux"
    if sys.version_info[:2] != (3, 11):
        return f"the packages are gathered by this Python for that of {SUITE}, 3.11"
    return ""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def images(work: Path) -> dict[str, Any]:
    """The coordinator's image and the worker's."""
    from image_build import Builder

    # What is fetched may be kept from run to run.
    kept = Path(os.environ.get("HOCKET_TEST_CACHE", work))
    base, wheels = kept / "debian", kept / "wheels"
    if not base.exists():
        with (work / "debootstrap.log").open("w") as log:
            subprocess.run(["debootstrap", "--variant=minbase", SUITE, base], stdout=log, stderr=log, check=True)
    if not wheels.exists():
        wanted = work / "requirements.txt"
        asks = [sys.executable, ROOT / "docker" / "requirements.py", ROOT / "pyproject.toml", "ipfs"]
        wanted.write_text(subprocess.run(asks, capture_output=True, text=True, check=True).stdout)
        gather = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*gather, "--requirement", wanted, "wheel"], check=True)
    _, found = stages(ROOT / "docker" / "Dockerfile")
    builder = Builder(
        found, ROOT, base, work / "stages", arguments={"CPU_TORCH_INDEX": ""}, shown={"/mnt/wheels": wheels},
        env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/mnt/wheels"}, log=work / "build.log",
    )  # fmt: skip
    return {name: builder.image(name) for name in ("coordinator", "worker-cpu")}


def test_the_images_are_what_they_say(images: dict[str, Any], work: Path) -> None:
    """No build tool and no source is left in them, all of it belongs to root, and they speak for themselves."""
    from containers import Container

    for name, image in images.items():
        assert image.user == "10001:10001" and image.command == ()
        with Container(image, {}, {}, work / f"look-{name}", ()) as container:
            root = work / f"look-{name}" / "root"
            assert not (root / "src").exists() and not (root / "mnt" / "wheels").exists()
            owned = subprocess.run(["find", root, "-xdev", "-uid", "10001"], capture_output=True, text=True, check=True).stdout
            assert {line.removeprefix(str(root)) for line in owned.splitlines()} == {"/state", "/ticket"}

            async def silent(container: Container = container) -> int | None:
                process = await container.start([])
                return await process.wait()

            assert asyncio.run(silent()) == 2
            assert container.log.read_text().startswith("This image starts nothing by itself.")


def test_the_compose_files_commands_train_a_round(images: dict[str, Any], work: Path) -> None:
    asyncio.run(train(images, work))


async def train(images: dict[str, Any], work: Path) -> None:
    from containers import Container

    from simulations.links import Links

    folder = run_folder(work)
    answer = compose("compose.yaml", environment={"PATH": os.environ["PATH"], "HOCKET_RUN": str(folder)})
    services: dict[str, Any] = json.loads(answer.stdout)["services"]
    async with AsyncExitStack() as undo:
        links = await undo.enter_async_context(await Links.create())

        def container(name: str, image: str, within: tuple[str, ...]) -> Container:
            mounts = {
                one["target"]: (volume(work, one), one.get("read_only", False)) for one in services[name]["volumes"]
            }
            made = Container(images[image], mounts, {"coordinator": links.hub, "localhost": "127.0.0.1"}, work / name, within)
            undo.enter_context(made)
            undo.push_async_callback(made.kill)
            return made

        coordinator = container("coordinator", "coordinator", links.within_hub)
        # The organiser's first step, with the same image.
        corpus = "/opt/hocket/lib/python3.11/site-packages/tokenizer/data/corpus-slt"
        tokenize = ["tokenize", corpus, "--language", "en-US", "--codebooks", "4", "--out", "/state/data"]
        assert await (await coordinator.start(tokenize)).wait() == 0, coordinator.log.read_text()[-2000:]
        (volume(work, {"type": "volume", "source": "coordinator"}) / "data").rename(folder / "data")

        await coordinator.start(services["coordinator"]["command"])
        await until(coordinator, lambda status, words: status == 0)
        workers = []
        for name in WORKERS:
            worker = container(name, "worker-cpu", links.within_new)
            await links.attach(links.reserve(), await worker.start(services[name]["command"]))
            workers.append(worker)
        for worker in workers:
            await until(worker, lambda status, words: status == 0 and "sign of life" in words)
        await until_trained(coordinator)
        for one in (*workers, coordinator):
            words = one.log.read_text()
            assert "No match found for server name" not in words, "the certificate lacks the name in the ticket"
            assert await one.stop(GRACE_S) == 0, words[-2000:]
        assert not any((work / "volumes" / name / "sockets").exists() for name in WORKERS)


def run_folder(work: Path) -> Path:
    """The folder that HOCKET_RUN names: the run file of docker/, of a size for a test."""
    folder = work / "my-run"
    folder.mkdir()
    text = (ROOT / "docker" / "run.toml").read_text(encoding="utf-8")
    for key, value in (("preset", '"test"'), ("count", "1000"), ("inner_steps", "4")):
        text, times = re.subn(rf"^{key} = .*?( *#.*)?$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert times == 1, key
    (folder / "run.toml").write_text(text, encoding="utf-8")
    return folder


def volume(work: Path, mount: dict[str, Any]) -> Path:
    """Where the host keeps a mount; a new volume takes over the owner of the folder that it covers, as an engine sees to."""
    if mount["type"] == "bind":
        return Path(mount["source"])
    path = work / "volumes" / str(mount["source"])
    if not path.exists():
        path.mkdir(parents=True)
        os.chown(path, 10001, 10001)
    return path


async def until(container: Any, done: Callable[[int, str], bool]) -> None:
    """Ask for its health, as an engine does, until `done`."""
    words = ""
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                assert container.process.returncode is None, container.log.read_text()[-2000:]
                try:
                    status, words = await container.healthy()
                except ProcessLookupError:
                    status, words = -1, "its first process is not there yet"
                if done(status, words):
                    return
                await asyncio.sleep(EVERY_S)
    except TimeoutError:
        pytest.fail(f"{words}\n{container.log.read_text()[-2000:]}")


async def until_trained(coordinator: Any) -> None:
    answer: dict[str, Any] = {}
    try:
        async with asyncio.timeout(LIMIT_S):
            while answer.get("version", {}).get("version", 0) < 1:
                _, words = await coordinator.inside("hocket", "status", "--ticket-from", "/ticket/ticket.txt", "--json")
                answer = json.loads(words)
                await asyncio.sleep(EVERY_S)
    except TimeoutError:
        pytest.fail(f"{answer}\n{coordinator.log.read_text()[-2000:]}")
