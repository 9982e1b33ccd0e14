"""Whether a commit goes on with what its member has committed before. Pure: from the chains of a round to a verdict.

A chain belongs to one (member, generation, part) of a round. Its links are hashes over everything before, so one that is taken
cannot be changed afterwards; two different links for one step, both signed, prove that their signer lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from protocol.commitments import DIGEST_BYTES, NO_MOMENTS, ChainStart, link_of
from protocol.generated import hocket_pb2 as pb

MAX_RECORDS = 100_000   # of one member in one round
MAX_CHAINS = 64         # of one member in one round: each is a restart, or a fault of its device
STEPS_FACTOR = 16       # a chain may have so many times the steps that are expected of a replica in a round
LR_SLACK = 1.0 + 1e-9


Key = tuple[int, int]


def key_of(message: pb.StepCommit | pb.OpeningHead) -> Key:
    """Which of a member's chains of a round a message belongs to: generation and part."""
    return message.generation, message.part


class Take(StrEnum):
    """What becomes of a commit."""

    NEW = "new"
    KNOWN = "known"        # the same again: answered again
    REFUSED = "refused"    # it may be the sender's or the network's mistake
    FORKED = "forked"      # two links for one step: proof


@dataclass(frozen=True)
class Verdict:
    take: Take
    reason: str = ""


@dataclass
class Chain:
    """What one generation of a member has committed in a round, from step 0 on."""

    start: ChainStart
    commits: list[pb.StepCommit] = field(default_factory=list)
    identifiers: set[int] = field(default_factory=set)

    @property
    def last(self) -> pb.StepCommit:
        return self.commits[-1]

    @property
    def resumed(self) -> bool:
        """Whether it goes on from what an earlier chain had come to, and not from the base."""
        return bool(self.start.previous)


@dataclass(frozen=True)
class Expected:
    """What is known of the commits of a stage in a round.

    Args:
        zeros: digest of an update of zeros, with which a chain begins that resumes nothing. lr_peak: of the inner steps.
        steps: inner steps that a replica makes at most, if all goes well.
        moments: digests of the optimizer's moments that the member may begin with beside none: those that it has committed to.
    """

    zeros: bytes
    lr_peak: float
    steps: int
    moments: frozenset[bytes] = frozenset()


def judge(commit: pb.StepCommit, start: ChainStart, chains: Mapping[Key, Chain], expected: Expected) -> Verdict:
    """What becomes of a commit whose signature, round, base and stage are those of the round.

    Args:
        start: as the commit's sender must have it, with the commit's `previous` for step 0.
        chains: of this member in this round.
    """
    chain = chains.get(key_of(commit))
    if chain is not None and commit.step < len(chain.commits):
        if chain.commits[commit.step].link == commit.link:
            return Verdict(Take.KNOWN)
        if not _form_fault(commit, expected) and commit.link == link_of(commit, start):
            return Verdict(Take.FORKED, f"two different commits for step {commit.step} of generation {commit.generation}")
        return Verdict(Take.REFUSED, f"step {commit.step} was committed before, otherwise")
    fault = _form_fault(commit, expected)
    if not fault:
        fault = _first_fault(commit, chains, expected) if commit.step == 0 else _next_fault(commit, chain)
    known = sum(len(one.records) for each in chains.values() for one in each.commits)
    if not fault and known + len(commit.records) > MAX_RECORDS:
        fault = "too many records"
    if not fault and commit.link != link_of(commit, start):
        fault = "its link does not follow from what it says"
    return Verdict(Take.REFUSED, fault) if fault else Verdict(Take.NEW)


def _form_fault(commit: pb.StepCommit, expected: Expected) -> str:
    """What no replica would send; empty: it is well formed."""
    digests = [commit.link, commit.update_digest, commit.moments_digest]
    if any(len(one) != DIGEST_BYTES for one in digests):
        return "a digest that is none"
    if not (math.isfinite(commit.lr) and 0 <= commit.lr <= expected.lr_peak * LR_SLACK):
        return f"a learning rate of {commit.lr:g}, the peak is {expected.lr_peak:g}"
    if commit.step > STEPS_FACTOR * max(expected.steps, 1):
        return f"{commit.step} steps in a round of {expected.steps}"
    if commit.frames != sum(one.frames for one in commit.records):
        return f"divided by {commit.frames} frames, of {sum(one.frames for one in commit.records)}"
    for one in commit.records:
        lengths = {len(one.input), len(one.output), len(one.gradient_in), len(one.gradient_out)}
        if not lengths <= {0, DIGEST_BYTES} or len(one.sender) > 64:
            return f"the record of microbatch {one.id} has a digest that is none"
    return ""


def _first_fault(commit: pb.StepCommit, chains: Mapping[Key, Chain], expected: Expected) -> str:
    if commit.records or commit.frames:
        return "a chain begins with work"
    if len(chains) >= MAX_CHAINS:
        return f"{MAX_CHAINS} chains were begun in this round"
    if not commit.previous:
        if commit.update_digest != expected.zeros:
            return "it begins with other weights than the base's, resuming nothing"
        # Moments alone decide where the first steps go, and no step is replayed that made these.
        known = commit.moments_digest == NO_MOMENTS or commit.moments_digest in expected.moments
        return "" if known else "it begins with moments of the optimizer that it has not committed to before"
    for chain in chains.values():
        for one in chain.commits:
            if one.link == commit.previous:
                same = (one.update_digest, one.moments_digest) == (commit.update_digest, commit.moments_digest)
                return "" if same else "it goes on from another state than the one that it names"
    return "it goes on from a link that was never committed"


def _next_fault(commit: pb.StepCommit, chain: Chain | None) -> str:
    if chain is None:
        return "a chain begins with step 0"
    if commit.step != chain.last.step + 1 or commit.previous != chain.last.link:
        return f"step {commit.step} does not follow step {chain.last.step}"
    counted = [one.id for one in commit.records if one.frames]
    if len(set(counted)) != len(counted) or not chain.identifiers.isdisjoint(counted):
        return "a microbatch is counted twice"
    return ""


def end_fault(chain: Chain | None, link: bytes, step: int) -> str:
    """Why an update does not end the chain of its generation; empty: it does. Its digest is compared once its bytes are there."""
    if chain is None:
        return "nothing was committed under this generation"
    if step != chain.last.step or link != chain.last.link:
        return f"it ends with step {step}, the last one committed is {chain.last.step}, or with another link"
    return ""
