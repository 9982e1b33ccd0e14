"""What the run looks like from outside: the JSON of `hocket status`. Pure but for reading the core."""

from __future__ import annotations

import json
from typing import Any

from coordinator.assignment import Role
from coordinator.core import Core
from coordinator.history import SUMMED
from coordinator.listening import next_choice
from coordinator.measures import BYTE_KINDS
from coordinator.retention import retained_by
from coordinator.run import RunState

MAX_ROUNDS = 200
"""Finished rounds in one answer at most."""
ROUNDS_BYTES = 2 << 20
"""Of them together, as a message may have 4 MiB. One round takes some 4 KB with three stages of two replicas."""


def bytes_by_kind(processes: dict[str, dict[str, int]]) -> dict[str, int]:
    """Bytes that all members' processes together have sent, by kind."""
    return {kind: sum(one.get(kind, 0) for one in processes.values()) for kind in BYTE_KINDS}


def status_json(core: Core, after_round: int = 0) -> dict[str, Any]:
    """The state of the run for people and scripts; holds nothing secret.

    Args:
        after_round: of the finished rounds, those after this one are told, as many of the first as fit. A run may have more
            than one message holds: `rounds_more` says that there are, to be asked for by another call.
    """
    state = core.state
    wanted, more = state.rounds.after(after_round, MAX_ROUNDS)
    told = _that_fit(wanted)
    stages = []
    for stage in range(state.stages):
        replicas = []
        for member in sorted(state.members.values(), key=lambda one: one.member):
            serves = member.stage == stage or (not member.live and member.last_stage == stage)
            if not serves or member.role is not Role.REPLICA:
                continue
            report = core.reports.get((member.member, member.generation), {})
            replicas.append({
                "member": member.member, "peer_id": member.peer_id, "operator": member.operator,
                "pid": core.pids.get(member.member, 0), "ready": state.is_ready(member), "frames": report.get("frames", 0),
                "generation": member.generation,
                "alive": member.live, "reason": member.reason, "submitted": (stage, member.member) in state.updates,
            })  # fmt: skip
        standbys = [
            {
                "member": one.member, "peer_id": one.peer_id, "operator": one.operator, "pid": core.pids.get(one.member, 0),
                "generation": one.generation, "ready": state.is_ready(one),
            }
            for one in state.standbys(stage)
        ]  # fmt: skip
        stages.append({"stage": stage, "replicas": replicas, "standbys": standbys})
    return {
        "run_id": state.run_id,
        "phase": state.phase.value,
        "round": state.round,
        "reason": core.reason,
        "revision": state.revision,
        "stages": stages,
        "unassigned": sorted(one.member for one in state.members.values() if one.live and one.stage is None),
        "frames_done": frames_done(core),
        "target_frames": core.wanted_data[1],
        "frames_total": state.frames_counted,
        "rounds_wanted": core.config.rounds.count,
        "rounds": told,
        "rounds_more": more or len(told) < len(wanted),
        "duplicates": state.rounds.total("duplicate_microbatches"),
        "dropped": state.rounds.total("dropped_microbatches"),
        "initial_heldout_loss": initial_heldout_loss(state),
        "listening": next_choice(state, core.config).round,
        **listening_json(state),
        "version": {"version": state.version, **final_version(state)},
        "bytes": bytes_by_kind(core.bytes_sent),
        "coordinator_restarts": max(state.starts - 1, 0),
        "ipfs": core.ipfs,
        "audits": {"under_way": len(state.audit.audits), "ended": state.audit.ended[-20:]},
        "quarantined": state.audit.quarantined_json(),
        "recent_events": list(core.recent),
    }


def _that_fit(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many of the first rounds as a message holds, and one at least."""
    room = ROUNDS_BYTES
    for count, entry in enumerate(rounds):
        room -= len(json.dumps(entry))
        if room < 0:
            return rounds[: max(count, 1)]
    return rounds


def frames_done(core: Core) -> int:
    """Frames of this round so far: finished leases, and what stage 0 has done of the unfinished ones."""
    finished = sum(lease.frames for lease in core.state.leases.values() if lease.done_at is not None)
    reported = sum(one["frames"] for one in core.reports.values() if one["stage"] == 0)
    return max(finished, reported)


def initial_heldout_loss(state: RunState) -> float | None:
    """The held-out loss of version 0, if it was evaluated."""
    first = state.versions[0]["cid"] if state.versions else ""
    return state.heldout[first]["loss"] if first in state.heldout else None


def listening_json(state: RunState) -> dict[str, Any]:
    """What was heard: `watch`, one entry for each round that was listened to, and `alarms`, all of them; oldest first."""
    kept = ("round", "cid", "seconds", "watch", "previews", "errors")
    return {
        "watch": [{key: one[key] for key in kept} for one in state.listened],
        "alarms": [alarm for one in state.listened for alarm in one["alarms"]],
    }


def final_version(state: RunState) -> dict[str, Any]:
    """The newest version: the round that it came from, and its CID."""
    return {"round": state.versions[-1]["round"] if state.versions else 0, "cid": state.base_cid}


def versions_json(core: Core) -> list[dict[str, Any]]:
    """The versions that stay in the block store, oldest first, each with its reasons and its held-out loss, once known."""
    state = core.state
    stays = retained_by(state, core.config.checkpoint, core.pins)
    return [
        {**one, "heldout_loss": state.heldout.get(one["cid"], {}).get("loss"), "kept": list(stays[one["cid"]])}
        for one in state.versions
        if one["cid"] in stays
    ]


def report_parts(core: Core) -> list[bytes]:
    """The text of the coordinator's report.json, a piece a round; nothing that happens later changes it.

    A run has thousands of rounds, and this is asked for after each: their records are taken as they are kept, neither read nor
    copied.
    """
    rounds = core.state.rounds.packed()
    divided = [b",\n" + one if index else one for index, one in enumerate(rounds)]
    rest = json.dumps(report_json(core), indent=1, sort_keys=True).encode()
    return [b'{\n "rounds": [\n', *divided, b"\n ],", rest.removeprefix(b"{")]


def report_json(core: Core) -> dict[str, Any]:
    """The coordinator's part of a run's report.json but for the rounds."""
    state = core.state
    return {
        "run_id": state.run_id,
        "initial_heldout_loss": initial_heldout_loss(state),
        **listening_json(state),
        **{name: state.rounds.total(name) for name in SUMMED},
        "coordinator_restarts": max(state.starts - 1, 0),
        "ipfs": core.ipfs,
        "audits": state.audit.counts_json(),
        "quarantined": state.audit.quarantined_json(),
        "final_version": final_version(state),
        "versions": versions_json(core),
        "bytes_sent": bytes_by_kind(core.bytes_sent),
        "finished": state.phase.value == "FINISHED",
        "config": core.config.model_dump(mode="json"),
    }
