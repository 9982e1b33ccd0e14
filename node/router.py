"""Chooses the replica of the next stage for each microbatch: the one that will have finished its part of the step first.

Random picks starve replicas of their share of an inner step. The rule here is the opposite: within each inner step
of the sender, the next microbatch goes to the replica that is predicted to have finished soonest what it has been given in this
step and this microbatch besides, by the pace at which it has answered before. Replicas that count as equally fast so get
equal shares; one half as fast gets half a share, and one that is new counts as the fastest until it is known. Ties are broken
in a rotation that starts at the sender's own index and moves on with every step, so that several senders do not all begin with
the same replica. What one step left uneven is carried into the next, at most one microbatch deep, so a replica that
comes back is not flooded.

A microbatch's share is a fraction of the inner step of the sender it came from; shares are added exactly.

A pure decider: `now` comes in, a choice and its reason come out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from node.pace import Pace


@dataclass(frozen=True)
class Choice:
    """What `Router.choose` decided.

    Args:
        peer: peer id of the replica, or None when none can be tried now.
        reason: one line for the log.
        wait_s: with no peer: seconds until one may be tried again; infinite when none will be in this round.
    """

    peer: str | None
    reason: str
    wait_s: float = 0.0


@dataclass
class _Replica:
    """`level`: what it has been given in this inner step, in inner steps of the fastest replica's time."""

    level: Fraction = Fraction(0)
    failures: int = 0
    retry_at: float = -math.inf
    why: str = ""
    drained: bool = False
    probe: bool = False


class Router:
    """The routing state of one sender towards the replicas of one stage, for one round.

    Args:
        replicas: peer ids of the stage's replicas, in the roster's order (the same at every sender).
        start: the sender's own index among the replicas of its stage.
        back_off_s: how long a replica is left alone after its first failure; doubled with each further one.
        back_off_limit_s: upper bound of that.
        busy_s: how long a replica that answered BUSY is left alone.
        pace: what the sender has seen of the replicas before.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        *,
        start: int = 0,
        back_off_s: float = 2.0,
        back_off_limit_s: float = 30.0,
        busy_s: float = 0.1,
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace or Pace()
        self._start = start
        self._back_off_s = back_off_s
        self._back_off_limit_s = back_off_limit_s
        self._busy_s = busy_s
        self._step = 0
        self._largest = Fraction(0)
        self._replicas: dict[str, _Replica] = {}
        self.replace(replicas)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self._replicas)

    def replace(self, replicas: Sequence[str]) -> None:
        """Follow a new roster: replicas that stay keep their state, new ones start level with the least loaded."""
        level = min((replica.level for replica in self._replicas.values()), default=Fraction(0))
        self._replicas = {peer: self._replicas.get(peer) or _Replica(level) for peer in replicas}
        self._slowness = self._pace.slowness(self._replicas)

    def begin_step(self, step: int) -> None:
        """A new inner step of the sender: start level again, but for at most one microbatch of imbalance carried over."""
        if step == self._step:
            return
        self._step = step
        lowest = min((replica.level for replica in self._replicas.values()), default=Fraction(0))
        for replica in self._replicas.values():
            replica.level = min(replica.level - lowest, self._largest)
        self._largest = Fraction(0)
        self._slowness = self._pace.slowness(self._replicas)  # the same for the whole step

    def choose(self, share: Fraction, *, now: float, avoid: Collection[str] = ()) -> Choice:
        """Assign a microbatch.

        Args:
            share: of an inner step that the microbatch is.
            now: seconds, any clock that does not go back.
            avoid: replicas that this microbatch has been to; one of them is chosen only when no other can be.
        """
        serving = [peer for peer, replica in self._replicas.items() if not replica.drained]
        if not serving:
            return Choice(None, "every replica is draining" if self._replicas else "the stage has no replica", math.inf)
        ready = [peer for peer in serving if self._replicas[peer].retry_at <= now]
        if not ready:
            soonest = min(serving, key=lambda peer: self._replicas[peer].retry_at)
            return Choice(None, f"no replica can be tried: {self._replicas[soonest].why}", self._replicas[soonest].retry_at - now)
        fresh = [peer for peer in ready if peer not in avoid]
        order = {peer: index for index, peer in enumerate(self._replicas)}
        turn = self._start + self._step
        cost = {peer: share if slowness == 1 else share * slowness for peer, slowness in self._slowness.items()}
        even = len({*cost.values()}) == 1  # then the smallest share is the first to be finished
        finish = {peer: self._replicas[peer].level + (0 if even else cost[peer]) for peer in fresh or ready}
        chosen = min(finish, key=lambda peer: (finish[peer], (order[peer] - turn) % len(order)))
        probed = self._replicas[chosen]
        if probed.failures:
            # One microbatch finds out whether it is back; the others do not wait for its silence again.
            probed.retry_at, probed.probe = now + self._back_off_s * 2.0**probed.failures, True
        reason = f"first to finish, at pace {self._slowness[chosen]}" if fresh else "all others have been tried or cannot be"
        self._replicas[chosen].level += cost[chosen]
        self._largest = max(self._largest, cost[chosen])
        return Choice(chosen, reason)

    def answered(self, peer: str, share: Fraction, *, sent: float, now: float) -> None:
        """The replica answered a microbatch of training: its failures are forgotten, its pace is remembered."""
        self._pace.answered(peer, share, sent=sent, now=now)
        self.succeeded(peer)

    def _give_back(self, replica: _Replica, peer: str, share: Fraction) -> None:
        replica.level = max(Fraction(0), replica.level - share * self._slowness[peer])

    def succeeded(self, peer: str) -> None:
        """The replica answered: its failures are forgotten."""
        if peer in self._replicas:
            replica = self._replicas[peer]
            replica.failures, replica.retry_at, replica.probe = 0, -math.inf, False

    def failed(self, peer: str, share: Fraction, *, now: float, why: str) -> float:
        """The replica failed a microbatch; returns for how many seconds it is left alone.

        Microbatches that were at the replica when it was first found failing tell nothing new: they do not add to the back-off.
        """
        if peer not in self._replicas:
            return 0.0
        replica = self._replicas[peer]
        self._give_back(replica, peer, share)
        if replica.failures and now < replica.retry_at and not replica.probe:
            return replica.retry_at - now
        back_off_s = min(self._back_off_limit_s, self._back_off_s * 2.0**replica.failures)
        replica.failures, replica.probe = replica.failures + 1, False
        replica.retry_at, replica.why = now + back_off_s, why
        return back_off_s

    def pause(self, peer: str, share: Fraction, *, now: float, why: str, pause_s: float | None = None) -> None:
        """The replica is well but takes nothing now: no mark against it, a short pause, its share given back.

        Args:
            pause_s: when other than the router's `busy_s`.
        """
        if peer in self._replicas:
            replica = self._replicas[peer]
            self._give_back(replica, peer, share)
            until = now + (self._busy_s if pause_s is None else pause_s)
            if replica.probe:  # it answers again
                replica.failures, replica.retry_at, replica.probe = 0, -math.inf, False
            if until > replica.retry_at:
                replica.retry_at, replica.why = until, why

    def drained(self, peer: str, share: Fraction) -> None:
        """The replica closes its round: it takes nothing more before the next one."""
        if peer in self._replicas:
            self._give_back(self._replicas[peer], peer, share)
            self._replicas[peer].drained = True
