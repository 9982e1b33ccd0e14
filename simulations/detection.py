"""How soon audits meet fabricated work: many rounds of the coordinator's own draws beside the arithmetic. Pure.

What is counted is that false work is drawn and recomputed. A recomputation by a witness who is in league with the
attacker says nothing; the draws of late steps go to the coordinator's referee, who is not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from coordinator.audit_draw import FIRST_STEP, Rates, on_close, on_commit, seed_of


class Cheats(StrEnum):
    """Where in a round the work is false."""

    EVERYWHERE = "every step and pass"
    LATE = "one late step of each round, another one each time"
    LAST = "the last step of each round"
    FIRST = "one pass of the first step of each round"
    BEGINNING = "the state that the first step of each round leads to"


@dataclass(frozen=True)
class Scene:
    """A cheat and those who look for it.

    Args:
        rates: of the audits. passes: microbatches of each inner step. cheats: where the work is false.
    """

    rates: Rates
    passes: int
    cheats: Cheats


def met_in_round(scene: Scene) -> float:
    """Arithmetic: the chance that a round's false work is drawn in that round.

    With each step drawn with p: everywhere 1 - (1 - a)(1 - p)^(S + 1), a late step p, the last step p and, where no late one was
    drawn before, p once more; one pass of the first step a k / M, its state p.
    """
    rates, steps = scene.rates, scene.rates.steps
    if steps < 3:
        raise ValueError("a round of three steps at least")
    a, p = rates.audited, rates.each_step
    not_before = (1 - p) ** (steps - 2)
    closing = 1.0 if a >= 1.0 else p
    last = p + (1 - p) * not_before * closing
    match scene.cheats:
        case Cheats.EVERYWHERE:
            return 1 - (1 - a) * (1 - p) ** steps * (1 - closing)
        case Cheats.LAST:
            return last
        case Cheats.LATE:
            return ((steps - 2) * p + last) / (steps - 1)
        case Cheats.FIRST:
            return a * min(1.0, rates.microbatches / scene.passes)
        case Cheats.BEGINNING:
            return p


def met(scene: Scene, secret: bytes, member: int, round: int) -> bool:
    """One round of one member: whether what is drawn of it is false.

    Args:
        secret: of the whole experiment; stands for the coordinator's key.
    """
    rates = scene.rates
    of_round = hashlib.sha256(secret + round.to_bytes(4, "big")).digest()
    late = 2 + hashlib.sha256(f"late|{member}|{round}".encode()).digest()[0] % (rates.steps - 1)
    opened, seed = False, b""
    for step in range(FIRST_STEP, rates.steps + 1):
        # Each link is a fresh hash, as commits of real work are.
        link = hashlib.sha256(f"link|{member}|{round}|{step}".encode()).digest()
        seed = seed_of(of_round, link)
        draw = on_commit(seed, step, range(scene.passes), rates)
        if step == FIRST_STEP:
            if draw.microbatches and (
                scene.cheats is Cheats.EVERYWHERE or (scene.cheats is Cheats.FIRST and 0 in draw.microbatches)
            ):
                return True
            if draw.step and scene.cheats in (Cheats.EVERYWHERE, Cheats.BEGINNING):
                return True
        elif draw.step:
            opened = True
            if _false(scene.cheats, step, late, rates.steps):
                return True
    return on_close(seed, rates.steps, rates, opened=opened).step and _false(scene.cheats, rates.steps, late, rates.steps)


def _false(cheats: Cheats, step: int, late: int, steps: int) -> bool:
    """Whether a late step is false."""
    return cheats is Cheats.EVERYWHERE or (cheats is Cheats.LATE and step == late) or (cheats is Cheats.LAST and step == steps)


def curve(scene: Scene, rounds: int, members: int, secret: bytes) -> list[float]:
    """Share of `members` cheats that were met by the end of round 1, 2, ..., `rounds`."""
    at = [0] * rounds
    for member in range(members):
        for number in range(rounds):
            if met(scene, secret, member, number):
                at[number] += 1
                break
    total, shares = 0, []
    for count in at:
        total += count
        shares.append(total / members)
    return shares
