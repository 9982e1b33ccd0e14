"""Receives updates: streamed to disk, checked against what was signed, synced, journalled, and only then acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from common.errors import Code, HocketError
from common.files import discard
from coordinator.assignment import Role
from coordinator.auditing import Auditing
from coordinator.core import Core, Nonce
from coordinator.receiving import Announced, receipt_for, receive_file, settle
from coordinator.rounds import Phase
from coordinator.run import Member
from coordinator.update_proof import size_fault
from coordinator.versions import tensor_infos
from protocol.generated import hocket_pb2 as pb

logger = logging.getLogger(__name__)

MAX_MICROBATCHES = 100_000


class Uploads:
    """Where updates come in.

    Args:
        core: the run.
        auditing: compares updates with what was committed.
        state_dir: updates lie in `updates/round-<r>/stage-<i>/<member>.safetensors` below it.
    """

    def __init__(self, core: Core, state_dir: Path, auditing: Auditing) -> None:
        self._core = core
        self._auditing = auditing
        self._state_dir = state_dir
        self._receiving: set[str] = set()

    async def receive(
        self, member: Member, head: pb.UpdateHead, nonce: Nonce, chunks: AsyncIterator[pb.UpdateChunk],
        signed: pb.Signed,
    ) -> pb.UpdateReceipt:  # fmt: skip
        """Take one update in; the receipt says whether it is on disk.

        An update that was acknowledged before is acknowledged again without being read. Of two different ones the first counts.

        Args:
            member: who signed `head`; the head is checked here.
            chunks: what follows the head. signed: the head as it came, for evidence.

        Raises:
            HocketError: STREAM_BROKEN for a stream that ends early, stalls, or is not what its head says, and while an earlier
                one of the member is still being received; DISK_FULL; STATE_UNREADABLE.
        """
        answer = self._answer_at_once(member, head)
        if answer is not None:
            if not answer.accepted:
                self._auditing.refused_head(member, head, signed)
            return answer
        if member.member in self._receiving:
            # An earlier try whose connection broke may not be over here. A receipt would be the last word on the update.
            raise HocketError(Code.STREAM_BROKEN, "another update of yours is being received", remedy="send it again")
        self._receiving.add(member.member)
        path = self._state_dir / f"updates/round-{head.round}/stage-{head.stage}/{member.member}.safetensors"
        part = path.with_name(path.name + ".part")
        try:
            silence_s = self._core.config.membership.silence_s
            await receive_file(part, Announced("update", head.size_bytes, head.sha256, silence_s), chunks)
            # While the bytes came in the round may have moved on.
            answer = self._answer_at_once(member, head)
            if answer is not None:
                return answer
            if fault := await self._auditing.update_fault(member, head, signed, part):
                return receipt_for(head, fault)
            await asyncio.to_thread(settle, part, path)
            answer = self._answer_at_once(member, head)
            if answer is not None:
                return answer
            # What is said and what is listed are two words for the same; the smaller one counts.
            frames = min(head.frames, sum(one.frames for one in head.microbatches))
            self._core.emit(
                "update", member=member.member, stage=head.stage, generation=head.generation, round=head.round,
                sha256=head.sha256.hex(), size_bytes=head.size_bytes, frames=frames, inner_steps=head.inner_steps,
                microbatches=[(one.id, one.frames) for one in head.microbatches],
                duplicates=head.duplicates, dropped=head.dropped, path=str(path.relative_to(self._state_dir)), nonce=nonce,
            )  # fmt: skip
            self._core.faults.reach("coordinator.update.acked", stage=head.stage, round=head.round)
            logger.info("update of %s for round %d, stage %d: %d frames", member.member[:12], head.round, head.stage, head.frames)
            return self._accepted(member, head)
        finally:
            self._receiving.discard(member.member)
            discard(part)

    def _accepted(self, member: Member, head: pb.UpdateHead) -> pb.UpdateReceipt:
        receipt = receipt_for(head, "")
        receipt.open_step = self._auditing.after_update(member, head)
        return receipt

    def _answer_at_once(self, member: Member, head: pb.UpdateHead) -> pb.UpdateReceipt | None:
        """The receipt, where the head alone decides; None: the bytes are wanted."""
        state = self._core.state
        # The member record may have been replaced while bytes came in.
        current = state.members.get(member.member)
        if head.round == state.round and (known := state.updates.get((head.stage, member.member))) is not None:
            same = known.sha256 == head.sha256.hex() and known.generation == head.generation
            return self._accepted(member, head) if same else receipt_for(head, "another update of yours was acknowledged before")
        fault = ""
        taken = (Phase.OPEN, Phase.CLOSING) if head.leaving else (Phase.CLOSING,)
        if head.round != state.round or state.phase not in taken:
            fault = f"round {state.round} is in phase {state.phase}; updates are taken while it is CLOSING"
        elif head.base_cid != state.base_cid:
            fault = "it starts from another base"
        elif current is None or not current.live or current.stage != head.stage or current.generation != head.generation:
            fault = "it is not of your current assignment"
        elif current.role is not Role.REPLICA:
            fault = "a standby trains nothing"
        elif not state.is_ready(current):
            fault = "you have not reported the base as loaded"
        elif len(head.microbatches) > MAX_MICROBATCHES or len(head.sha256) != 32:
            fault = "its head does not fit"
        elif left_out := state.audit.excluded.get((head.stage, member.member)):
            fault = f"it is left out: {left_out}"
        else:
            fault = self._size_fault(head) or self._auditing.head_fault(member, head)
        return receipt_for(head, fault) if fault else None

    def _size_fault(self, head: pb.UpdateHead) -> str:
        assert self._core.manifest is not None
        return size_fault(head, tensor_infos(self._core.manifest.stages[head.stage]))
