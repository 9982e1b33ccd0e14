"""Commands around a run: the coordinator, a worker, tickets, status, whole clusters on one machine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from cli.options import (
    FaultLines,
    JsonFlag,
    LogLevel,
    TicketFrom,
    TokenisedData,
    byte_count,
    new_folder,
    parse_faults,
    print_json,
    replace_own_output,
    ticket_line,
)

logger = logging.getLogger(__name__)

ticket_app = typer.Typer(no_args_is_help=True, help="Look at a ticket.")

StateDir = Annotated[
    Path, typer.Option("--state-dir", help="Keys, journal, blocks and logs; the command goes on from what lies here.")
]


def coordinator(
    run_toml: Annotated[Path, typer.Argument(help="The run file.")],
    state_dir: StateDir = Path("coordinator-state"),
    ticket_to: Annotated[
        Path | None, typer.Option("--ticket-to", help="A file that gets the ticket too; the state directory holds secrets.")
    ] = None,
    log_level: LogLevel = "INFO",
    fault: FaultLines = None,
) -> None:
    """Coordinate a run; prints the ticket that volunteers need as one JSON line."""
    from common.log import set_up_logging
    from coordinator.server import run_coordinator

    faults = parse_faults(fault)
    set_up_logging(log_level)
    run_coordinator(run_toml, state_dir, ticket_to=ticket_to, faults=faults)


def worker(
    ticket: Annotated[str | None, typer.Argument(help="The line that begins with hocket1:")] = None,
    ticket_from: TicketFrom = None,
    state_dir: StateDir = Path("worker-state"),
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads for the training arithmetic.")] = 1,
    memory_limit: Annotated[
        str, typer.Option("--memory-limit", help="Of the stage that is given to us, such as 2GiB; 0: not limited.")
    ] = "0",
    store_limit: Annotated[
        str, typer.Option("--store-limit", help="Of versions and shards that are kept and served on; unused ones go first.")
    ] = "20GiB",
    recycle_every: Annotated[
        int, typer.Option(min=0, help="Start the compute engine anew after so many rounds; 0: only after a fault of the device.")
    ] = 0,
    gateway: Annotated[
        list[str] | None,
        typer.Option("--gateway", help="IPFS gateway, or a node's RPC with /api/v0, for what no peer has; several times."),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            help="libp2p listen address; several times. By default any port, on every interface unless the run is local.",
        ),
    ] = None,
    announce: Annotated[
        list[str] | None,
        typer.Option("--announce", help="Multiaddress at which others reach us, if not that of --listen; several times."),
    ] = None,
    operator: Annotated[str, typer.Option("--operator", help="Who runs this machine; shown to others in the run.")] = "",
    log_level: LogLevel = "INFO",
    fault: FaultLines = None,
) -> None:
    """Join a run with this machine and train."""
    faults = parse_faults(fault)
    limit, store_bytes = byte_count(memory_limit), byte_count(store_limit)
    from protocol.ticket import WAITS_FOR_TICKET, Ticket

    opened = Ticket.decode(ticket_line(ticket, ticket_from)) if ticket_from != "-" else None
    from common.ending import leave_memory_to_the_system
    from common.log import set_up_logging
    from node.worker import run_worker

    set_up_logging(log_level)
    if opened is None:  # what takes long is done before the wait
        logger.info(WAITS_FOR_TICKET)
        opened = Ticket.decode(ticket_line(ticket, ticket_from))
    try:
        code = run_worker(
            opened,
            state_dir.resolve(),
            threads=threads,
            memory_limit=limit,
            store_limit=store_bytes,
            recycle_every=recycle_every,
            gateways=gateway or [],
            listen=listen or [],
            announce=announce or [],
            faults=faults,
            operator=operator,
        )
    finally:
        leave_memory_to_the_system()
    raise typer.Exit(code)


@ticket_app.callback()
def ticket() -> None:
    """Look at a ticket."""


@ticket_app.command("show")
def ticket_show(
    ticket: Annotated[str, typer.Argument(help="The line that begins with hocket1:")],
    json_output: JsonFlag = False,
) -> None:
    """Show what a ticket says: the run, the coordinator and its keys."""
    from protocol.identity import member_id
    from protocol.ticket import Ticket

    opened = Ticket.decode(ticket)
    facts = {
        "run_id": opened.run_id,
        "coordinator_addresses": list(opened.coordinator_addresses),
        "coordinator": member_id(opened.coordinator_key),
        "tls_sha256": opened.tls_sha256.hex(),
        "bootstrap_multiaddrs": list(opened.bootstrap_multiaddrs),
        "invitation": bool(opened.invitation),
    }
    if json_output:
        print_json(facts)
    else:
        for name, value in facts.items():
            typer.echo(f"{name:>22}  {', '.join(value) if isinstance(value, list) else value}")


def status(
    ticket: Annotated[str | None, typer.Argument(help="The line that begins with hocket1:")] = None,
    ticket_from: TicketFrom = None,
    json_output: JsonFlag = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")] = 10.0,
) -> None:
    """Show where a run stands."""
    import asyncio

    from protocol.ticket import Ticket
    from simulations.progress import status_lines
    from simulations.status_client import fetch_status

    answer = asyncio.run(fetch_status(Ticket.decode(ticket_line(ticket, ticket_from)), timeout_s=timeout_s))
    if json_output:
        print_json(answer)
    else:
        for line in status_lines(answer):
            typer.echo(line)


def health(
    state_dir: Annotated[Path, typer.Argument(help="Of a worker on this machine.")],
    fresh_s: Annotated[float, typer.Option("--within", min=1.0, help="Seconds that the last sign of life may be old.")] = 60.0,
) -> None:
    """Tell whether the worker of a state directory is alive; for health checks, as it starts at once."""
    from common.heartbeat import check

    typer.echo(check(state_dir, fresh_s=fresh_s))


def simulate(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for states, logs and report.json.")],
    stages: Annotated[int | None, typer.Option(min=1, show_default="3", help="Stages of the model.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, show_default="2", help="Workers a stage.")] = None,
    standbys: Annotated[int | None, typer.Option(min=0, show_default="0", help="Workers kept ready beside them.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, show_default="3", help="Rounds of the run.")] = None,
    inner_steps: Annotated[int | None, typer.Option(min=1, show_default="4", help="Inner steps of a round.")] = None,
    preset: Annotated[str | None, typer.Option(show_default="test", help="Model preset.")] = None,
    seed: Annotated[int | None, typer.Option(show_default="0", help="Of weights, dropout and sample order.")] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A TOML file of faults, or the name of a shipped one: churn-heavy.toml.")
    ] = None,
    no_faults: Annotated[
        bool, typer.Option("--no-faults", help="Run the plan's cluster and do nothing to it, to compare with.")
    ] = False,
    data: TokenisedData = None,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="What `hocket tokenize` takes; otherwise the shipped corpus.")
    ] = None,
    language: Annotated[str, typer.Option("--language", "-l", help="BCP 47 tag of the corpus.")] = "en-US",
    wire: Annotated[
        str | None, typer.Option(show_default="fp32", help="Encoding of activations and gradients: fp32, bf16 or int8.")
    ] = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option("--time-limit", min=10.0, show_default="1800", help="Seconds after which the run is given up."),
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Run a whole cluster of processes on this machine, with faults on request, and report on it."""
    from simulations.plan import load_plan

    steps = load_plan(plan)
    if no_faults:
        steps = steps.without_faults()
    new_folder(out)
    from simulations.progress import show_for
    from simulations.report import summary
    from simulations.simulate import run_simulation, run_to_the_end, settings_of

    settings = settings_of(
        steps,
        stages=stages,
        replicas=replicas,
        standbys=standbys,
        rounds=rounds,
        inner_steps=inner_steps,
        preset=preset,
        seed=seed,
        data=data,
        corpus=corpus,
        language=language,
        wire=wire,
        time_limit_s=time_limit_s,
    )
    report = run_to_the_end(run_simulation(settings, out, show_for(quiet=json_output)))
    if json_output:
        print_json(report)
    else:
        for line in summary(report):
            typer.echo(line)


def soak(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for states, logs, samples, pictures and soak.json.")],
    hours: Annotated[float, typer.Option(min=0.01, help="How long.")] = 2.0,
    move_every: Annotated[int, typer.Option(min=1, help="A worker is moved in each so-many-th round.")] = 10,
    sample_every_s: Annotated[float, typer.Option("--sample-every", min=0.5, help="Seconds between two looks.")] = 10.0,
    data: TokenisedData = None,
    json_output: JsonFlag = False,
) -> None:
    """Run a cluster for hours, move a worker now and then, and tell whether what each process holds stays flat."""
    import dataclasses

    new_folder(out)
    from simulations.progress import show_for
    from simulations.simulate import run_to_the_end
    from simulations.soak import MANY_ROUNDS, SoakSettings, run_soak, soak_cluster, soak_lines

    cluster = dataclasses.replace(soak_cluster(MANY_ROUNDS), data=data)
    settings = SoakSettings(hours=hours, move_every=move_every, sample_every_s=sample_every_s, cluster=cluster)
    report = run_to_the_end(run_soak(settings, out, show_for(quiet=json_output)))
    if json_output:
        print_json(report)
    else:
        for line in soak_lines(report):
            typer.echo(line)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything that the demo makes.")] = Path("demo-out"),
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="What `hocket tokenize` takes; otherwise the shipped corpus.")
    ] = None,
    language: Annotated[str, typer.Option("--language", "-l", help="BCP 47 tag of the corpus.")] = "en-US",
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the run; the demo has its own number.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, dropout and sample order.")] = 0,
    text: Annotated[str | None, typer.Option(help="The sentence to speak at the end; otherwise a held-out one.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Train a small voice with six worker processes, lose one of them on the way, and let the result speak."""
    replace_own_output(out)
    from simulations.demo import run_demo
    from simulations.progress import show_for
    from simulations.simulate import run_to_the_end

    report = run_to_the_end(
        run_demo(out, show_for(quiet=json_output), corpus=corpus, language=language, rounds=rounds, seed=seed, text=text)
    )
    if json_output:
        print_json(report)
