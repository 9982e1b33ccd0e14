"""The coordinator's audits, put together: what door, uploads and views ask of them, and the task that moves them on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from common.errors import Code
from coordinator.audit_evidence import Accuser
from coordinator.audit_files import AuditFiles
from coordinator.audit_intake import AuditIntake
from coordinator.audit_loop import AuditLoop
from coordinator.audit_secret import AuditSecrets
from coordinator.audit_state import Opening
from coordinator.batch_check import BatchCheck
from coordinator.commit_book import CommitBook
from coordinator.core import Core
from coordinator.leased_batches import Comparison
from coordinator.referee import Referee
from coordinator.rounds import Phase
from coordinator.run import Member
from coordinator.update_checks import measure
from coordinator.update_proof import Fault, rates_of, size_fault, update_fault
from coordinator.versions import Versions, tensor_infos
from protocol.commitments import MOMENTS_ROUNDS
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from swarm.blocks import BlockStore

logger = logging.getLogger(__name__)

MOST_ODDITIES = 16  # of one report
ROUNDS_KEPT = 1 + MOMENTS_ROUNDS  # of commits, and those that audits are about


class Auditing:
    """Audits of one run.

    Args:
        core: the run. versions, store: its weights, and where evidence goes. key: the coordinator's.
        secrets: of the rounds. state_dir: everything lies in `audit/` below it.
    """

    def __init__(
        self, core: Core, versions: Versions, store: BlockStore, key: MemberKey, secrets: AuditSecrets, state_dir: Path
    ) -> None:
        self._core = core
        self._versions = versions
        self._state_dir = state_dir
        self.book = CommitBook(state_dir / "audit" / "commits")
        self._accuser = Accuser(core, self.book, secrets, store, key, state_dir)
        self._files = AuditFiles(core, self.book, state_dir)
        referee = Referee(core, self.book, secrets, versions, store, state_dir)
        self.batches = BatchCheck(core, secrets, store, self._read_otherwise)
        self.loop = AuditLoop(core, self.book, secrets, self._files, referee, self._accuser, store, self.batches)
        self.intake = AuditIntake(core, self.book, secrets, self._forked, self.batches)
        self._largest: dict[tuple[str, int], float] = {}
        self._forgotten = 0

    def resume(self) -> None:
        """After a start, before members come: read what is on disk, drop what nobody needs. STATE_UNREADABLE, DISK_FULL."""
        self.book.load()
        self._files.clean_up()
        self.intake.resume()

    async def settled(self, limit_s: float) -> None:
        """Wait until batches are compared and audits that are under way have ended, the latter at most `limit_s`."""
        await self.batches.step()
        await self.loop.settled(limit_s)

    # ---- the door ----------------------------------------------------------------------------------------------------

    def commit(self, member: Member, header: pb.SignedHeader, signed: pb.Signed, commit: pb.StepCommit) -> pb.CommitReply:
        """See `AuditIntake.commit`."""
        state = self._core.state
        if state.round > self._forgotten:
            self._forgotten = state.round
            # What an audit is about is its evidence, however long the audit takes.
            self.book.forget(min(state.round - ROUNDS_KEPT + 1, state.audit.oldest_round or state.round))
        reply = self.intake.commit(member, header, signed, commit)
        self.loop.changed.set()
        return reply

    async def receive(
        self, member: Member, head: pb.OpeningHead, signed: pb.Signed, chunks: AsyncIterator[pb.UpdateChunk]
    ) -> pb.UpdateReceipt:
        """See `AuditFiles.receive`."""
        receipt = await self._files.receive(member, head, signed, chunks)
        self.loop.changed.set()
        return receipt

    def take_oddities(self, member: Member, report: pb.MemberReport) -> None:
        """What a member found odd in what a neighbour in the pipeline sent it: no proof, but the neighbour's work is audited.

        An accuser that lies has another audited, and nothing more.
        """
        state = self._core.state
        if member.stage is None or (report.round, report.generation) != (state.round, member.generation):
            return
        for name in {one.member_id for one in report.oddities[:MOST_ODDITIES]}:
            known = state.members.get(name)
            if known is None or known.stage not in (member.stage - 1, member.stage + 1):
                continue
            if self._core.config.audit.rate > 0 and not state.audit.standing(name).suspected:
                self._core.emit("audit_suspected", member=name, reason=f"{member.member[:12]} found odd what it sent")

    # ---- views -------------------------------------------------------------------------------------------------------

    def add_to(self, view: pb.RunView, member: str) -> None:
        """What a member's view says of audits."""
        view.audit_commitment = self.intake.commitment()
        view.witness.extend(self.intake.witness_tasks(member))
        view.openings.extend(self.intake.tasks(member))

    # ---- updates -----------------------------------------------------------------------------------------------------

    def head_fault(self, member: Member, head: pb.UpdateHead) -> str:
        """See `AuditIntake.head_fault`."""
        return self.intake.head_fault(member, head)

    async def update_fault(self, member: Member, head: pb.UpdateHead, signed: pb.Signed, path: Path) -> str:
        """Why an update whose bytes are those that were signed is refused; empty: it is not.

        What its bytes prove against its member ends in a quarantine.

        Args:
            path: of the update, in the state directory.
        """
        core, state = self._core, self._core.state
        manifest = core.manifest
        assert manifest is not None
        # Of now: the run and the chain may go on while the bytes are read.
        place, tensors = self._accuser.now(), tensor_infos(manifest.stages[head.stage])
        chains = self.book.chains(head.round, member.member)
        chain = chains.get((head.generation, head.chain_part)) if head.chain_link else None
        committed = None if chain is None else chain.last.update_digest
        rates = rates_of((one for each in chains.values() for one in each.commits), head.chain_link)

        def look() -> Fault | None:
            key = (place.base_cid, head.stage)
            most = self._largest.get(key)
            if most is None:
                most = measure(self._versions.files(manifest, head.stage).weights, tensors, Code.CHECKPOINT_INVALID).largest
                self._largest = {**{one: known for one, known in self._largest.items() if one[0] == key[0]}, key: most}
            return update_fault(
                path, tensors, committed=committed, lr_sum=None if chain is None else sum(rates),
                weight_decay=core.config.rounds.weight_decay, base_largest=most,
            )  # fmt: skip

        fault = await asyncio.to_thread(look)
        if head.stage == 0:
            await self.batches.step()  # what it is known to have trained on decides whether it counts
            if (record := state.audit.quarantined.get(member.member)) is not None:
                return f"{record['reason']}; you are quarantined"
        current = state.members.get(member.member)
        if fault is None or current is None or current.stage != head.stage:
            return fault.reason if fault is not None else ""
        commits = self.book.signed(
            head.round, member.member,
            lambda one: fault.kind in ("NORM", "ZERO") or one.link == head.chain_link,
        ) if chain is not None else []  # fmt: skip
        where, words = str(path.relative_to(self._state_dir)), signed.SerializeToString()
        opening = Opening(head.sha256.hex(), head.size_bytes, where, member.member, words.hex())
        file = await asyncio.to_thread(self._accuser.keep, "update", opening)
        self._accuser.of_messages(
            current, fault.kind, fault.reason, [words, *commits], place, generation=head.generation, step=head.chain_step,
            files=[file],
        )  # fmt: skip
        return f"{fault.reason}; you are quarantined"

    def refused_head(self, member: Member, head: pb.UpdateHead, signed: pb.Signed) -> None:
        """A head that was refused is looked at for what no honest member signs: it ends in a quarantine.

        A head of an earlier round is none: it was signed when that was open, and came late.
        """
        state, manifest = self._core.state, self._core.manifest
        current = state.members.get(member.member)
        assert manifest is not None
        if current is None or not current.live or (current.stage, current.generation) != (head.stage, head.generation):
            return
        if head.round != state.round or state.phase is not Phase.CLOSING or not state.is_ready(current):
            return
        if head.base_cid != state.base_cid:
            kind, reason = "STALE_BASE", f"an update of round {head.round} from another base than the round's"
        elif reason := size_fault(head, tensor_infos(manifest.stages[head.stage])):
            kind = "SHAPE"
        else:
            return
        words = [signed.SerializeToString()]
        self._accuser.of_messages(current, kind, reason, words, self._accuser.now(), generation=head.generation)

    def after_update(self, member: Member, head: pb.UpdateHead) -> bool:
        """Once an update is in the journal: whether its last step is to be opened. One that nobody may check is left out."""
        reason = self._core.state.audit.standing(member.member).unverified or self.intake.unseen(member.member, head)
        if reason and (head.stage, member.member) in self._core.state.updates:
            self._core.emit("left_out", stage=head.stage, member=member.member, reason=reason)
        drawn = self.intake.closing_draw(member, head)
        self.loop.changed.set()
        return drawn

    def _read_otherwise(self, member: str, commit: pb.StepCommit, found: Comparison) -> None:
        self._accuser.of_commit(member, "BATCH", found.reason, commit, microbatch=found.microbatch)

    def _forked(self, member: Member, signed: list[bytes], commit: pb.StepCommit, reason: str) -> None:
        self._accuser.of_messages(
            member, "FORK", reason, signed, self._accuser.now(), generation=commit.generation, step=commit.step
        )
