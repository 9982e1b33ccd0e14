"""Takes in what replicas commit to, and answers with what is drawn of it. The door calls it; the journal keeps every draw."""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from common.errors import Code, HocketError
from coordinator.assignment import Role
from coordinator.audit_draw import Draw, Rates, fraction, on_close, on_commit, seed_of
from coordinator.audit_rates import rates_of
from coordinator.audit_secret import AuditSecrets
from coordinator.audit_sizes import most_bytes
from coordinator.audit_state import Audit, Kind, Part
from coordinator.batch_check import BatchCheck
from coordinator.chains import Expected, Key, Take, end_fault, judge, key_of
from coordinator.commit_book import CommitBook, start_of
from coordinator.core import Core
from coordinator.cross_check import Conflict, Records
from coordinator.leased_rows import rows_fault
from coordinator.run import Member
from coordinator.update_proof import zeros_digest
from coordinator.versions import tensor_infos
from protocol.commitments import MOMENTS_ROUNDS
from protocol.generated import hocket_pb2 as pb

logger = logging.getLogger(__name__)

_OPENING_KINDS = {Part.INPUT: pb.PASS_INPUT, Part.OUTPUT: pb.PASS_OUTPUT, Part.STEP: pb.STEP, Part.REQUEST: pb.REQUEST}

# A step is full when it holds what one lease is worth. More by far is the claim of somebody who wants to fill the disk.
MOST_LEASES_A_STEP = 16

Forked = Callable[[Member, list[bytes], pb.StepCommit, str], None]


class AuditIntake:
    """Commits of the round, and the draws that follow them.

    Args:
        core, book, secrets: the run, its commits, its secrets.
        forked: told (member, the two signed commits, reason) when one step was committed to twice.
        batches: compares what stage 0 has read.
    """

    def __init__(
        self, core: Core, book: CommitBook, secrets: AuditSecrets, forked: Forked, batches: BatchCheck
    ) -> None:
        self._core = core
        self._book = book
        self._secrets = secrets
        self._forked = forked
        self._batches = batches
        self._records: dict[int, Records] = {}
        self._zeros: dict[int, bytes] = {}

    def resume(self) -> None:
        """After a start: what was committed in this round is compared as if it came now.

        Nothing is drawn of it: what was answered had its draw in the journal, and what was not is sent again. Another draw, by
        rates that have changed since, would ask for steps that their makers have let go of once they were answered.
        """
        state = self._core.state
        for name in self._book.members(state.round):
            for chain in self._book.chains(state.round, name).values():
                for commit in chain.commits:
                    self._compare(name, commit)
                    self._batches.add(name, commit)
        for (_, name), update in list(state.updates.items()):
            parts = [part for generation, part in self._book.chains(state.round, name) if generation == update.generation]
            if parts and name in state.members:
                self._close(state.members[name], state.round, (update.generation, max(parts)))

    # ---- commits -----------------------------------------------------------------------------------------------------

    def commit(self, member: Member, header: pb.SignedHeader, signed: pb.Signed, commit: pb.StepCommit) -> pb.CommitReply:
        """Take a commit in; on return it is on disk, and so is what was drawn.

        Raises:
            HocketError: COMMIT_REFUSED with the reason; QUARANTINED when it proves that its signer lies; DISK_FULL.
        """
        if fault := self._place_fault(member, header, commit):
            raise HocketError(Code.COMMIT_REFUSED, fault)
        chains, expected = self._book.chains(commit.round, member.member), self._expected(member.member, commit)
        verdict = judge(commit, start_of(header, commit), chains, expected)
        if verdict.take is Take.FORKED:
            known = self._book.signed(
                commit.round, member.member,
                lambda one: (key_of(one), one.step) == (key_of(commit), commit.step),
            )  # fmt: skip
            self._forked(member, [signed.SerializeToString(), *known], commit, verdict.reason)
            raise HocketError(Code.QUARANTINED, verdict.reason)
        if verdict.take is Take.REFUSED:
            logger.warning("a commit of %s is refused: %s", member.member[:12], verdict.reason)
            raise HocketError(Code.COMMIT_REFUSED, verdict.reason)
        if verdict.take is Take.NEW:
            if fault := rows_fault(commit, member.member, self._core.state.leases.values()):
                logger.warning("a commit of %s is refused: %s", member.member[:12], fault)
                raise HocketError(Code.COMMIT_REFUSED, fault)
            self._book.take(signed, header, commit)
            self._core.faults.reach("coordinator.commit.kept", round=commit.round, step=commit.step)
            self._compare(member.member, commit)
            self._batches.add(member.member, commit)
        draw = self._draw(member, commit)
        mine = [one for one in self._core.state.audit.of(member.member) if one.link == commit.link.hex()]
        wanted = {(one.kind, one.microbatch) for one in mine if one.missing}
        return pb.CommitReply(
            open_step=(Kind.STEP, -1) in wanted, reason=draw.reason,
            open_microbatches=[one for one in draw.microbatches if (Kind.PASS, one) in wanted],
        )  # fmt: skip

    def _place_fault(self, member: Member, header: pb.SignedHeader, commit: pb.StepCommit) -> str:
        state = self._core.state
        if (commit.round, header.round) != (state.round, state.round) or header.base_cid != state.base_cid:
            return f"it is of round {commit.round}; round {state.round} is in phase {state.phase}"
        if header.stage != commit.stage or commit.stage != member.stage or member.role is not Role.REPLICA or not member.live:
            return "it is not of your current assignment"
        # A chain may begin before the report has come that the base is loaded.
        if commit.generation > member.generation:
            return "it is of a generation that you do not have"
        return ""

    def _expected(self, member: str, commit: pb.StepCommit) -> Expected:
        manifest = self._core.manifest
        assert manifest is not None
        if commit.stage not in self._zeros:
            self._zeros[commit.stage] = zeros_digest(tensor_infos(manifest.stages[commit.stage]))
        # A stage with few replicas makes the steps of all of stage 0.
        steps = self.steps * max(len(self._core.state.replicas(0)), 1)
        rounds = range(commit.round - MOMENTS_ROUNDS, commit.round + 1)
        moments = self._book.moments(rounds, member, commit.stage)
        return Expected(self._zeros[commit.stage], self._core.config.rounds.inner_lr, steps, moments)

    @property
    def steps(self) -> int:
        """Inner steps that are expected of a replica in this round."""
        rounds, state = self._core.config.rounds, self._core.state
        if not rounds.frame_target:
            return rounds.inner_steps
        return max(1, math.ceil(rounds.frame_target / rounds.frames_per_inner_step / max(len(state.replicas(0)), 1)))

    def _compare(self, member: str, commit: pb.StepCommit) -> None:
        """Compare a commit's records with its neighbours', and ask for the request where they differ."""
        records = self._records.setdefault(commit.round, Records())
        for old in [one for one in self._records if one < commit.round - 1]:
            del self._records[old]
        for conflict in records.add(commit.stage, member, commit):
            self._ask_for_request(commit.round, conflict)

    # ---- draws -------------------------------------------------------------------------------------------------------

    def rates(self, member: str) -> Rates:
        """How much of a member's work is audited now."""
        audit, standing = self._core.config.audit, self._core.state.audit.standing(member)
        return rates_of(
            standing, rate=audit.rate, new_rounds=audit.new_rounds, microbatches=audit.microbatches, steps=self.steps
        )

    def seed(self, round: int, link: bytes) -> bytes:
        """Of the draws that follow a link."""
        return seed_of(self._secrets.secret(round), link)

    def _rates_in(self, member: str, round: int, key: Key) -> Rates:
        """The rates for a chain: one that was begun after something of another was drawn and not shown is audited for certain.

        Else a member could begin again until nothing is drawn.
        """
        rates, audit = self.rates(member), self._core.state.audit
        again = any(known == member for known, _ in audit.unseen) or any(
            one.missing and one.round == round and (one.generation, one.part) < key for one in audit.of(member)
        )
        return replace(rates, audited=1.0) if again and rates.audited > 0 else rates

    def unseen(self, member: str, head: pb.UpdateHead) -> str:
        """Why an update rests on work that was drawn and will never be shown; empty: it does not."""
        audit, rests_on = self._core.state.audit, self._book.resting_on(head.round, member, head.generation)
        lost = {link for known, link in audit.unseen if known == member} | {
            one.link for one in audit.of(member)
            if one.missing and (one.generation, one.part) < (head.generation, head.chain_part)
        }  # fmt: skip
        return "it rests on a step that was drawn and not shown, as its member had begun anew" if lost & rests_on else ""

    def _draw(self, member: Member, commit: pb.StepCommit) -> Draw:
        """What of a commit is drawn: what was drawn of it before, if it was."""
        rates = self._rates_in(member.member, commit.round, key_of(commit))
        seed = self.seed(commit.round, commit.link)
        chain = self._book.chains(commit.round, member.member)[key_of(commit)]
        counted = [one.id for one in commit.records if one.frames]
        draw = on_commit(seed, commit.step, counted, rates, resumed=chain.resumed)
        for identifier in draw.microbatches:
            known = fraction(seed, f"known|{identifier}") < self._core.config.audit.canaries
            self._begin(Kind.PASS, member, commit, seed, rates, microbatch=identifier, known=known)
        if draw.step:
            self._begin(Kind.STEP, member, commit, seed, rates)
        return draw

    def closing_draw(self, member: Member, head: pb.UpdateHead) -> bool:
        """Whether the last step of an update that is on disk is to be opened."""
        return self._close(member, head.round, (head.generation, head.chain_part))

    def _close(self, member: Member, round: int, key: Key) -> bool:
        chain = self._book.chains(round, member.member).get(key)
        if chain is None:
            return False
        mine = [one for one in self._core.state.audit.drawn_steps if one[:4] == (member.member, round, *key)]
        rates = self._rates_in(member.member, round, key)
        seed = self.seed(round, chain.last.link)
        again = (member.member, round, *key, chain.last.link.hex()) in mine
        draw = on_close(seed, chain.last.step, rates, opened=bool(mine) and not again)
        if draw.step and not again:
            self._begin(Kind.STEP, member, chain.last, seed, rates, closing=True)
        return draw.step

    def _begin(self, kind: Kind, member: Member, commit: pb.StepCommit, seed: bytes, rates: Rates, **more: Any) -> None:
        """Journal a draw, once."""
        state, microbatch = self._core.state, more.pop("microbatch", -1)
        name = hmac.digest(seed, f"audit|{kind}|{commit.step}|{microbatch}".encode(), "sha256")[:12].hex()
        if name in state.audit.drawn_ids:
            return
        self._core.emit(
            "audit_drawn", id=name, kind=kind.value, member=member.member, operator=member.operator,
            device_class=member.info.get("device_class", ""), stage=commit.stage, round=commit.round,
            generation=commit.generation, part=commit.part, step=commit.step, microbatch=microbatch, version=state.version,
            base_cid=state.base_cid, link=commit.link.hex(), rates=asdict(rates),
            most_bytes=self._most_bytes(kind, commit, microbatch), **more,
        )  # fmt: skip

    def _most_bytes(self, kind: Kind, commit: pb.StepCommit, microbatch: int) -> int:
        """How large what is drawn can be: a microbatch has no more utterances than its lease, a step not many leases'."""
        state, manifest = self._core.state, self._core.manifest
        assert manifest is not None
        tensors = tensor_infos(manifest.stages[commit.stage])
        most = MOST_LEASES_A_STEP * self._core.sizes.rows_per_lease
        counted = [microbatch] if kind is Kind.PASS else [one.id for one in commit.records if one.frames]
        rows = [
            next((one.range.rows for one in state.leases.values()
                  if one.first_microbatch_id <= identifier < one.first_microbatch_id + one.issued), 0)
            for identifier in counted
        ]  # fmt: skip
        return most_bytes(kind, state.model_config, sum(one.size_bytes for one in tensors), len(tensors), min(sum(rows), most))

    def _ask_for_request(self, round: int, conflict: Conflict) -> None:
        """The receiver of what two records say otherwise is to show what it was sent."""
        state = self._core.state
        consumer = state.members.get(conflict.consumer.member)
        commit = self._book.commit(round, conflict.consumer.member, conflict.consumer.link)
        if consumer is None or commit is None or round != state.round:
            return
        seed = self.seed(round, commit.link)
        producer, identifier = conflict.producer.member, conflict.consumer.record.id
        if any(one.accused == producer and one.member == consumer.member for one in state.audit.audits.values()):
            return  # one proof is enough
        logger.warning("%s and %s differ on microbatch %d", producer[:12], consumer.member[:12], identifier)
        self._begin(
            Kind.REQUEST, consumer, commit, seed, self.rates(consumer.member), microbatch=identifier, accused=producer,
            accused_link=conflict.producer.link.hex(),
        )  # fmt: skip

    # ---- updates, views ----------------------------------------------------------------------------------------------

    def head_fault(self, member: Member, head: pb.UpdateHead) -> str:
        """Why an update does not end what its member committed to; empty: it does."""
        chain = self._book.chains(head.round, member.member).get((head.generation, head.chain_part))
        if not head.chain_link and self._core.config.audit.rate <= 0:
            return ""  # where nobody is audited, commits are not asked for
        return end_fault(chain, head.chain_link, head.chain_step)

    def tasks(self, member: str) -> list[pb.OpeningTask]:
        """What a member has yet to open."""
        return [
            pb.OpeningTask(
                kind=_OPENING_KINDS[part], round=one.round, step=one.step, microbatch_id=max(one.microbatch, 0), audit_id=one.id
            )
            for one in self._core.state.audit.of(member) for part in one.missing
        ]  # fmt: skip

    def witness_tasks(self, member: str) -> list[pb.WitnessTask]:
        """What a member is asked to recompute."""
        state = self._core.state
        return [
            pb.WitnessTask(
                audit_id=one.id, round=one.round, stage=one.stage, base_cid=one.base_cid, microbatch_id=one.microbatch,
                frames=self._frames(one), input_cid=one.input_cid,
            )
            for one in state.audit.audits.values()
            if one.witness == member and Part.WITNESS not in one.files and not one.escalated and one.round == state.round
        ]  # fmt: skip

    def _frames(self, audit: Audit) -> int:
        """Frames of an audited pass as they were committed to; 0 where that is not known any more."""
        record = self._book.record(audit.round, audit.member, bytes.fromhex(audit.link), audit.microbatch)
        return 0 if record is None else record.frames

    def commitment(self) -> bytes:
        """What members are told of this round's secret."""
        return self._secrets.commitment(self._core.state.round)
