"""One coordinator process: puts the pieces together, starts in order, stops cleanly, and goes on where a killed one stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from common.clock import SteadyClock
from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from common.files import atomic_write
from common.lock import locked
from common.memory import share_arenas
from common.stop import stop_signals
from coordinator import tls
from coordinator.announcing import Announcing
from coordinator.assembly import Assembly
from coordinator.audit_secret import AuditSecrets
from coordinator.auditing import Auditing
from coordinator.cheap_refusals import CheapRefusals
from coordinator.children import Child, python_module
from coordinator.core import Core
from coordinator.door import Door
from coordinator.driver import Driver
from coordinator.entrance import Entrance
from coordinator.journal import Journal
from coordinator.listening import Listening
from coordinator.member_list import MemberList
from coordinator.nonce_file import NonceFile
from coordinator.peer_addresses import announced_multiaddrs, listen_multiaddr
from coordinator.pushing import Pushing
from coordinator.run_config import RunConfig
from coordinator.server_options import SERVER_OPTIONS, concurrent_calls
from coordinator.start import fold, found
from coordinator.status import report_parts
from coordinator.uploads import Uploads
from coordinator.versions import Versions
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc
from protocol.identity import MemberKey
from protocol.ticket import Ticket
from swarm.blocks import BlockStore

logger = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
SETTLE_S = 300.0        # in which audits that are under way at the end of a run may come to their end
TOKEN_VARIABLE = "HOCKET_PINNING_TOKEN"


def run_coordinator(
    run_toml: Path,
    state_dir: Path,
    *,
    ticket_to: Path | None = None,
    faults: Faults = NO_FAULTS,
    exit_when_finished: bool = False,
    linger_s: float = 0.0,
) -> None:
    """Run a coordinator until SIGTERM, SIGINT or SIGHUP; prints the ticket as one JSON line once members can join.

    Args:
        run_toml: the run file; after the first start it must stay as it was, but for where the coordinator is (`same_run`).
        state_dir: made when absent; everything that survives a restart is in it.
        ticket_to: a file that gets the ticket as well, for workers that may read it but not the state directory.
        exit_when_finished: stop `linger_s` after the last version was published, evaluated and listened to.

    Raises:
        HocketError: whatever a person must mend.
    """
    share_arenas()
    config, text = RunConfig.load(run_toml)
    with locked(state_dir):
        coordinator = Coordinator(config, text, run_toml.parent, state_dir, faults, ticket_to)
        asyncio.run(coordinator.run(exit_when_finished=exit_when_finished, linger_s=linger_s))


class Coordinator:
    """One start of a coordinator.

    Args:
        config, text: the run file; folder: that its paths are relative to.
    """

    def __init__(
        self, config: RunConfig, text: str, folder: Path, state_dir: Path, faults: Faults, ticket_to: Path | None = None
    ) -> None:
        self._config = config
        self._text = text
        self._folder = folder
        self._state_dir = state_dir
        self._faults = faults
        self._ticket_to = ticket_to
        self._key = MemberKey.load_or_create(state_dir / "member.key")
        self._store = BlockStore(state_dir / "blocks")
        self._journal = Journal(state_dir / "journal.sqlite", faults)
        clock = SteadyClock(self._journal.last_time())
        self._core = Core(config, self._journal, fold(self._journal), faults, clock, self._key.derive(b"placement"))
        self._provider: pb.PeerAddress | None = None
        self._nonce_file: NonceFile | None = None
        self._announcing: Announcing | None = None
        self._report_lock = asyncio.Lock()
        self._child = Child(
            "the bootstrap peer", self._child_command, state_dir / "bootstrap.log", self._child_is_up, self._child_says
        )

    async def run(self, *, exit_when_finished: bool, linger_s: float) -> None:
        """Start everything, serve, and take everything down again."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, stop.set)
        core = self._core
        versions = Versions(self._state_dir / "versions", self._store, self._key)
        secrets = AuditSecrets(self._key, self._config.run.id)
        assembly = Assembly(core, versions, self._state_dir, secrets=secrets)
        auditing = Auditing(core, versions, self._store, self._key, secrets, self._state_dir)
        # What takes long at the start can be interrupted, too.
        tasks = [asyncio.create_task(self._prepare(assembly, auditing), name="start")]
        server: grpc.aio.Server | None = None
        try:
            await self._until(stop, tasks)
            if stop.is_set():
                return
            certificate = tls.load_or_create(self._state_dir, *self._config.network.hosts) if self._config.network.tls else None
            core.emit("started", pid=os.getpid())
            driver = Driver(core, assembly)
            listening = Listening(core, self._key.public, self._folder, self._state_dir)
            pushing = self._pushing()
            server = self._server(certificate, auditing)
            await server.start()
            self._hand_out_ticket(certificate)
            self._announcing = Announcing(
                self._child, self._key, core.state.run_id, self._addresses(), lambda: core.state.bootstrap, core.clock
            )
            tasks = [
                asyncio.create_task(self._announcing.run(), name="announcing"),
                asyncio.create_task(driver.run(), name="driver"),
                asyncio.create_task(auditing.loop.run(), name="audits"),
                asyncio.create_task(auditing.batches.run(), name="batches"),
                asyncio.create_task(self._child.supervise(), name="bootstrap peer"),
                asyncio.create_task(listening.run(), name="listening"),
                asyncio.create_task(self._report(), name="report"),
            ]
            if pushing is not None:
                tasks.append(asyncio.create_task(pushing.run(), name="pushing"))
            if exit_when_finished:
                end = self._stop_when_finished(driver, listening, auditing, stop, linger_s)
                tasks.append(asyncio.create_task(end, name="end"))
            await self._until(stop, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if server is not None:
                await server.stop(STOP_GRACE_S)
            await self._child.stop()
            if self._nonce_file is not None:
                self._nonce_file.close()
            self._journal.close()

    # ---- start -------------------------------------------------------------------------------------------------------

    async def _prepare(self, assembly: Assembly, auditing: Auditing) -> None:
        """What must be there before members come: the run, its first version, and the bootstrap peer if its address is news."""
        found(self._core, self._config, self._text, self._folder, self._store)
        await assembly.genesis()
        auditing.resume()
        if not self._core.state.bootstrap or RunConfig.parse(self._core.state.run_toml).network != self._config.network:
            await self._child.start()  # the ticket names it

    def _pushing(self) -> Pushing | None:
        """What gives versions to IPFS, where the run file asks for it."""
        if not self._config.ipfs.rpc:
            return None
        return Pushing(self._core, self._store, self._key.public, self._state_dir, token=os.environ.get(TOKEN_VARIABLE, ""))

    def _server(self, certificate: tls.Certificate | None, auditing: Auditing) -> grpc.aio.Server:
        core, network = self._core, self._config.network
        calls = concurrent_calls(self._config.membership.max_members)
        server = grpc.aio.server(
            interceptors=[CheapRefusals()], options=SERVER_OPTIONS, maximum_concurrent_rpcs=calls
        )
        self._nonce_file = NonceFile(self._state_dir, time.time_ns() // 1_000_000)
        entrance = Entrance(core, self._key, nonce_file=self._nonce_file)
        door = Door(core, Uploads(core, self._state_dir, auditing), entrance,
                    lambda: [self._provider] if self._provider else [], auditing, listed=self._listed())  # fmt: skip
        hocket_pb2_grpc.add_CoordinatorServicer_to_server(door, server)
        host = f"[{network.host}]" if ":" in network.host else network.host
        # The port of the first start is kept: tickets name it.
        address = f"{host}:{network.port or core.state.port}"
        try:
            if certificate is None:
                logger.warning("tls = false: members reach this coordinator in plain text, from this machine only")
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, grpc.ssl_server_credentials([(certificate.key_pem, certificate.pem)]))
        except RuntimeError as error:
            raise HocketError(Code.PORT_TAKEN, address) from error
        if port == 0:
            raise HocketError(Code.PORT_TAKEN, address)
        if port != core.state.port:
            core.emit("listening", port=port)
        return server

    def _listed(self) -> Callable[[], Mapping[str, str]]:
        """Who is on the organiser's list, where there is one."""
        path = self._config.membership.list
        return MemberList(self._folder / path) if path else dict

    def _hand_out_ticket(self, certificate: tls.Certificate | None) -> None:
        state = self._core.state
        ticket = Ticket(
            run_id=state.run_id,
            coordinator_addresses=self._addresses(),
            coordinator_key=self._key.public,
            tls_sha256=certificate.sha256 if certificate is not None else b"",
            bootstrap_multiaddrs=tuple(state.bootstrap),
        ).encode()
        for path in (self._state_dir / "ticket.txt", *([self._ticket_to] if self._ticket_to is not None else [])):
            atomic_write(path, (ticket + "\n").encode())
        print(json.dumps({"ticket": ticket, "run_id": state.run_id, "port": state.port, "pid": os.getpid()}), flush=True)

    def _addresses(self) -> tuple[str, ...]:
        """Where members reach the gRPC server."""
        network = self._config.network
        host = f"[{network.host}]" if ":" in network.host else network.host
        return network.advertise or (f"{host}:{self._core.state.port}",)

    # ---- while it runs -----------------------------------------------------------------------------------------------

    async def _until(self, stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
        """Until told to stop, or until a task fails, whose error is raised."""
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            stopped.cancel()

    async def _stop_when_finished(
        self, driver: Driver, listening: Listening, auditing: Auditing, stop: asyncio.Event, linger_s: float
    ) -> None:
        await driver.finished.wait()
        await listening.caught_up()
        await auditing.settled(SETTLE_S)
        logger.info("the run is finished; serving for %.0f s more", linger_s)
        # Members fetch the last version meanwhile; a signal ends the wait.
        await asyncio.sleep(linger_s)
        await self._write_report()
        stop.set()

    async def _report(self) -> None:
        """Keep report.json up to date: after each round, evaluation and listening, and at the end."""
        core, written = self._core, None
        while True:
            state = core.state
            stand: tuple[Any, ...] = (
                len(state.rounds), len(state.heldout), len(state.listened), state.phase.value == "FINISHED", state.starts,
                len(state.audit.history),
            )  # fmt: skip
            if stand != written:
                await self._write_report()
                written = stand
            await core.news(state.revision, 60.0)

    async def _write_report(self) -> None:
        """Write what is known now; one at a time, so that the newest stays."""
        async with self._report_lock:
            await asyncio.to_thread(atomic_write, self._state_dir / "report.json", report_parts(self._core))

    def _child_command(self) -> list[str]:
        network = self._config.network
        return python_module(
            "swarm.peer", "--store", str(self._state_dir / "blocks"), "--state", str(self._peer_dir()),
            "--run-id", self._config.run.id, "--coordinator", self._key.public.hex(),
            "--listen", listen_multiaddr(network, self._core.state.bootstrap),
            *(word for address in announced_multiaddrs(network) for word in ("--announce", address)),
        )  # fmt: skip

    def _peer_dir(self) -> Path:
        folder = self._state_dir / "bootstrap"
        folder.mkdir(exist_ok=True)
        return folder

    def _child_is_up(self, ready: dict[str, Any]) -> None:
        multiaddrs = [str(one) for one in ready["multiaddrs"]]
        whole = [one if "/p2p/" in one else f"{one}/p2p/{ready['peer_id']}" for one in multiaddrs]
        self._provider = pb.PeerAddress(peer_id=ready["peer_id"], multiaddrs=whole)
        if whole != self._core.state.bootstrap:
            self._core.emit("bootstrap", multiaddrs=whole)
        if self._announcing is not None:
            self._announcing.soon()

    def _child_says(self, pid: int, word: dict[str, Any]) -> None:
        sent_bytes = word.get("block_bytes_sent")
        if isinstance(sent_bytes, int):
            self._core.count_own_blocks(pid, sent_bytes)
