"""Receives what audits ask for: streamed to disk within a known size, compared with what was committed, and acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from common.errors import Code, HocketError
from common.files import OWN_DISK, discard, disk_errors
from coordinator.audit_state import Audit, Kind, Part
from coordinator.chains import key_of
from coordinator.commit_book import CommitBook
from coordinator.core import Core
from coordinator.receiving import Announced, receipt_for, receive_file, settle
from coordinator.run import Member
from protocol.generated import hocket_pb2 as pb
from protocol.messages import LEAST_UPLINK_BYTES_PER_S
from protocol.openings import OpenedPass, read_pass
from protocol.tensor_files import read_tensors

logger = logging.getLogger(__name__)

_PARTS = {
    pb.PASS_INPUT: Part.INPUT, pb.PASS_OUTPUT: Part.OUTPUT, pb.WITNESS: Part.WITNESS, pb.STEP: Part.STEP,
    pb.REQUEST: Part.REQUEST,
}  # fmt: skip


class AuditFiles:
    """Where openings come in.

    Args:
        core, book: the run and its commits.
        state_dir: files lie in `audit/openings/` below it.
    """

    def __init__(self, core: Core, book: CommitBook, state_dir: Path) -> None:
        self._core = core
        self._book = book
        self._state_dir = state_dir
        self._folder = state_dir / "audit" / "openings"
        self._receiving: dict[tuple[str, Part], tuple[str, float]] = {}  # from whom, and how long that may take
        self._begun: dict[tuple[str, Part], float] = {}
        self._took: dict[str, float] = {}  # by member: when something of it was last taken, or could not be for want of room

    def path(self, audit: Audit, part: Part) -> Path:
        """Where a file of an audit lies."""
        return self._folder / f"{audit.id}.{part.value}.safetensors"

    def drop(self, audit: Audit) -> None:
        """Remove what came for an audit that has ended."""
        for part in audit.files:
            discard(self.path(audit, part))

    def forget(self, audit: Audit) -> None:
        """An audit has ended: when its parts began to come is of no use any more."""
        for part in Part:
            self._begun.pop((audit.id, part), None)

    def heard_at(self, member: str) -> float:
        """When a member's file was last taken, or could not be by a fault of ours: what else it owes had to wait for it."""
        return self._took.get(member, 0.0)

    def sending_until(self, member: str) -> float:
        """How long a member may take for what it is sending now, which goes one by one; 0: it sends nothing.

        It follows from the size and from when the first try began, so that no number of tries makes it longer.
        """
        return max((until for sender, until in self._receiving.values() if sender == member), default=0.0)

    def clean_up(self) -> None:
        """After a start: remove what no audit under way refers to."""
        with disk_errors(self._folder):
            audits = self._core.state.audit.audits.values()
            wanted = {self._state_dir / one.path for audit in audits for one in audit.files.values()}
            for path in self._folder.glob("*"):
                if path not in wanted:
                    path.unlink()

    async def receive(
        self, member: Member, head: pb.OpeningHead, signed: pb.Signed, chunks: AsyncIterator[pb.UpdateChunk]
    ) -> pb.UpdateReceipt:
        """Take an opening in; the receipt says whether it is on disk.

        Args:
            member: who signed `head`.

        Raises:
            HocketError: STREAM_BROKEN, DISK_FULL; see `receive_file`.
        """
        part = _PARTS.get(head.kind)
        audit = self._asked_for(member.member, head, part)
        if audit is None or part is None:
            return receipt_for(head, "nobody asked for it")
        if part is Part.WITNESS and head.input_cid != audit.input_cid:
            return receipt_for(head, "it answers for another input than the one that it was given")
        if part in audit.files:
            same = audit.files[part].sha256 == head.sha256.hex()
            return receipt_for(head, "" if same else "another one of yours came before")
        if not 0 < head.size_bytes <= audit.most_bytes or len(head.sha256) != 32:
            return receipt_for(head, f"{head.size_bytes} bytes, at most {audit.most_bytes} are possible")
        if (audit.id, part) in self._receiving:
            raise HocketError(Code.STREAM_BROKEN, "another one of yours is being received", remedy="send it again")
        core, now = self._core, self._core.clock()
        begun = self._begun.setdefault((audit.id, part), now)
        self._receiving[audit.id, part] = (member.member, begun + head.size_bytes / LEAST_UPLINK_BYTES_PER_S)
        path = self.path(audit, part)
        part_path = path.with_name(path.name + ".part")
        try:
            silence_s = core.config.membership.silence_s
            await receive_file(part_path, Announced("opening", head.size_bytes, head.sha256, silence_s), chunks)
            fault = await asyncio.to_thread(self._fault, audit, part, part_path)
            if audit.id not in core.state.audit.audits:
                return receipt_for(head, "the audit has ended")
            if fault and part is not Part.WITNESS:
                logger.warning("the %s that %s opened is not what was committed: %s", part.value, member.member[:12], fault)
                return receipt_for(head, fault)
            await asyncio.to_thread(settle, part_path, path)
            if audit.id not in core.state.audit.audits:
                return receipt_for(head, "the audit has ended")
            core.emit(
                "audit_opened", id=audit.id, part=part.value, member=member.member, sha256=head.sha256.hex(),
                size_bytes=head.size_bytes, path=str(path.relative_to(self._state_dir)),
                signed=_packed(signed),
            )  # fmt: skip
            self._took[member.member] = core.clock()
            core.faults.reach("coordinator.opening.kept", part=part.value, round=audit.round)
            return receipt_for(head, "")
        except HocketError as error:
            if error.code in OWN_DISK:
                self._took[member.member] = core.clock()
            raise
        finally:
            self._receiving.pop((audit.id, part), None)
            discard(part_path)

    def _asked_for(self, member: str, head: pb.OpeningHead, part: Part | None) -> Audit | None:
        """The audit under way that a file is for."""
        audits = self._core.state.audit.audits
        if part is Part.WITNESS:
            audit = audits.get(head.audit_id)
            return audit if audit is not None and audit.witness == member and not audit.escalated else None
        kind = {Part.STEP: Kind.STEP, Part.REQUEST: Kind.REQUEST}.get(part, Kind.PASS) if part is not None else None
        for one in audits.values():
            place = (one.kind, one.member, one.round, (one.generation, one.part), one.step)
            if place != (kind, member, head.round, key_of(head), head.step):
                continue
            if one.microbatch < 0 or one.microbatch == head.microbatch_id:
                return one
        return None

    # ---- content -----------------------------------------------------------------------------------------------------

    def _fault(self, audit: Audit, part: Part, path: Path) -> str:
        """Why a file is not what was committed; empty: it is, as far as bytes are concerned. In a worker thread."""
        if part in (Part.STEP, Part.REQUEST):
            return ""  # looked at where it is recomputed, and where it is read
        try:
            opened = read_pass(read_tensors(path))
        except HocketError as error:
            return error.line().replace(str(path), "the file")
        if opened.microbatch.id != audit.microbatch or (opened.about.stage, opened.about.round) != (audit.stage, audit.round):
            return f"it is of microbatch {opened.microbatch.id} of stage {opened.about.stage}, round {opened.about.round}"
        if part is Part.WITNESS:
            return ""
        record = self._book.record(audit.round, audit.member, bytes.fromhex(audit.link), audit.microbatch)
        return "its commit is not known any more" if record is None else _digest_fault(opened, part, record)


def _digest_fault(opened: OpenedPass, part: Part, record: pb.MicrobatchRecord) -> str:
    if part is Part.INPUT:
        pairs = [("input", opened.input, record.input), ("gradient_in", opened.gradient_in, record.gradient_in)]
    else:
        pairs = [("output", opened.output, record.output), ("gradient_out", opened.gradient_out, record.gradient_out)]
    other = [name for name, found, committed in pairs if found.digest != committed]
    return f"another {' and another '.join(other)} than what was committed to" if other else ""


def _packed(signed: pb.Signed) -> str:
    return signed.SerializeToString().hex()
