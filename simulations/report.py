"""What a run's report says, from what its processes logged. Pure: the logs come in, the report goes out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulations.actions import FaultRecord
from simulations.attack_report import AttackFacts, attack_lines, attackers, marked
from simulations.recoveries import OpenSpans, false_suspicions, recoveries, recovery_times

Event = Mapping[str, Any]


def merged(logs: Mapping[str, Sequence[Event]]) -> list[dict[str, Any]]:
    """All workers' events in the order of their times, each with the name of its process."""
    events = [{**event, "process": name} for name, log in logs.items() for event in log]
    return sorted(events, key=lambda event: float(event["time"]))


def acked_updates_lost(logs: Mapping[str, Sequence[Event]], manifests: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Updates that a worker has an acknowledgement for and that no manifest accounts for.

    Args:
        logs: events of each worker; `started` tells its member id.
        manifests: body of the version manifest that each finished round made, by round.

    Returns: one entry for each loss. An update of a round without a manifest is not counted: the run ended in it.
    """
    lost = []
    for name, log in logs.items():
        member = ""
        for event in log:
            if event["event"] == "started":
                member = str(event["member_id"])
            if event["event"] != "update_acked" or int(event["round"]) not in manifests:
                continue
            manifest = manifests[int(event["round"])]
            stage = int(event["stage"])
            accepted = any(
                entry["member"] == member and int(entry["stage"]) == stage and entry["sha256"] == event["sha256"]
                for entry in manifest["accepted"]
            )
            refused = any(entry["member"] == member and int(entry["stage"]) == stage for entry in manifest["refused"])
            if not accepted and not refused:
                lost.append(
                    {"process": name, "member": member, "round": int(event["round"]), "stage": stage, "sha256": event["sha256"]}
                )
    return lost


def sampled_paths(events: Iterable[Event], stages: int, faults: Sequence[FaultRecord] = ()) -> dict[str, Any]:
    """The way of every microbatch of one round: the first one that a fault fell into, else the middle one of those logged.

    Each path begins with the stage-0 process that made the microbatch and lists stage, peer and pid of every hop.
    """
    rounds: dict[int, list[Event]] = {}
    for event in events:
        if event["event"] == "microbatch":
            rounds.setdefault(int(event["round"]), []).append(event)
    if not rounds:
        return {"round": None, "microbatches": [], "pids": []}
    hit = [fault.round for fault in faults if fault.round in rounds]
    sampled = hit[0] if hit else sorted(rounds)[len(rounds) // 2]
    microbatches: list[dict[str, Any]] = [
        {
            "id": int(event["id"]),
            "frames": int(event["frames"]),
            "seconds": float(event["seconds"]),
            "path": [{"stage": int(hop["stage"]), "peer_id": hop["peer_id"], "pid": int(hop["pid"])} for hop in event["path"]],
        }
        for event in sorted(rounds[sampled], key=lambda event: int(event["id"]))
    ]
    pids = sorted({hop["pid"] for microbatch in microbatches for hop in microbatch["path"]})
    incomplete = [
        microbatch["id"] for microbatch in microbatches if {hop["stage"] for hop in microbatch["path"]} != set(range(stages))
    ]
    return {"round": sampled, "microbatches": microbatches, "pids": pids, "incomplete": incomplete}


def speeds(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Frames per second over the rounds: the median with the slowest and the fastest round."""
    each = [float(entry["frames"]) / float(entry["seconds"]) for entry in rounds if float(entry.get("seconds") or 0) > 0]
    if not each:
        return {"median": None, "slowest": None, "fastest": None}
    return {"median": statistics.median(each), "slowest": min(each), "fastest": max(each)}


def build_report(
    *,
    status: Mapping[str, Any],
    logs: Mapping[str, Sequence[Event]],
    manifests: Mapping[int, Mapping[str, Any]],
    faults: Sequence[FaultRecord],
    coordinator_restarts: int,
    memory: Mapping[str, Mapping[str, int]],
    unexpected_ends: Sequence[str],
    missed_steps: Sequence[str],
    config: Mapping[str, Any],
    spans: OpenSpans | None = None,
    attacks: Mapping[str, AttackFacts] | None = None,
    unfinished: str | None = None,
) -> dict[str, Any]:
    """The report of a run.

    Args:
        status: the coordinator's last status.
        logs: events of each worker by process name.
        manifests: version manifests by the round that made them.
        memory: peak PSS in bytes by process name.
        missed_steps: steps of the fault plan that never became due.
        config: what the run was told.
        spans: when rounds were open.
        attacks: what attacking processes did, by process name; what they say was acknowledged does not count.
        unfinished: why the run did not come to its end; None: it did.
    """
    events = merged(logs)
    found = recoveries(faults, events, spans)
    rounds = list(status["rounds"])
    facts = dict(attacks or {})
    lost = acked_updates_lost({name: log for name, log in logs.items() if name not in facts}, manifests)
    found_attackers = attackers(facts, logs, status.get("quarantined", ()), manifests)
    quarantined, honest_quarantined = marked(status.get("quarantined", ()), found_attackers)
    return {
        "run_id": status["run_id"],
        "unfinished": unfinished,
        "rounds": rounds,
        "frames_per_second": speeds(rounds),
        "watch": list(status.get("watch", [])),
        "alarms": list(status.get("alarms", [])),
        "recoveries": found,
        "recovery_times": recovery_times(found),
        "false_suspicions": false_suspicions(faults, events),
        "duplicate_microbatches": int(status.get("duplicates", 0)),
        "dropped_microbatches": int(status.get("dropped", 0)),
        "repeated_rows": int(status.get("repeated_rows", 0)),
        "acked_updates": sum(1 for event in events if event["event"] == "update_acked"),
        "acked_updates_lost": len(lost),
        "lost_updates": lost,
        "coordinator_restarts": coordinator_restarts,
        "quarantined": quarantined,
        "attackers": found_attackers,
        "honest_quarantined": honest_quarantined,
        "final_version": status.get("version"),
        "bytes_sent": dict(status.get("bytes", {})),
        "ipfs": status.get("ipfs"),
        "paths": sampled_paths(events, len(status["stages"]), faults),
        "memory_pss_bytes": {name: dict(peaks) for name, peaks in memory.items()},
        "unexpected_ends": list(unexpected_ends),
        "missed_plan_steps": list(missed_steps),
        "config": dict(config),
    }


def summary(report: Mapping[str, Any]) -> list[str]:
    """A report in a few lines for people."""
    rounds = report["rounds"]
    losses = [float(entry["heldout_loss"]) for entry in rounds if entry.get("heldout_loss") is not None]
    lines = [report["unfinished"]] if report["unfinished"] else []
    lines.append(f"{len(rounds)} rounds in {float(report['seconds']):.0f} s" + (f", held out {losses[-1]:.4f}" if losses else ""))
    for kind, times in report["recovery_times"].items():
        figures = "never seen to recover" if times["p95"] is None else (
            f"median {times['median']:.2f} s, p95 {times['p95']:.2f} s, longest {times['longest']:.2f} s"
        )  # fmt: skip
        unknown = f", {times['unknown']} without a figure" if times["unknown"] else ""
        lines.append(f"{kind}: {times['n']} replicas lost; the stage went on after {figures}{unknown}")
    promoted = [float(one["promoted_after_s"]) for one in report["recoveries"] if one["promoted"]]
    if promoted:
        lines.append(f"{len(promoted)} standbys were promoted, the last to be after {max(promoted):.2f} s")
    lines.append(
        f"{report['acked_updates']} updates acknowledged, {report['acked_updates_lost']} of them lost; "
        f"{report['duplicate_microbatches']} microbatches counted twice, {report['dropped_microbatches']} dropped; "
        f"{report['false_suspicions']} false suspicions"
    )
    lines += attack_lines(report)
    lines += [f"not done: {step}" for step in report["missed_plan_steps"]]
    return [*lines, *report["unexpected_ends"]]
