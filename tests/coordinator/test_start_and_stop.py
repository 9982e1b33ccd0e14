"""Starting, refusing to start, and what the core needs to run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from common.errors import Code, HocketError
from common.faults import NO_FAULTS
from common.lock import locked
from coordinator import tls
from coordinator.audit_secret import AuditSecrets
from coordinator.auditing import Auditing
from coordinator.children import Child, run_once
from coordinator.dataset import import_dataset
from coordinator.journal import Journal
from coordinator.run_config import NetworkSection, RunConfig
from coordinator.server import Coordinator
from coordinator.start import found
from coordinator.versions import Versions
from protocol.generated import hocket_pb2 as pb
from swarm.blocks import BlockStore

IMPORTS = """
import sys
import coordinator.server
heavy = sorted(name for name in ("torch", "hivemind", "transformers", "pyarrow", "scipy") if name in sys.modules)
print(",".join(heavy))
"""


def test_the_core_imports_neither_torch_nor_hivemind() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


@pytest.mark.timeout(240)
def test_one_life_of_a_coordinator(scripted: SimpleNamespace) -> None:
    """Plain text, a kill of its bootstrap peer, memory, one owner of the state directory, a changed run file, same port."""
    scripted.prepare(count=1, replicas=1, evaluate="false", tls="false", silence=60)
    process = scripted.start()
    ticket = process.ticket()
    assert ticket.tls_sha256 == b"" and len(ticket.bootstrap_multiaddrs) >= 1
    with pytest.raises(HocketError) as caught, locked(scripted.state_dir):
        raise AssertionError("not reached")
    assert caught.value.code is Code.STATE_LOCKED

    async def run() -> None:
        world = await scripted.gather(ticket, 2)
        await scripted.go_on(world, lambda view: view.phase == pb.FINISHED)
        (provider,) = world.members[0].view.providers
        assert any(address.startswith("/ip4/127.0.0.1/tcp/") for address in provider.multiaddrs)
        assert pss_bytes(process.pid) < 300 * 2**20
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        # It comes back under the same identity and address: the ticket is the same below.
        while process.log.read_text().count("the bootstrap peer is up") < 2:
            assert process.running()
            await asyncio.sleep(0.2)
        assert "restart 1 of" in process.log.read_text()
        await world.members[0].watch(0.0)

    asyncio.run(run())
    assert process.terminate() == 0
    again = scripted.start()
    assert again.ticket() == ticket
    again.kill()
    text = (scripted.folder / "run.toml").read_text()
    (scripted.folder / "run.toml").write_text(text.replace("inner_lr = 0.01", "inner_lr = 0.02"))
    with pytest.raises(HocketError) as caught:
        start_here(scripted.folder)
    assert caught.value.code is Code.RUN_FILE_INVALID and "scripted" in caught.value.detail


def start_here(folder: Path, state: str = "state") -> None:
    config, text = RunConfig.load(folder / "run.toml")
    with locked(folder / state):
        coordinator = Coordinator(config, text, folder, folder / state, NO_FAULTS)
        asyncio.run(coordinator.run(exit_when_finished=True, linger_s=0))


def test_bad_starts_are_one_numbered_line(scripted: SimpleNamespace) -> None:
    scripted.prepare()
    run_toml, dataset = scripted.folder / "run.toml", scripted.folder / "dataset"
    text = run_toml.read_text()

    def fault(number: int) -> HocketError:
        with pytest.raises(HocketError) as caught:
            start_here(scripted.folder, f"state-{number}")
        return caught.value

    run_toml.write_text(text.replace('preset = "test"', 'preset = "huge"'))
    assert fault(1).code is Code.MODEL_CONFIG_INVALID
    run_toml.write_text(text.replace('manifest = "dataset"', 'manifest = "elsewhere"'))
    assert fault(2).code is Code.RUN_FILE_INVALID
    run_toml.write_text(text.replace('manifest = "dataset"', 'manifest = "dataset"\nlanguages = ["de"]'))
    assert fault(3).code is Code.RUN_FILE_INVALID
    run_toml.write_text(text)
    (dataset / "shards" / "1.parquet").write_bytes(b"changed")
    assert fault(4).code is Code.SHARD_DAMAGED
    manifest = dataset / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"scripted"', b'"tampered"'))
    assert fault(5).code is Code.MANIFEST_INVALID


@pytest.mark.parametrize("change", ["json='{bad'", "json='{}'", "json='[]'", "kind='unheard-of'"])
def test_a_damaged_event_is_one_numbered_line(scripted: SimpleNamespace, change: str) -> None:
    scripted.prepare()
    folder = scripted.folder / "state"
    folder.mkdir()
    journal = Journal(folder / "journal.sqlite", NO_FAULTS)
    for port in (1, 2, 3):
        journal.append("listening", 1.0, {"port": port})
    journal.close()
    with contextlib.closing(sqlite3.connect(folder / "journal.sqlite")) as database, database:
        database.execute(f"UPDATE events SET {change} WHERE seq=2")
    with pytest.raises(HocketError) as caught:
        start_here(scripted.folder)
    assert caught.value.code is Code.STATE_UNREADABLE and "event 2 " in caught.value.detail and "backup" in caught.value.line()


def test_a_taken_port_is_named(scripted: SimpleNamespace) -> None:
    scripted.prepare()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = (scripted.folder / "run.toml").read_text()
        config = RunConfig.parse(text.replace("[network]", f'[network]\nlisten = "127.0.0.1:{port}"'))

        async def run() -> None:
            coordinator = Coordinator(config, text, scripted.folder, scripted.state_dir, NO_FAULTS)
            found(coordinator._core, config, text, scripted.folder, coordinator._store)
            core, key, store = coordinator._core, coordinator._key, coordinator._store
            versions = Versions(scripted.state_dir / "versions", store, key)
            auditing = Auditing(core, versions, store, key, AuditSecrets(key, config.run.id), scripted.state_dir)
            coordinator._server(None, auditing)

        scripted.state_dir.mkdir()
        with pytest.raises(HocketError) as caught:
            asyncio.run(run())
    assert caught.value.code is Code.PORT_TAKEN and str(port) in caught.value.detail


def test_a_dataset_is_taken_in_by_path_and_then_known_by_cid(scripted: SimpleNamespace) -> None:
    scripted.prepare()
    store = BlockStore(scripted.folder / "blocks")
    by_path = import_dataset("dataset", ("en",), store, relative_to=scripted.folder)
    assert by_path.record()["rows"] == 40 and by_path.record()["frames"] == 4000 and by_path.record()["heldout_rows"] == 20
    assert import_dataset(by_path.cid, (), store, relative_to=scripted.folder) == by_path
    assert len(by_path.pinned) == 4 and all(store.has(cid) for cid in by_path.pinned)
    with pytest.raises(HocketError) as caught:
        import_dataset(by_path.cid, (), BlockStore(scripted.folder / "empty"), relative_to=scripted.folder)
    assert caught.value.code is Code.BLOCK_NOT_FOUND


# ---- certificate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "train.example.org"])
def test_a_certificate_is_made_once_for_localhost_and_the_host(tmp_path: Path, host: str) -> None:
    made = tls.load_or_create(tmp_path, host)
    assert tls.load_or_create(tmp_path, host) == made
    assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600
    assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(made.pem.decode())).digest() == made.sha256
    names = x509.load_pem_x509_certificate(made.pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert host in [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def test_a_certificate_names_every_host_in_the_ticket(tmp_path: Path) -> None:
    advertised = ["coordinator:7700", "192.0.2.7:80", "[2001:db8::1]:7700", "coordinator:1"]
    network = NetworkSection(listen="0.0.0.0:7700", advertise=tuple(advertised))
    made = tls.load_or_create(tmp_path, *network.hosts)
    names = x509.load_pem_x509_certificate(made.pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "coordinator"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["0.0.0.0", "192.0.2.7", "2001:db8::1"]


def test_a_damaged_or_open_key_is_refused(tmp_path: Path) -> None:
    tls.load_or_create(tmp_path, "localhost")
    (tmp_path / "tls.key").chmod(0o644)
    with pytest.raises(HocketError) as caught:
        tls.load_or_create(tmp_path, "localhost")
    assert caught.value.code is Code.IDENTITY_UNREADABLE
    (tmp_path / "tls.key").chmod(0o600)
    other = tmp_path / "other"
    tls.load_or_create(other, "localhost")
    (tmp_path / "tls.key").write_bytes((other / "tls.key").read_bytes())
    with pytest.raises(HocketError) as caught:
        tls.load_or_create(tmp_path, "localhost")
    assert caught.value.code is Code.IDENTITY_UNREADABLE
    (tmp_path / "tls.pem").write_text("nonsense")
    with pytest.raises(HocketError) as caught:
        tls.load_or_create(tmp_path, "localhost")
    assert caught.value.code is Code.IDENTITY_UNREADABLE


# ---- children ------------------------------------------------------------------------------------------------------------


def test_a_child_that_fails_is_one_line_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('it broke', file=sys.stderr); sys.exit(3)"]
    with pytest.raises(HocketError) as caught:
        asyncio.run(run_once(command, tmp_path / "log"))
    assert caught.value.code is Code.CHILD_FAILED and "status 3" in caught.value.detail and "it broke" in caught.value.detail


CHILD = """
import json, os, sys
print(json.dumps({"pid": os.getpid()}), flush=True)
sys.stdin.read() if sys.argv[1] == "stay" else None
"""


def test_a_child_is_restarted_a_bounded_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.children.FIRST_PAUSE_S", 0.001)
    ready: list[dict[str, Any]] = []

    async def run() -> None:
        child = Child("a child", lambda: [sys.executable, "-c", CHILD, "go"], tmp_path / "log", ready.append)
        await child.supervise()

    with pytest.raises(HocketError) as caught:
        asyncio.run(run())
    assert caught.value.code is Code.CHILD_FAILED
    assert len({one["pid"] for one in ready}) == 6


def test_a_child_ends_when_its_input_closes(tmp_path: Path) -> None:
    async def run() -> None:
        child = Child("a child", lambda: [sys.executable, "-c", CHILD, "stay"], tmp_path / "log", lambda line: None)
        await child.start()
        pid = child.pid
        await child.stop()
        assert pid is not None and not Path(f"/proc/{pid}").exists()

    asyncio.run(run())


def test_what_a_child_says_later_is_passed_on_and_noise_is_not(tmp_path: Path) -> None:
    said: list[tuple[int, dict[str, Any]]] = []
    words = "print('{}'); print('noise'); print('[1]'); print('x' * 200000); print('{\"block_bytes_sent\": 7}', flush=True)"

    async def run() -> None:
        heard = asyncio.Event()

        def hear(pid: int, word: dict[str, Any]) -> None:
            said.append((pid, word))
            heard.set()

        command = [sys.executable, "-c", f"import sys; {words}; sys.stdin.read()"]
        child = Child("a child", lambda: command, tmp_path / "log", lambda line: None, hear)
        await child.start()
        watching = asyncio.create_task(child.supervise())
        async with asyncio.timeout(30):
            await heard.wait()
        assert said == [(child.pid, {"block_bytes_sent": 7})]
        watching.cancel()
        await asyncio.wait({watching})
        await child.stop()

    asyncio.run(run())


@pytest.mark.parametrize("words", ["print('not json')", "print(json.dumps([1]))", "pass"])
def test_a_child_that_does_not_come_up_is_an_error(tmp_path: Path, words: str) -> None:
    async def run() -> None:
        command = [sys.executable, "-c", f"import json; {words}"]
        await Child("a child", lambda: command, tmp_path / "log", lambda line: None).start()

    with pytest.raises(HocketError) as caught:
        asyncio.run(run())
    assert caught.value.code is Code.CHILD_FAILED and json.dumps("a child")[1:-1] in caught.value.detail
