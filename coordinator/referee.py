"""Has passes and steps recomputed by the referee: a child process that has torch, so that the coordinator needs none."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import HocketError
from common.files import atomic_write, discard, disk_error
from coordinator.audit_draw import seed_of
from coordinator.audit_secret import AuditSecrets
from coordinator.audit_state import Audit, Kind, Part
from coordinator.children import python_module, run_once
from coordinator.commit_book import CommitBook
from coordinator.core import Core
from coordinator.versions import Versions
from protocol.generated import hocket_pb2 as pb
from swarm.blocks import BlockStore

logger = logging.getLogger(__name__)

JOB_LIMIT_S = 600.0
START_LIMIT_S = 120.0
MOST_OUTPUT_BYTES = 16 << 20


@dataclass(frozen=True)
class Finding:
    """What the referee says of one member's work.

    Args:
        ok: None: it cannot say, and nobody is to blame.
    """

    ok: bool | None
    reason: str
    statistics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ruling:
    """What came of a job: a finding for each member, or why there is none; `blamed`: the opening is no such thing."""

    findings: Mapping[str, Finding]
    error: str = ""
    blamed: bool = False


class Referee:
    """Starts the child, one start for all that there is to recompute.

    Args:
        core, book, secrets: the run. versions, store: its weights. state_dir: work lies in `audit/referee/` below it.
    """

    def __init__(
        self, core: Core, book: CommitBook, secrets: AuditSecrets, versions: Versions, store: BlockStore, state_dir: Path
    ) -> None:
        self._core = core
        self._book = book
        self._secrets = secrets
        self._versions = versions
        self._store = store
        self._state_dir = state_dir
        self._folder = state_dir / "audit" / "referee"

    async def rule(self, audits: Sequence[Audit]) -> dict[str, Ruling]:
        """Recompute what the audits are about; a ruling by audit id for each that the child came to.

        Raises:
            HocketError: DISK_FULL, STATE_UNREADABLE. A child that fails is logged, and its audits have no ruling.
        """
        rulings: dict[str, Ruling] = {}
        jobs = []
        for audit in audits:
            try:
                await asyncio.to_thread(self._bring_base, audit)
                jobs.append(self._job(audit))
            except HocketError as error:
                rulings[audit.id] = Ruling({}, error.line())
        if not jobs:
            return rulings
        config, orders, output = self._folder / "model.json", self._folder / "jobs.json", self._folder / "rulings.jsonl"
        atomic_write(config, json.dumps(self._core.state.model_config).encode())
        order = {
            "config": str(config), "stages": self._core.state.stages, "jobs": jobs,
            "calibration": self._core.config.audit.calibration,
        }  # fmt: skip
        atomic_write(orders, json.dumps(order).encode())
        discard(output)
        try:
            await run_once(
                python_module("tts.referee", "--jobs", str(orders)), self._state_dir / "referee.log",
                limit_s=START_LIMIT_S + JOB_LIMIT_S * len(jobs), output=output,
            )  # fmt: skip
        except HocketError as error:
            logger.error("the referee failed: %s", error.line())
        wanted = {audit.id: audit for audit in audits}
        return rulings | {name: one for name, one in self._read(output, wanted) if name in wanted}

    def tidy(self, audits: Sequence[Audit]) -> None:
        """Remove weights that no audit under way needs."""
        needed = {self._base_path(one) for one in audits}
        for path in self._folder.glob("base-*"):
            if path not in needed:
                discard(path)

    def has_base(self, audit: Audit) -> bool:
        """Whether the weights that an audit starts from are kept."""
        return self._store.has(audit.base_cid)

    def _base_path(self, audit: Audit) -> Path:
        return self._folder / f"base-{audit.version}-{audit.stage}.safetensors"

    def _bring_base(self, audit: Audit) -> None:
        """Put the weights that an audit starts from where the child reads them; for a thread, as a stage is large."""
        base = self._base_path(audit)
        if not base.exists():
            self._store.export(self._versions.load(audit.base_cid).stages[audit.stage].cid, base)

    def _job(self, audit: Audit) -> dict[str, Any]:
        config, base = self._core.config, self._base_path(audit)
        drawn = self._book.commit(audit.round, audit.member, bytes.fromhex(audit.link))
        previous = self._book.commit(audit.round, audit.member, drawn.previous) if drawn is not None else None
        common = {
            "id": audit.id, "kind": audit.kind.value, "stage": audit.stage, "base": str(base), "wire": config.network.wire,
            "seed": config.run.seed, "commit": _hex(drawn), "limit_s": JOB_LIMIT_S,
        }  # fmt: skip
        if audit.kind is Kind.STEP:
            return {
                **common, "opening": self._path(audit, Part.STEP), "classes": {"prover": audit.device_class},
                "weight_decay": config.rounds.weight_decay, "clip_norm": config.rounds.clip_norm,
                "previous": _hex(previous),
            }  # fmt: skip
        outputs = {audit.member: self._path(audit, Part.OUTPUT)}
        classes = {audit.member: audit.device_class}
        if Part.WITNESS in audit.files:
            outputs[audit.witness] = self._path(audit, Part.WITNESS)
            witness = self._core.state.members.get(audit.witness)
            classes[audit.witness] = witness.info.get("device_class", "") if witness is not None else ""
        return {
            **common, "microbatch_id": audit.microbatch, "input": self._path(audit, Part.INPUT), "outputs": outputs,
            "classes": classes, "prover": audit.member,
            "challenge": seed_of(self._secrets.secret(audit.round), bytes.fromhex(audit.link)).hex(),
        }  # fmt: skip

    def _path(self, audit: Audit, part: Part) -> str:
        return str(self._state_dir / audit.files[part].path)

    def _read(self, output: Path, audits: Mapping[str, Audit]) -> list[tuple[str, Ruling]]:
        """What the child has said; a line that is cut, as it was killed, says nothing."""
        try:
            with output.open("rb") as stream:
                lines = stream.read(MOST_OUTPUT_BYTES).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk_error(error, output) from error
        found = []
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                logger.warning("the referee said something else than a ruling")
                continue
            audit = audits.get(said.get("id", "")) if isinstance(said, dict) else None
            if audit is not None:
                found.append((audit.id, _ruling(said, audit.member)))
        return found


def _hex(commit: pb.StepCommit | None) -> str:
    return "" if commit is None else commit.SerializeToString().hex()


def _ruling(said: dict[str, Any], member: str) -> Ruling:
    if "error" in said:
        return Ruling({}, str(said["error"]), said.get("fault") == "opening")
    verdicts = said.get("verdicts", {member: said})
    return Ruling({name: Finding(one["ok"], one["reason"], one.get("statistics", {})) for name, one in verdicts.items()})
