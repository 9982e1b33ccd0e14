"""What is computed from n updates: which rule, after which preparation, and how many false updates it stands.

Breakdown points: coordinate-wise median and trimmed mean n >= 2f + 1 (Yin et al., 2018, arXiv 1803.01498); geometric median and
centred clipping around the coordinate-wise median n >= 2f + 1; Krum and Multi-Krum n >= 2f + 3 (Blanchard et al., 2017, arXiv
1703.02757); the mean none.
"""

from __future__ import annotations

from dataclasses import dataclass

RULES = ("trimmed_mean", "median", "centred_clipping", "geometric_median", "krum", "multi_krum", "mean")
PREPARATIONS = ("none", "bucketing", "mixing")
KRUM = ("krum", "multi_krum")


@dataclass(frozen=True)
class Plan:
    """What will be computed from `n` updates.

    Args:
        rule: that is applied: the configured one, or what takes its place.
        f: false updates that the rule reckons with: trimmed at either end, or left out of neighbourhoods.
        tolerates: arbitrary updates that cannot carry the result away from the honest ones: the breakdown point, which may be
            above `f` where the rule needs no number.
        prepare: one of PREPARATIONS that comes before the rule.
        clip: whether updates longer than the median norm are shortened to it first.
        why: what differs from the configuration, in words; empty when nothing does.
    """

    rule: str
    n: int
    f: int
    tolerates: int
    prepare: str = "none"
    clip: bool = False
    why: str = ""

    @property
    def rows(self) -> int:
        """What the rule sees: updates, or buckets of two of them."""
        return (self.n + 1) // 2 if self.prepare == "bucketing" else self.n


def plan(rule: str, tolerate: int, n: int, prepare: str = "none") -> Plan:
    """The rule that `n` updates allow: f = min(tolerate, (n - 1) // 2); one or two updates have no majority: the mean.

    Args:
        rule: one of RULES.
        tolerate: how many false updates the organiser wants to stand.
        prepare: one of PREPARATIONS. Bucketing is left out where its buckets would have no honest majority.
    """
    if rule not in RULES:
        raise ValueError(f"no rule {rule!r}")
    if prepare not in PREPARATIONS:
        raise ValueError(f"no preparation {prepare!r}")
    most = max((n - 1) // 2, 0)
    if rule == "mean":
        return Plan("mean", n, 0, 0)
    if most == 0:
        return Plan("mean", n, 0, 0, why=f"{n} updates have no majority" if n else "")
    f = min(tolerate, most)
    why = [f"{n} updates stand {f}, not {tolerate}"] if f < tolerate else []
    if rule in KRUM and n < 2 * f + 3:
        why.append(f"{rule} needs {2 * f + 3} updates to stand {f}")
        rule = "trimmed_mean"
    if prepare == "bucketing" and 2 * f >= (n + 1) // 2:
        why.append(f"{(n + 1) // 2} buckets have no majority over {f}")
        prepare = "none"
    rows = (n + 1) // 2 if prepare == "bucketing" else n
    if prepare == "bucketing" and rule in KRUM and rows < 2 * f + 3:
        why.append(f"{rule} needs {2 * f + 3} buckets to stand {f}")
        prepare = "none"
    tolerates = f if prepare == "mixing" or rule in ("trimmed_mean", *KRUM) else (rows - 1) // 2
    return Plan(rule, n, f, tolerates, prepare, True, "; ".join(why))
