"""How long a stage needed after one of its members was hurt, and who was suspected for nothing. Pure: from logs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulations.actions import FaultRecord

Event = Mapping[str, Any]

AFTERMATH_S = 10.0
"""For so long after its thaw or mend a member, and whom it calls, may still be judged by what went unanswered meanwhile."""


class OpenSpans:
    """When a round was open, from looks at the run's status. In between there is no work that a stage could resume."""

    def __init__(self) -> None:
        self._spans: list[list[float]] = []
        self._open = False

    def look(self, phase: str, at: float) -> None:
        """The phase at a time in seconds; looks come in order."""
        if phase == "OPEN":
            if not self._open:
                self._spans.append([at, math.inf])
            self._open = True
        elif self._open:
            self._spans[-1][1] = at
            self._open = False

    def open_s(self, since: float, until: float) -> float:
        """Seconds between two times in which a round was open; all of them where nobody looked."""
        if not self._spans:
            return until - since
        return sum(max(min(until, end) - max(since, start), 0.0) for start, end in self._spans)


def _until(fault: FaultRecord) -> float:
    """Until when what a member does, and what is said of it, may be the fault's doing."""
    return math.inf if fault.kind == "kill" or fault.until is None else fault.until + AFTERMATH_S


def _is_hurt(faults: Iterable[FaultRecord], *, process: str = "", peer_id: str = "", at: float) -> bool:
    return any(
        (fault.process == process or fault.peer_id == peer_id) and fault.at <= at <= _until(fault) for fault in faults
    )  # fmt: skip


def _of_fault(fault: FaultRecord, faults: Iterable[FaultRecord], event: Event) -> bool:
    """Whether a microbatch was sent elsewhere because of this fault, and of no later one of the same member.

    A member may be hurt again, in another stage, while callers still tell what it left unanswered the first time.
    """
    at = float(event["time"])
    if (event.get("from_peer"), int(event["stage"])) != (fault.peer_id, fault.stage) or not fault.at <= at <= _until(fault):
        return False
    return not any(other.peer_id == fault.peer_id and fault.at < other.at <= at for other in faults)


def recoveries(
    faults: Sequence[FaultRecord], events: Sequence[Event], spans: OpenSpans | None = None
) -> list[dict[str, Any]]:
    """How long each stage needed after a member of it was hurt.

    `seconds` is how long after the loss, or after it was sent, the microbatch that waited longest of those addressed to the lost
    replica was answered by another; what it had waited in a queue before the loss is nobody's recovery, and is in
    `longest_wait_s` alone. Where none was addressed to it, it is the time with an open round until the stage next finished one
    elsewhere. What a caller reports that was itself hurt is left out. A standby serves
    nothing, so that its loss has no `seconds`. `detected_after_s` is when the first caller gave the replica up. What the logs
    do not show is null. `promoted`: a standby of the stage took part after this fault, `promoted_after_s` later.

    Args:
        faults: what was inflicted.
        events: of all workers, ordered by time, each with its `process`.
        spans: when rounds were open; None: not known.
    """
    spans = spans or OpenSpans()
    promotions = _promotions(faults, events)
    found = []
    for fault in faults:
        rerouted = [
            event
            for event in events
            if event["event"] == "rerouted"
            and _of_fault(fault, faults, event)
            and not _is_hurt(faults, process=str(event.get("process", "")), at=float(event["time"]))
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
        since_loss = [min(float(event["waited_s"]), float(event["time"]) - fault.at) for event in rerouted]
        seconds = max(since_loss) if since_loss else (spans.open_s(fault.at, resumed) if resumed is not None else None)
        promoted_after_s = promotions.get(fault)
        found.append(
            {
                "stage": fault.stage,
                "kind": fault.kind,
                "role": fault.role,
                "round": fault.round,
                "process": fault.process,
                "pid": fault.pid,
                "member": fault.member,
                "killed_at": fault.at,
                "resumed_at": resumed,
                "seconds": seconds if fault.role == "replica" else None,
                "longest_wait_s": max(waits, default=None),
                "detected_after_s": min(float(event["time"]) for event in rerouted) - fault.at if rerouted else None,
                "rerouted_microbatches": len(waits),
                "promoted": promoted_after_s is not None,
                "promoted_after_s": promoted_after_s,
            }
        )
    return found


def _promotions(faults: Sequence[FaultRecord], events: Sequence[Event]) -> dict[FaultRecord, float]:
    """Seconds until a standby took a lost replica's place; each promotion belongs to the oldest fault that has none yet."""
    open_faults = sorted((fault for fault in faults if fault.role == "replica"), key=lambda fault: fault.at)
    found: dict[FaultRecord, float] = {}
    for event in events:
        if event["event"] != "promoted":
            continue
        at = float(event["time"])
        for fault in open_faults:
            if (fault.stage, fault.round) == (int(event["stage"]), int(event["round"])) and fault.at <= at:
                found[fault] = at - fault.at
                open_faults.remove(fault)
                break
    return found


def recovery_times(found: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of the lost replicas, by kind of fault: how many, the seconds in figures, and how many are not known to have recovered.

    `p95` is the smallest of the values that at least 95 % of them do not exceed.
    """
    kinds: dict[str, list[float | None]] = {}
    for one in found:
        if one["role"] == "replica":
            kinds.setdefault(str(one["kind"]), []).append(one["seconds"])
    times: dict[str, dict[str, Any]] = {}
    for kind, all_of_it in sorted(kinds.items()):
        known = sorted(value for value in all_of_it if value is not None)
        times[kind] = {
            "n": len(all_of_it),
            "median": statistics.median(known) if known else None,
            "p95": known[math.ceil(0.95 * len(known)) - 1] if known else None,
            "longest": known[-1] if known else None,
            "unknown": len(all_of_it) - len(known),
        }
    return times


def false_suspicions(faults: Sequence[FaultRecord], events: Iterable[Event]) -> int:
    """How often an unhurt caller gave up a replica that nothing had been done to at that time.

    For a while after its thaw or mend a replica may be suspected for what it left unanswered before.
    """
    return sum(
        1
        for event in events
        if event["event"] == "rerouted"
        and event.get("suspected", True)
        and not _is_hurt(
            faults, process=str(event.get("process", "")), peer_id=str(event["from_peer"]), at=float(event["time"])
        )
    )
