"""All attacks by name, and the variants of those on updates that tables and benchmarks run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from simulations.attacks.base import Attack, UpdateAttack
from simulations.attacks.forged_work import ConstantDirection, Copycat, JointSignFlip, Noise, SignFlip
from simulations.attacks.impossible import FreeRide, Huge, Inflated, NotFinite
from simulations.attacks.inside_spread import AgainstTrimming, Drift, InnerProduct, LittleIsEnough, Mimic, MinMax
from simulations.attacks.on_data import ShiftedCodes, SwappedTexts
from simulations.attacks.on_passes import FalsePass
from simulations.attacks.on_submission import Delayed, InflatedClaim, OtherBase, OtherShapes, Replayed
from simulations.attacks.on_verification import Equivocation, FalseBlocks, LyingWitness, ManyNames

ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind
    for kind in (
        SignFlip, JointSignFlip, LittleIsEnough, InnerProduct, Noise, MinMax, AgainstTrimming, ConstantDirection, Mimic, FreeRide,
        Copycat, NotFinite, Huge, Inflated, Drift, ShiftedCodes, SwappedTexts, FalsePass, Delayed, InflatedClaim, OtherBase,
        OtherShapes, Replayed, Equivocation, FalseBlocks, LyingWitness, ManyNames,
    )
}  # fmt: skip


def attack_named(name: str, parameters: Mapping[str, Any]) -> Attack:
    """The attack of that name with those parameters.

    Raises:
        ValueError: for a name or a parameter that there is not; it says which there are.
    """
    kind = ATTACKS.get(name)
    if kind is None:
        raise ValueError(f"no attack {name!r}; known: {', '.join(sorted(ATTACKS))}")
    known: set[str] = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    odd = sorted(set(parameters) - known)
    if odd:
        raise ValueError(f"{name} has no parameter {odd[0]!r}; known: {', '.join(sorted(known)) or 'none'}")
    return kind(**parameters)


def update_variants() -> dict[str, UpdateAttack]:
    """The attacks on the values of updates by a label, each at the strengths that are worth a row of a table."""
    return {
        "A1 sign flip x1": SignFlip(1.0),
        "A1 sign flip x10, joint": JointSignFlip(10.0),
        "A1 sign flip x1000": SignFlip(1000.0),
        "A2 little is enough, z by count": LittleIsEnough(0.0),
        "A2 little is enough, z 1.5": LittleIsEnough(1.5),
        "A3 inner product 0.1": InnerProduct(0.1),
        "A3 inner product 0.5": InnerProduct(0.5),
        "A3 inner product 2": InnerProduct(2.0),
        "A3 inner product 100": InnerProduct(100.0),
        "A4 noise x0.1": Noise(0.1),
        "A4 noise x10": Noise(10.0),
        "A5 min-max": MinMax(),
        "A6 against trimming": AgainstTrimming(),
        "A7 constant direction x1000": ConstantDirection(1000.0),
        "A10 mimic": Mimic(),
        "A14 one NaN": NotFinite(),
        "A14 all infinite": NotFinite(float("inf"), 1.0),
        "A15 times 1e6": Huge(1e6),
        "A15 times 1e30": Huge(1e30),
        "A16 inflated": Inflated(),
        "A23 drift": Drift(),
    }
