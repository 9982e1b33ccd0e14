"""What a run's report says, from what its processes logged. Pure: the logs come in, the report goes out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulations.actions import FaultRecord

Event = Mapping[str, Any]


def merged(logs: Mapping[str, Sequence[Event]]) -> list[dict[str, Any]]:
    """All workers' events in the order of their times, each with the name of its process."""
    events = [{**event, "process": name} for name, log in logs.items() for event in log]
    return sorted(events, key=lambda event: float(event["time"]))


def recoveries(faults: Iterable[FaultRecord], events: Sequence[Event]) -> list[dict[str, Any]]:
    """How long each stage needed after a replica of it was lost.

    `seconds` is the longest wait of a microbatch that was addressed to the lost replica; where none was, the time until the
    stage next finished one elsewhere. `detected_after_s` is when the first caller gave the replica up. What the logs do not
    show is null.

    Args:
        faults: what was inflicted.
        events: of all workers, ordered by time.
    """
    found = []
    for fault in faults:
        rerouted = [
            event
            for event in events
            if event["event"] == "rerouted" and event.get("from_peer") == fault.peer_id and float(event["time"]) >= fault.at
        ]
        served = next(
            (
                event
                for event in events
                if event["event"] == "microbatch"
                and float(event["time"]) >= fault.at
                and any(int(hop["stage"]) == fault.stage and hop["peer_id"] != fault.peer_id for hop in event["path"])
            ),
            None,
        )
        resumed = float(served["time"]) if served is not None else None
        waits = [float(event["waited_s"]) for event in rerouted]
        found.append(
            {
                "stage": fault.stage,
                "kind": fault.kind,
                "round": fault.round,
                "process": fault.process,
                "pid": fault.pid,
                "member": fault.member,
                "killed_at": fault.at,
                "resumed_at": resumed,
                "seconds": max(waits) if waits else (resumed - fault.at if resumed is not None else None),
                "detected_after_s": min(float(event["time"]) for event in rerouted) - fault.at if rerouted else None,
                "rerouted_microbatches": len(waits),
                "promoted": False,  # no standbys in this release: the stage's other replicas carry on
            }
        )
    return found


def false_suspicions(faults: Iterable[FaultRecord], events: Iterable[Event]) -> int:
    """How often a caller gave up a replica that nothing had been done to at that time."""
    hurt: dict[str, list[FaultRecord]] = {}
    for fault in faults:
        hurt.setdefault(fault.peer_id, []).append(fault)

    def excused(event: Event) -> bool:
        # A thawed replica may be suspected for what it left unanswered while it was frozen.
        return any(float(event["time"]) >= fault.at for fault in hurt.get(str(event["from_peer"]), ()))

    return sum(1 for event in events if event["event"] == "rerouted" and event.get("suspected", True) and not excused(event))


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
) -> dict[str, Any]:
    """The report of a finished run.

    Args:
        status: the coordinator's last status.
        logs: events of each worker by process name.
        manifests: version manifests by the round that made them.
        memory: peak PSS in bytes by process name.
        missed_steps: steps of the fault plan that never became due.
        config: what the run was told.
    """
    events = merged(logs)
    rounds = list(status["rounds"])
    lost = acked_updates_lost(logs, manifests)
    return {
        "run_id": status["run_id"],
        "rounds": rounds,
        "frames_per_second": speeds(rounds),
        "watch": list(status.get("watch", [])),
        "alarms": list(status.get("alarms", [])),
        "recoveries": recoveries(faults, events),
        "false_suspicions": false_suspicions(faults, events),
        "duplicate_microbatches": int(status.get("duplicates", 0)),
        "dropped_microbatches": int(status.get("dropped", 0)),
        "acked_updates": sum(1 for event in events if event["event"] == "update_acked"),
        "acked_updates_lost": len(lost),
        "lost_updates": lost,
        "coordinator_restarts": coordinator_restarts,
        # Nobody is audited in this release, so nobody is ever put into quarantine.
        "quarantined": [],
        "attackers": [],
        "honest_quarantined": 0,
        "final_version": status.get("version"),
        "bytes_sent": dict(status.get("bytes", {})),
        "paths": sampled_paths(events, len(status["stages"]), faults),
        "memory_pss_bytes": {name: dict(peaks) for name, peaks in memory.items()},
        "unexpected_ends": list(unexpected_ends),
        "missed_plan_steps": list(missed_steps),
        "config": dict(config),
    }
