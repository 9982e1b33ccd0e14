"""Has passes and steps recomputed by the referee: a child process that has torch, so that the coordinator needs none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import HocketError
from common.files import atomic_write, discard
from coordinator.audit_draw import seed_of
from coordinator.audit_secret import AuditSecrets
from coordinator.audit_state import Audit, Kind, Part
from coordinator.children import python_module
from coordinator.commit_book import CommitBook
from coordinator.core import Core
from coordinator.referee_child import RefereeChild
from coordinator.referee_life import Action, Limits
from coordinator.versions import Versions
from protocol.generated import hocket_pb2 as pb
from swarm.blocks import BlockStore

JOB_LIMIT_S = 600.0
LATE_S = 60.0  # a child that has not broken off a job by itself so long after its limit is killed
IDLE_S = 60.0


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
    """Has a child that stays do one piece of work after another.

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
        limits = Limits(JOB_LIMIT_S + LATE_S, IDLE_S)
        self._child = RefereeChild(self._command, state_dir / "referee.log", limits)

    async def rule(self, audit: Audit) -> Ruling | None:
        """Recompute what an audit is about; None: the child did not come to it, which it may another time.

        Raises:
            HocketError: DISK_FULL, STATE_UNREADABLE. A child that fails is logged.
        """
        try:
            await asyncio.to_thread(self._bring_base, audit)
            job = self._job(audit)
        except HocketError as error:
            return Ruling({}, error.line())
        if self._child.pid is None:
            atomic_write(self._config_path, json.dumps(self._core.state.model_config).encode())
        said = await self._child.do(job)
        return None if said is None else _ruling(said, audit.member)

    async def tend(self, *, wanted: bool) -> Action:
        """See `RefereeChild.tend`."""
        return await self._child.tend(wanted=wanted)

    async def close(self) -> None:
        """End the child."""
        await self._child.close()

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

    @property
    def _config_path(self) -> Path:
        return self._folder / "model.json"

    def _command(self) -> list[str]:
        state, table = self._core.state, self._core.config.audit.calibration
        own_table = ("--calibration", table) if table else ()
        return python_module("tts.referee_child", "--config", str(self._config_path), "--stages", str(state.stages), *own_table)

    def _job(self, audit: Audit) -> dict[str, Any]:
        config = self._core.config
        drawn = self._book.commit(audit.round, audit.member, bytes.fromhex(audit.link))
        previous = self._book.commit(audit.round, audit.member, drawn.previous) if drawn is not None else None
        common = {
            "id": audit.id, "kind": audit.kind.value, "stage": audit.stage, "base": str(self._base_path(audit)),
            "wire": config.network.wire, "seed": config.run.seed, "commit": _hex(drawn), "limit_s": JOB_LIMIT_S,
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


def _hex(commit: pb.StepCommit | None) -> str:
    return "" if commit is None else commit.SerializeToString().hex()


def _ruling(said: dict[str, Any], member: str) -> Ruling:
    if "error" in said:
        return Ruling({}, str(said["error"]), said.get("fault") == "opening")
    verdicts = said.get("verdicts", {member: said})
    return Ruling({name: Finding(one["ok"], one["reason"], one.get("statistics", {})) for name, one in verdicts.items()})
