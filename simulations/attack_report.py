"""What a report says of attackers: who attacked, since when, and what became of it. Pure: logs and status come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulations.attacks.catalogue import ATTACKS

ATTACK_LOG = "attack.jsonl"
"""In an attacker's state directory: what it did."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class AttackFacts:
    """One attacking process: its attack by name, what it is told of it, and its log of what it did."""

    attack: str
    parameters: Mapping[str, Any]
    log: Sequence[Event]


def member_of(log: Sequence[Event]) -> str:
    """The member id of a worker's event log; empty when it never started."""
    return next((str(event["member_id"]) for event in log if event["event"] == "started"), "")


def attackers(
    facts: Mapping[str, AttackFacts],
    logs: Mapping[str, Sequence[Event]],
    quarantined: Sequence[Mapping[str, Any]],
    manifests: Mapping[int, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One entry for each attacker.

    Args:
        facts, logs: by process name. quarantined: entries of the status. manifests: bodies by the round that made them.

    Returns: `first_round` in which it attacked, None: it had no occasion; `quarantined_round`, None: it was not, and
        `proved_round`, of the work that it was quarantined for; `accepted`: rounds from its first attack on in which its update
        counted; `refused`: those in which it was refused, with the reason.
    """
    by_member = {str(one["identity"]): one for one in quarantined}
    found = []
    for process, one in facts.items():
        log = logs.get(process, ())
        member = member_of(log)
        attacked = [int(event["round"]) for event in one.log if event["event"] == "attacked"]
        first = min(attacked, default=None)
        record = by_member.get(member)
        refused = {
            number: str(entry["reason"])
            for number, manifest in manifests.items() for entry in manifest["refused"] if entry["member"] == member
        }  # fmt: skip
        refused |= {int(event["round"]): str(event["reason"]) for event in log if event["event"] == "update_refused"}
        accepted = [
            number for number, manifest in sorted(manifests.items())
            if first is not None and number >= first and any(entry["member"] == member for entry in manifest["accepted"])
        ]  # fmt: skip
        found.append({
            "process": process, "identity": member, "number": ATTACKS[one.attack].number, "attack": one.attack,
            "bar": str(ATTACKS[one.attack].bar), "parameters": dict(one.parameters),
            "stage": next((int(event["stage"]) for event in log if event["event"] == "ready"), None),
            "first_round": first, "attacked_rounds": sorted(set(attacked)),
            "quarantined_round": int(record["ruled_round"]) if record is not None else None,
            "proved_round": int(record["round"]) if record is not None else None,
            "kind": str(record["kind"]) if record is not None else None,
            "evidence_cid": str(record["evidence_cid"]) if record is not None else None,
            "accepted": accepted, "refused": [{"round": number, "reason": refused[number]} for number in sorted(refused)],
        })  # fmt: skip
    return found


def marked(
    quarantined: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """The quarantined, each with the attack that it made (None: it is honest), and how many of them are honest."""
    attack_of = {one["identity"]: one["attack"] for one in found}
    entries = [{**one, "attack": attack_of.get(one["identity"])} for one in quarantined]
    return entries, sum(1 for one in entries if one["attack"] is None)


def attack_lines(report: Mapping[str, Any]) -> list[str]:
    """What became of each attacker, a line each, for people."""
    lines = []
    for one in report["attackers"]:
        what = f"{one['process']} ({one['number']} {one['attack']}, stage {one['stage']})"
        if one["first_round"] is None:
            lines.append(f"{what} had no occasion to attack")
        elif one["quarantined_round"] is not None:
            lines.append(
                f"{what} attacked from round {one['first_round']} on and was quarantined in round {one['quarantined_round']}: "
                f"{one['kind']} of round {one['proved_round']}, evidence {one['evidence_cid']}"
            )
        else:
            refused = f", refused in {len(one['refused'])} rounds" if one["refused"] else ""
            lines.append(f"{what} attacked from round {one['first_round']} on and was not quarantined{refused}")
    if report["quarantined"] or report["attackers"]:
        lines.append(f"{report['honest_quarantined']} honest members were quarantined")
    return lines
