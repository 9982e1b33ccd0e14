"""`hocket demo`: a small voice, trained by six worker processes of which one is killed, that speaks at the end."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from simulations.finish import Order, write_order
from simulations.plan import Kill, Plan
from simulations.progress import Show, round_line
from simulations.simulate import FinishedRun, SimulationSettings, run_module, run_simulation

LOSS_RATIO = 0.9
"""The last round's loss must be at most this share of the first one's."""

WORD_ERRORS = 0.20
WORD_ERRORS_OVER_CODEC = 0.10
"""What the demo's own corpus and length must reach: word error rates of what the voice says, and beyond those of its codec."""

RATES = (0.8, 1.0, 1.4)
RATE_TOLERANCE = 0.05

WAYS_A_LINE = 4

DEMO = SimulationSettings(
    name="demo",
    preset="demo",
    stages=3,
    replicas=2,
    rounds=18,
    inner_steps=20,
    frames_per_inner_step=1700,
    microbatches_per_inner_step=4,
    inner_lr=4e-3,
    warm_up_steps=20,
    wire="bf16",
    plan=Plan(kill=(Kill(round=3, stage=1, replica=0, after_share=0.5),)),
    time_limit_s=1500.0,
    extra={"previews": {"every": 6, "keep": 3}},
)


async def run_demo(
    out: Path,
    show: Show,
    *,
    corpus: Path | None = None,
    language: str = "en-US",
    rounds: int | None = None,
    seed: int = 0,
    text: str | None = None,
) -> dict[str, Any]:
    """Run the demo into `out`; prints a summary, writes `report.json` and returns it.

    Raises:
        HocketError: CHILD_FAILED when a process that must not fail did, or when the run did not learn.
    """
    settings = dataclasses.replace(DEMO, corpus=corpus, language=language, seed=seed, rounds=rounds or DEMO.rounds)
    if settings.rounds < 3:
        settings = dataclasses.replace(settings, plan=Plan(kill=(Kill(round=1, stage=1),)))

    async def after(run: FinishedRun) -> None:
        show.note("fetching the final version by its CID from another process")
        order = Order(
            ticket=run.ticket,
            cid=run.status["version"]["cid"],
            out=str(out.resolve()),
            codec=settings.codec,
            text=text or "",
            seed=seed,
            rates=RATES,
            threads=os.cpu_count() or 1,
            losses={
                "training": [entry["loss"] for entry in run.report["rounds"]],
                "held out": [entry.get("heldout_loss") for entry in run.report["rounds"]],
            },
        )
        path = out.resolve() / "finish-order.json"
        write_order(path, order)
        answer = await run_module("simulations.finish", [str(path)], out.resolve() / "finish.log")
        run.report["speech"] = json.loads(answer.strip().splitlines()[-1])
        run.report["evaluation"] = await evaluate(out.resolve(), settings, show)

    report = await run_simulation(settings, out, show, after=after)
    for line in summary(report, out):
        show.note(line)
    failures = shortcomings(report)
    if corpus is None and rounds is None:
        failures += unintelligible(report["evaluation"])
    if failures:
        raise HocketError(Code.CHILD_FAILED, "; ".join(failures), remedy=f"read the report and the logs in {out}")
    return report


async def evaluate(out: Path, settings: SimulationSettings, show: Show) -> dict[str, Any]:
    """What `hocket evaluate` finds of the demo's voice; {"not_measured": why} where its packages are not installed."""
    show.note("listening to the held-out sentences")
    found = out / "evaluation.json"
    arguments = ["evaluate", str(out), "--json", str(found), "--html", str(out / "listen"), "--no-quality", "--limit", "100"]
    if settings.corpus is not None:
        arguments += ["--corpus", str(settings.corpus.resolve())]
    try:
        await run_module("cli.main", arguments, out / "evaluate.log")
    except HocketError as error:
        if error.code is not Code.EXTRA_MISSING:
            raise
        return {"not_measured": error.line()}
    result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return {name: value for name, value in result.items() if name != "sentences"}


def unintelligible(evaluation: dict[str, Any]) -> list[str]:
    """What is missing for a voice that a listener understands: empty for a good one, or where nobody could listen."""
    spoken, codec = (evaluation.get(kind) for kind in ("synthesis", "codec"))
    if spoken is None or codec is None:
        return []
    found = []
    if spoken["wer"] > WORD_ERRORS:
        found.append(f"the word error rate is {spoken['wer']:.3f}, at most {WORD_ERRORS} is wanted")
    if spoken["wer"] > codec["wer"] + WORD_ERRORS_OVER_CODEC:
        found.append(f"the word error rate is {spoken['wer']:.3f}, the codec's own {codec['wer']:.3f}")
    return found


def shortcomings(report: dict[str, Any]) -> list[str]:
    """What a demo's report shows that must not be: empty for a good run."""
    found = []
    losses = [entry["loss"] for entry in report["rounds"] if entry["loss"] is not None]
    if len(losses) < 2 or losses[-1] > LOSS_RATIO * losses[0]:
        found.append(f"the loss did not fall to {LOSS_RATIO} of the first round's: {losses}")
    if not report["speech"]["reads_its_text"]:
        found.append("the held-out loss does not tell the right text from a shuffled one")
    natural = report["speech"]["rates"]["1.0"]
    for rate, seconds in report["speech"]["rates"].items():
        if abs(seconds / natural / float(rate) - 1) > RATE_TOLERANCE:
            found.append(f"at rate {rate} the sentence takes {seconds:.2f} s, at 1.0 {natural:.2f} s")
    if report["acked_updates_lost"]:
        found.append(f"{report['acked_updates_lost']} acknowledged updates are in no manifest")
    if report["missed_plan_steps"]:
        found.append(f"not carried out: {report['missed_plan_steps']}")
    return found


def summary(report: dict[str, Any], out: Path) -> list[str]:
    """The demo's summary in lines."""
    speech = report["speech"]
    lines = ["", *way_lines(report["paths"]), "", f"Run {report['run_id']}, {report['seconds']:.0f} s in all"]
    lines += [f"  {round_line(entry)}" for entry in report["rounds"]]
    speed = report["frames_per_second"]
    lines.append(f"Speed: {speed['median']:.0f} frames/s (slowest round {speed['slowest']:.0f}, fastest {speed['fastest']:.0f})")
    for recovery in report["recoveries"]:
        needed = "never resumed" if recovery["seconds"] is None else f"needed {recovery['seconds']:.2f} s"
        lines.append(
            f"Killed: {recovery['process']} (pid {recovery['pid']}, stage {recovery['stage']}) in round {recovery['round']}; "
            f"the stage {needed}, {recovery['rerouted_microbatches']} microbatches went another way"
        )
    wrong = ", ".join(f"{loss:.3f}" for loss in speech["loss_shuffled_text"])
    lines.append(f"Held-out loss: {speech['loss_right_text']:.3f} with the right text, {wrong} with shuffled texts")
    sent = ", ".join(f"{kind} {size / 2**20:.1f} MiB" for kind, size in report["bytes_sent"].items())
    lines.append(f"Sent: {sent}")
    lines.append(
        f"Acknowledged updates: {report['acked_updates']}, lost {report['acked_updates_lost']}; "
        f"microbatches counted twice {report['duplicate_microbatches']}, dropped {report['dropped_microbatches']}"
    )
    memory = report["memory_pss_bytes"]
    workers = [peaks["total"] for name, peaks in memory.items() if name != "coordinator"]
    lines.append(
        f"Memory (PSS): worker at most {max(workers) / 2**20:.0f} MiB with its daemon, "
        f"coordinator's core {memory['coordinator']['own'] / 2**20:.0f} MiB"
    )
    lines.append(f"Final version: round {speech['round']}, {speech['cid']}, signed by {speech['signer']}")
    lines.append(f"  fetched and verified in {speech['fetch_s']:.1f} s by another process, exported to {out / 'checkpoint'}")
    lines.append(f"Spoken: {speech['text']!r} -> {out / 'sample.wav'} ({speech['speech_s']:.1f} s of speech)")
    took = ", ".join(f"{seconds:.2f} s at rate {rate}" for rate, seconds in speech["rates"].items())
    lines.append(f"  {took}")
    lines += listening_lines(report["evaluation"], out)
    lines += [f"Alarm: {alarm['reason']}" for alarm in report["alarms"]]
    if report["watch"]:
        rounds = ", ".join(str(one["round"]) for one in report["watch"])
        lines.append(f"Previews of rounds {rounds}, with what was watched: {out / 'coordinator' / 'previews'}")
    lines.append(f"Report: {out / 'report.json'}; pictures: {out / 'spectrogram.png'}, {out / 'loss.png'}")
    return lines


def listening_lines(evaluation: dict[str, Any], out: Path) -> list[str]:
    """What a recogniser understood, in lines."""
    if "not_measured" in evaluation:
        return [f"Word errors were not measured: {evaluation['not_measured']}"]
    measured = {
        kind: evaluation[kind] for kind in ("synthesis", "codec", "recordings")
        if evaluation.get(kind) is not None and evaluation[kind]["wer"] is not None
    }  # fmt: skip
    rates = ", ".join(f"{kind} {figures['wer']:.3f}" for kind, figures in measured.items())
    lines = [f"Word error rate: {rates} ({n} sentences)" for n in {figures["n"] for figures in measured.values()}]
    return [*lines, f"  listen to all of them: {out / 'listen' / 'index.html'}"]


def way_lines(paths: dict[str, Any]) -> list[str]:
    """The way of every microbatch of the sampled round as `id: pid>pid>pid`, stage by stage, several to a line."""
    ways = [
        f"{microbatch['id']}: {'>'.join(str(hop['pid']) for hop in microbatch['path'])}" for microbatch in paths["microbatches"]
    ]
    head = (
        f"Ways of the {len(ways)} microbatches of round {paths['round']} (id: pid of each stage) over processes {paths['pids']}"
    )
    return [head, *("  " + "   ".join(ways[start : start + WAYS_A_LINE]) for start in range(0, len(ways), WAYS_A_LINE))]
