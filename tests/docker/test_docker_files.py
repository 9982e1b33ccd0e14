"""The files in docker/: what linters say, what Docker Compose reads, and that they agree with the software they start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docker_files import HAVE_TOOLS, ROOT, TOOLS, WITHOUT_TOOLS, compose, ignore_patterns, is_ignored, lineage, stages
from typer.main import get_command

from cli.main import app
from coordinator.peer_addresses import announced_multiaddrs, listen_multiaddr
from coordinator.run_config import RunConfig

DOCKER = ROOT / "docker"
IMAGES = ("coordinator", "worker-cpu", "worker-cuda")
WORKERS = ("worker-1", "worker-2", "worker-3")
with_tools = pytest.mark.skipif(not HAVE_TOOLS, reason=WITHOUT_TOOLS)


def services(*files: str, **more: str) -> dict[str, Any]:
    answer = compose(*files, environment={"PATH": os.environ["PATH"], "HOCKET_RUN": "/somewhere/my-run", **more})
    assert answer.returncode == 0, answer.stderr
    read: dict[str, Any] = json.loads(answer.stdout)
    return read


# ---- the Dockerfile ------------------------------------------------------------------------------------------------------


@with_tools
def test_the_linters_find_nothing() -> None:
    for command in (
        [TOOLS / "hadolint", "--config", DOCKER / ".hadolint.yaml", DOCKER / "Dockerfile"],
        [TOOLS / "shellcheck", DOCKER / "entrypoint.sh"],
    ):
        answer = subprocess.run(command, capture_output=True, text=True)
        assert (answer.returncode, answer.stdout) == (0, ""), answer.stdout + answer.stderr


@with_tools
def test_bases_are_pinned_by_digest_and_nothing_is_fetched_but_packages() -> None:
    arguments, found = stages(DOCKER / "Dockerfile")
    assert set(IMAGES) <= set(found)
    for stage in found.values():
        if stage.base not in found:
            base = arguments[stage.base.strip("${}")]
            assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", base), base
        for one in stage.instructions:
            assert one.name != "ADD"
            if one.name == "RUN":
                assert "curl" not in one.value[0] and "wget" not in one.value[0]
                if "pip install" in one.value[0]:
                    assert "--constraint constraints.txt" in one.value[0] or "--no-deps --no-build-isolation" in one.value[0]


@with_tools
@pytest.mark.parametrize("image", IMAGES)
def test_an_image_ends_without_root_with_a_health_check_a_state_volume_and_no_command(image: str) -> None:
    _, found = stages(DOCKER / "Dockerfile")
    last = {
        name: one for stage in lineage(found, image) for one in stage.instructions
        if (name := one.name) in ("USER", "ENTRYPOINT", "CMD", "HEALTHCHECK", "STOPSIGNAL")
    }  # fmt: skip
    assert last["USER"].value == ("10001:10001",)
    assert last["ENTRYPOINT"].value == ("tini", "--", "hocket-entrypoint") and last["ENTRYPOINT"].json
    assert last["CMD"].value == () and last["CMD"].json
    assert last["HEALTHCHECK"].value[:2] == ("CMD", "hocket")
    instructions = [one for stage in lineage(found, image) for one in stage.instructions]
    volumes = [path for one in instructions if one.name == "VOLUME" for path in one.value]
    assert "/state" in volumes and ("/ticket" in volumes) == (image == "coordinator")


def test_without_a_command_a_container_starts_nothing_and_says_so(tmp_path: Path) -> None:
    stand_in = tmp_path / "hocket"
    stand_in.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    entry = DOCKER / "entrypoint.sh"
    nothing = subprocess.run([entry], capture_output=True, text=True, env=environment)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.startswith("This image starts nothing by itself.")
    something = subprocess.run([entry, "say", "two words"], capture_output=True, text=True, env=environment)
    assert (something.returncode, something.stdout) == (0, "say|two words|")
    # What it proposes is what the command line takes.
    proposed = re.findall(r"^  ((?:worker|coordinator|status) .*?)(?:   .*)?$", nothing.stderr, re.MULTILINE)
    assert [parse(line.split())["state_dir"] for line in proposed[:2]] == [Path("/state")] * 2
    assert parse(proposed[2].split())["ticket"] == "TICKET"


# ---- the build context ---------------------------------------------------------------------------------------------------


def test_the_build_context_holds_the_packages_and_no_secret() -> None:
    patterns = ignore_patterns()
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for package in described["tool"]["setuptools"]["packages"]:
        assert not is_ignored(f"{package.replace('.', '/')}/__init__.py", patterns), package
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "docker/entrypoint.sh", "docker/requirements.py"):
        assert not is_ignored(name, patterns) and (ROOT / name).exists(), name
    for name in (
        ".git/config", ".venv/bin/python", "worker-state/member.key", "coordinator-state/tls.key", "demo-out/ticket.txt",
        "my-run/run.toml", "tests/conftest.py", "docker/compose.yaml", ".env", "cli/__pycache__/main.pyc",
    ):  # fmt: skip
        assert is_ignored(name, patterns), name


@with_tools
def test_what_the_dockerfile_copies_is_in_the_build_context() -> None:
    patterns = ignore_patterns()
    _, found = stages(DOCKER / "Dockerfile")
    for stage in found.values():
        for one in stage.instructions:
            if one.name == "COPY" and not any(flag.startswith("--from") for flag in one.flags):
                for source in one.value[:-1]:
                    assert source == "." or ((ROOT / source).exists() and not is_ignored(source, patterns)), source


def test_the_requirements_are_those_of_the_project() -> None:
    command = [sys.executable, DOCKER / "requirements.py", ROOT / "pyproject.toml", "ipfs"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert printed == [
        *described["build-system"]["requires"], *described["project"]["dependencies"],
        *described["project"]["optional-dependencies"]["ipfs"],
    ]  # fmt: skip
    wrong = subprocess.run([*command, "no-such-extra"], capture_output=True, text=True)
    assert wrong.returncode != 0 and "no-such-extra" in wrong.stderr


# ---- the compose file ----------------------------------------------------------------------------------------------------


def parse(words: list[str]) -> dict[str, Any]:
    """The options that our command line reads from a command; fails as it would."""
    group = get_command(app)
    assert hasattr(group, "commands")
    command = group.commands[words[0]]
    return command.make_context(words[0], list(words[1:])).params  # type: ignore[no-any-return]


@with_tools
def test_the_folder_of_the_run_must_be_named() -> None:
    answer = compose("compose.yaml", environment={"PATH": os.environ["PATH"]})
    assert answer.returncode != 0 and "HOCKET_RUN" in answer.stderr


@with_tools
def test_every_service_is_confined() -> None:
    read = services("compose.yaml")
    assert set(read["services"]) == {"coordinator", *WORKERS, "kubo"}
    for name, one in read["services"].items():
        assert one["read_only"] and one["cap_drop"] == ["ALL"] and one["security_opt"] == ["no-new-privileges:true"], name
        assert one["restart"] == ("on-failure" if name in WORKERS else "unless-stopped"), name
        assert not one.get("privileged") and not one.get("cap_add") and one.get("network_mode") is None, name
        assert one.get("user", "") not in ("0", "root", "0:0") and one["pids_limit"] > 0, name
        writable = [mount for mount in one["volumes"] if not mount.get("read_only")]
        assert all(mount["type"] == "volume" for mount in writable), name


@with_tools
def test_only_the_coordinators_two_ports_are_published() -> None:
    read = services("compose.yaml")
    published = {(name, port["target"]) for name, one in read["services"].items() for port in one.get("ports", [])}
    assert published == {("coordinator", 7700), ("coordinator", 7701)}
    config, _ = RunConfig.load(DOCKER / "run.toml")
    assert config.network.port == 7700
    assert listen_multiaddr(config.network, []) == "/ip4/0.0.0.0/tcp/7701"
    assert announced_multiaddrs(config.network) == ["/dns/coordinator/tcp/7701"]


@with_tools
def test_the_nodes_rpc_is_reached_by_the_coordinator_only() -> None:
    read = services("compose.yaml")
    networks = {name: set(one["networks"]) for name, one in read["services"].items()}
    config, _ = RunConfig.load(DOCKER / "run.toml")
    assert config.ipfs.rpc == "http://kubo:5001"
    assert {name for name, joined in networks.items() if joined & networks["kubo"]} == {"coordinator", "kubo"}
    assert re.search(r"^ipfs/kubo:v[\d.]+@sha256:[0-9a-f]{64}$", read["services"]["kubo"]["image"])


@with_tools
def test_each_worker_has_its_own_state_and_reads_the_ticket_that_the_coordinator_writes() -> None:
    read = services("compose.yaml", HOCKET_THREADS="3")
    config, _ = RunConfig.load(DOCKER / "run.toml")
    assert config.model.stages == len(WORKERS)
    coordinator = read["services"]["coordinator"]
    options = parse(coordinator["command"])
    assert (str(options["run_toml"]), str(options["state_dir"])) == ("/run-folder/run.toml", "/state")
    assert mounts(coordinator) == {
        "/run-folder": ("/somewhere/my-run", True), "/state": ("coordinator", False), "/ticket": ("ticket", False)
    }  # fmt: skip
    for name in WORKERS:
        one = read["services"][name]
        assert mounts(one) == {"/state": (name, False), "/ticket": ("ticket", True)}
        assert one["depends_on"]["coordinator"]["condition"] == "service_healthy"
        wanted = parse(one["command"])
        assert wanted["ticket_from"] == str(options["ticket_to"]) and str(wanted["state_dir"]) == "/state"
        assert (wanted["threads"], wanted["listen"]) == (3, ["/ip4/0.0.0.0/tcp/7702"])


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {mount["target"]: (mount["source"], mount.get("read_only", False)) for mount in service["volumes"]}


@with_tools
def test_with_cuda_the_workers_alone_change_and_get_the_cards() -> None:
    plain, cuda = services("compose.yaml")["services"], services("compose.yaml", "compose.cuda.yaml")["services"]
    for name, one in cuda.items():
        if name not in WORKERS:
            assert one == plain[name]
            continue
        assert one["build"]["target"] == "worker-cuda" and one["image"] == "hocket-worker:cuda"
        [device] = one["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"] and device["driver"] == "nvidia"
        same = set(one) - {"build", "image", "deploy"}
        assert {key: one[key] for key in same} == {key: plain[name][key] for key in same}


@with_tools
@pytest.mark.parametrize("image", IMAGES)
def test_health_checks_are_commands_of_ours(image: str) -> None:
    _, found = stages(DOCKER / "Dockerfile")
    [check] = [one for stage in lineage(found, image) for one in stage.instructions if one.name == "HEALTHCHECK"]
    options = parse(list(check.value[2:]))
    if image == "coordinator":
        assert options["ticket_from"] == "/ticket/ticket.txt"
    else:
        assert str(options["state_dir"]) == "/state"
