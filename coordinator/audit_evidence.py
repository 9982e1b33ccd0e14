"""Makes the evidence of a fault, puts it and the files it names into the block store, and shuts the member out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.audit_secret import AuditSecrets
from coordinator.audit_state import Audit, Kind, Opening, Part
from coordinator.chains import key_of
from coordinator.commit_book import CommitBook
from coordinator.core import Core
from coordinator.evidence import DrawnBy, Evidence, EvidenceFile, packed, sign_evidence
from coordinator.requests import Exchange
from coordinator.run import Member
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from swarm.blocks import BlockStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """The round that a member's words are of, and the version that it began with."""

    round: int
    base_cid: str
    version: int


class Accuser:
    """Writes evidence.

    Args:
        core, book, secrets: the run. store: takes the documents and the files. key: signs them.
        state_dir: that paths of openings are relative to.
    """

    def __init__(
        self, core: Core, book: CommitBook, secrets: AuditSecrets, store: BlockStore, key: MemberKey, state_dir: Path
    ) -> None:
        self._core = core
        self._book = book
        self._secrets = secrets
        self._store = store
        self._key = key
        self._state_dir = state_dir

    def now(self) -> Place:
        """The round that the run is in."""
        state = self._core.state
        return Place(state.round, state.base_cid, state.version)

    async def of_audit(
        self, audit: Audit, kind: str, member: str, reason: str, *, by: str, statistics: dict[str, Any],
        signed: Sequence[bytes] = (), others: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        """Quarantine a member for what an audit showed; PASS, STEP, EQUIVOCATION, WITNESS, NOT_OPENED.

        Args:
            member: the audited one, its witness, or whom it accuses. signed: further messages of that member's, its own first.
            others: of its neighbour's.
        """
        known = self._core.state.members.get(member)
        drawn = self._book.commit(audit.round, audit.member, bytes.fromhex(audit.link))
        links = {drawn.link, drawn.previous} if drawn is not None else set()
        commits = self._book.signed(audit.round, audit.member, lambda one: one.link in links)
        heads = [bytes.fromhex(one.signed) for part, one in audit.files.items() if part is Part.WITNESS or one.member == member]
        draw = DrawnBy(
            link=audit.link, step=audit.step, microbatch=None if audit.microbatch < 0 else audit.microbatch,
            closing=audit.closing, **audit.rates,
        )  # fmt: skip
        files = await asyncio.to_thread(lambda: [self.keep(part.value, one) for part, one in audit.files.items()])
        self._write(
            kind, member, known.operator if known is not None else "", reason, [*signed, *commits, *heads, *others], files,
            round=audit.round, stage=audit.stage, base_cid=audit.base_cid, version=audit.version, generation=audit.generation,
            step=audit.step, microbatch=draw.microbatch, drawn=draw if audit.kind is not Kind.REQUEST else None, by=by,
            statistics=statistics, device_class=known.info.get("device_class", "") if known is not None else "",
        )  # fmt: skip

    def keep(self, part: str, file: Opening) -> EvidenceFile:
        """Put a file into the block store, for a document to name it; for a thread."""
        cid = self._store.add_file(self._state_dir / file.path)
        return EvidenceFile(part=part, member=file.member, cid=cid, sha256=file.sha256, size_bytes=file.size_bytes)

    def exchange(self, audit: Audit) -> Exchange:
        """What the two sides of a REQUEST audit committed to; empty where a commit is not known any more."""
        sent = self._book.record(audit.round, audit.accused, bytes.fromhex(audit.accused_link), audit.microbatch)
        came = self._book.record(audit.round, audit.member, bytes.fromhex(audit.link), audit.microbatch)
        given_up = frozenset(
            record.output for record in self._book.records(audit.round, audit.accused, audit.microbatch) if not record.frames
        )
        return Exchange(sent.output if sent is not None else b"", came.input if came is not None else b"", given_up)

    def accused_commits(self, audit: Audit) -> list[bytes]:
        """All signed commits of the accused one that name the microbatch of a REQUEST audit."""
        return self._book.signed(
            audit.round, audit.accused, lambda one: any(record.id == audit.microbatch for record in one.records)
        )  # fmt: skip

    def of_messages(
        self, member: Member, kind: str, reason: str, signed: Sequence[bytes], place: Place, *, generation: int,
        step: int | None = None, files: Sequence[EvidenceFile] = (),
    ) -> None:  # fmt: skip
        """Quarantine a member for what it signed in a round: FORK, CHAIN, SHAPE, NOT_FINITE, NORM, ZERO, STALE_BASE.

        Args:
            signed: its messages, of `place`. step: that they are about; None: none. files: that they name.
        """
        assert member.stage is not None
        self._write(
            kind, member.member, member.operator, reason, signed, files, round=place.round, stage=member.stage,
            base_cid=place.base_cid, version=place.version, generation=generation, step=step,
            device_class=member.info.get("device_class", ""),
        )  # fmt: skip

    def of_commit(self, member: str, kind: str, reason: str, commit: pb.StepCommit, *, microbatch: int | None) -> None:
        """Quarantine a member for what one commit of its says, whatever round the run is in by now: BATCH."""
        state = self._core.state
        known = state.members.get(member)
        signed = self._book.signed(commit.round, member, lambda one: one.link == commit.link)
        chain = self._book.chains(commit.round, member).get(key_of(commit))
        version = None if chain is None else next((one for one in state.versions if one["cid"] == chain.start.base_cid), None)
        if known is None or not signed or version is None:
            logger.warning("%s cannot be held to its commit, which is kept no more: %s", member[:12], reason)
            return
        self._write(
            kind, member, known.operator, reason, signed, [], round=commit.round, stage=commit.stage, base_cid=version["cid"],
            version=version["version"], generation=commit.generation, step=commit.step, microbatch=microbatch,
            device_class=known.info.get("device_class", ""),
        )  # fmt: skip

    def _write(
        self, kind: str, member: str, operator: str, reason: str, signed: Sequence[bytes],
        files: Sequence[EvidenceFile], *,
        round: int, stage: int, **more: Any,
    ) -> None:  # fmt: skip
        if member in self._core.state.audit.quarantined:
            return
        evidence = Evidence(
            run_id=self._core.state.run_id, kind=kind, member=member, operator=operator, reason=reason, time_s=self._core.clock(),
            round=round, stage=stage, signed=[packed(one) for one in signed], files=list(files),
            settings=self._core.config.inner_terms,
            audit_commitment=self._secrets.commitment(round).hex(), **more,
        )  # fmt: skip
        cid = self._store.add_bytes(sign_evidence(self._key, evidence))
        self._core.faults.reach("coordinator.evidence.kept", kind=kind, round=round)
        self._core.quarantine(
            member,
            {
                "operator": operator, "stage": stage, "kind": kind, "round": round, "reason": reason, "evidence_cid": cid,
                "base_cid": evidence.base_cid,
            },
        )  # fmt: skip
