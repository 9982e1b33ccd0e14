"""What is drawn for an audit. Pure: the round's secret and a member's last link give every draw, again and anywhere.

    seed(i) = HMAC-SHA256(secret of the round, link i)

Link i binds all that the member has committed so far in the round: it can change its draws only by changing its work, and does
not see them before it has committed. Each step is drawn by itself: what was not drawn so far says nothing about what will be.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FIRST_STEP = 1  # its microbatches ran on the round's base weights, which every replica of the stage has, unless it was resumed


@dataclass(frozen=True)
class Rates:
    """How much of a member's work is audited.

    Args:
        audited: chance that a round of the member is audited at all; that is: by passes of its first inner step, and, drawn
            anew, by an inner step as a whole.
        microbatches: of its first inner step that a witness recomputes, if the first step is drawn.
        steps: inner steps that are expected of the member in a round.
    """

    audited: float
    microbatches: int
    steps: int

    @property
    def each_step(self) -> float:
        """Chance of each step to be opened as a whole: over the steps of a round they make `audited`.

        1 - (1 - p)^steps = audited. The last step may be drawn once more, when the update is in (`closing`).
        """
        if self.audited >= 1.0:
            return 1.0 / max(self.steps, 1)
        return 1.0 - (1.0 - self.audited) ** (1.0 / max(self.steps, 1))


@dataclass(frozen=True)
class Draw:
    """What a commit is answered with: ids for a witness, and whether the step must be opened."""

    microbatches: tuple[int, ...] = ()
    step: bool = False
    reason: str = "nothing is drawn"


def seed_of(secret: bytes, link: bytes) -> bytes:
    """The seed of all draws that follow a link, 32 bytes."""
    return hmac.digest(secret, link, "sha256")


def fraction(seed: bytes, what: str) -> float:
    """A number in [0, 1), uniform over seeds and independent for each `what`."""
    return int.from_bytes(hmac.digest(seed, what.encode(), "sha256")[:7], "big") / (1 << 56)


def ranked(seed: bytes, what: str, names: Iterable[str]) -> list[str]:
    """The names in an order that the seed draws, whatever order they come in; without repetition."""
    return sorted(set(names), key=lambda name: (hmac.digest(seed, f"{what}|{name}".encode(), "sha256"), name))


def on_commit(seed: bytes, step: int, identifiers: Sequence[int], rates: Rates, *, resumed: bool = False) -> Draw:
    """What of a step is opened.

    Args:
        step: 1, 2, ...; the beginning of a chain, step 0, has nothing to open.
        identifiers: of the microbatches that the step counted.
        resumed: the chain goes on from saved progress, so that its first step did not run on the base, which is all that a
            witness has: the referee is shown the whole step instead.
    """
    if step < FIRST_STEP or rates.audited <= 0 or not identifiers:
        return Draw()
    chosen: tuple[int, ...] = ()
    reasons = []
    first = step == FIRST_STEP and fraction(seed, "first") < rates.audited
    if first and not resumed:
        order = ranked(seed, "microbatch", (str(one) for one in identifiers))
        chosen = tuple(sorted(int(one) for one in order[: rates.microbatches]))
        reasons.append(f"drawn for a witness: {len(chosen)} of {len(set(identifiers))} microbatches")
    # The passes of a first step say nothing of the state that it has led to, so it is drawn as a whole like any other.
    whole = (first and resumed) or fraction(seed, "step") < rates.each_step
    if whole:
        reasons.append(f"step {step} is drawn" + (", the first one after what was resumed" if first and resumed else ""))
    return Draw(chosen, whole, "; ".join(reasons)) if reasons else Draw()


def on_close(seed: bytes, step: int, rates: Rates, *, opened: bool) -> Draw:
    """Whether the last step is opened once the update is in.

    A round of `audited` = 1 always has a late step drawn; otherwise the last step has the chance that each step has, once more,
    so that it is no safe place for what nobody is to see.

    Args:
        seed: of the last link, with which the update ended. opened: whether a later step of this round was drawn before.
    """
    if step < FIRST_STEP or rates.audited <= 0 or opened:
        return Draw()
    if rates.audited >= 1.0 or fraction(seed, "close") < (rates.audited if step == FIRST_STEP else rates.each_step):
        return Draw((), True, f"the last step, {step}, is drawn")
    return Draw()


@dataclass(frozen=True)
class Able:
    """A member that could recompute a pass: a ready replica of the stage."""

    member: str
    operator: str
    device_class: str = ""


def operator_of(member: str, operator: str) -> str:
    """Who runs a member, as far as audits are concerned: who names nobody is taken for an operator of its own."""
    return operator or f"member {member}"


def witnesses(seed: bytes, microbatch: int, prover: Able, able: Iterable[Able]) -> list[str]:
    """Who may recompute a pass, in the order to ask: members of other operators, of the prover's device class first."""
    own = operator_of(prover.member, prover.operator)
    others = {one.member: one for one in able if one.member != prover.member and operator_of(one.member, one.operator) != own}
    order = ranked(seed, f"witness|{microbatch}", others)
    return sorted(order, key=lambda name: others[name].device_class != prover.device_class)
