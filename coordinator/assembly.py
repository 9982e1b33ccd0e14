"""From a closed round to the next version: aggregate each stage, publish, clean up. Can be killed and resumed anywhere."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from common.errors import HocketError
from common.files import atomic_write, disk_errors
from common.memory import give_back_freed_memory
from coordinator.aggregate import StageOutcome, aggregate_stage
from coordinator.audit_secret import AuditSecrets
from coordinator.children import python_module, run_once
from coordinator.core import Core
from coordinator.ledger import contributions
from coordinator.retention import read_pins, retained_by
from coordinator.run import Update
from coordinator.update_checks import Submitted
from coordinator.versions import Versions, tensor_infos
from protocol.manifest import RefusedUpdate, StageFile, UpdateEntry, VersionManifest

logger = logging.getLogger(__name__)


class Assembly:
    """Makes versions.

    Args:
        core: the run; its state says what was submitted and what is done already.
        versions: working files and the block store.
        state_dir: where acknowledged updates lie.
        first_weights: writes the stage files of version 0 into a folder; None: a child process makes them by the model's
            own initialisation.
        secrets: of the rounds' audits, each revealed with the version that its round made; None: there are none.
    """

    def __init__(
        self, core: Core, versions: Versions, state_dir: Path, *,
        first_weights: Callable[[Path], Awaitable[None]] | None = None,
        secrets: AuditSecrets | None = None,
    ) -> None:  # fmt: skip
        self._core = core
        self._versions = versions
        self._state_dir = state_dir
        self._secrets = secrets
        self._first_weights = first_weights or self._initialise

    # ---- the first version -------------------------------------------------------------------------------------------

    async def genesis(self) -> None:
        """Make version 0, unless there is a version already, and load the newest one's manifest."""
        core, state = self._core, self._core.state
        if state.version < 0:
            folder = self._versions.folder(0)
            with disk_errors(folder):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
            await self._first_weights(folder)
            stages = [
                await asyncio.to_thread(self._versions.stage_file, 0, stage, momentum=False) for stage in range(state.stages)
            ]
            await self._publish(VersionManifest(
                run_id=state.run_id, version=0, round=0, model=state.model_config, stages=stages, outer=self._outer(),
                data_cursor=self._cursor(0), dataset_cid=state.dataset["cid"], codec=state.dataset["codec"],
            ), frames=0, record=None)  # fmt: skip
        core.manifest = await asyncio.to_thread(self._versions.restore, state.version, state.base_cid)
        await self._clean_up()

    async def _initialise(self, folder: Path) -> None:
        core, config_path = self._core, self._state_dir / "model.json"
        atomic_write(config_path, json.dumps(core.state.model_config).encode())
        await run_once(
            python_module("tts.genesis", "--config", str(config_path), "--stages", str(core.state.stages),
                          "--seed", str(core.config.run.seed), "--out", str(folder)),
            self._state_dir / "genesis.log",
        )  # fmt: skip

    # ---- a round's version -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Aggregate the round whose updates are in and publish its version.

        Raises:
            HocketError: DISK_FULL and the like; what was done is kept and the next start goes on from there.
        """
        core, state = self._core, self._core.state
        assert core.manifest is not None
        base = core.manifest
        for stage in range(state.stages):
            if stage not in state.stage_results:
                await self._aggregate(base, stage)
                core.faults.reach("coordinator.aggregate.stage", stage=stage, round=state.round)
        results = [state.stage_results[stage] for stage in range(state.stages)]
        frames = state.counts["frames"]
        manifest = VersionManifest(
            run_id=state.run_id,
            version=base.version + 1,
            round=state.round,
            model=state.model_config,
            stages=[StageFile.model_validate(one["file"]) for one in results],
            outer={**self._outer(), "base_heldout_loss": state.heldout.get(state.base_cid, {}).get("loss")},
            data_cursor=self._cursor(state.frames_counted + frames),
            accepted=[
                UpdateEntry(
                    member=one.member, stage=one.stage, sha256=one.sha256, frames=one.frames, microbatches=len(one.microbatches)
                )
                for (stage, member), one in sorted(state.updates.items()) if member in results[stage]["accepted"]
            ],
            refused=[
                RefusedUpdate(member=member, stage=stage, reason=reason)
                for stage, one in enumerate(results) for member, reason in one["refused"]
            ],
            dataset_cid=state.dataset["cid"],
            codec=state.dataset["codec"],
            audit=self._secrets.revealed(state.round) if self._secrets is not None else {},
        )  # fmt: skip
        core.faults.reach("coordinator.publish.before", round=state.round)
        await self._publish(manifest, frames=frames, record=self._record(results))
        core.faults.reach("coordinator.publish.after", round=state.round)
        core.manifest = manifest
        core.reports.clear()
        await self._clean_up()

    async def _aggregate(self, base: VersionManifest, stage: int) -> None:
        core, state, config = self._core, self._core.state, self._core.config
        version = base.version + 1
        updates = [one for (at, _), one in state.updates.items() if at == stage]
        entry = base.stages[stage]

        def work() -> tuple[StageOutcome, StageFile]:
            files = self._versions.files(base, stage)
            outcome = aggregate_stage(
                files.weights, files.momentum,
                [Submitted(one.member, self._state_dir / one.path, frames_of(one, state.counts)) for one in updates],
                tensor_infos(entry), rule=config.aggregation.rule, tolerate=config.aggregation.tolerate,
                prepare=config.aggregation.prepare, seed=f"{state.run_id}|{state.round}|{stage}".encode(),
                outer_lr=config.rounds.outer_lr, outer_momentum=config.rounds.outer_momentum,
                new_weights=self._versions.weights_path(version, stage),
                new_momentum=self._versions.momentum_path(version, stage),
            )  # fmt: skip
            if not outcome.accepted:
                return outcome, entry
            return outcome, self._versions.stage_file(version, stage, sha256=outcome.sha256, momentum=outcome.momentum)

        outcome, made = await asyncio.to_thread(work)
        if any((stage, member) in state.audit.excluded for member in outcome.accepted):
            # An audit failed meanwhile: what was made of its update is not used.
            await self._aggregate(base, stage)
            return
        left_out = [(member, reason) for (at, member), reason in sorted(state.audit.excluded.items()) if at == stage]
        logger.info(
            "round %d, stage %d: %s of %d updates, tolerates %d, refused %d%s",
            state.round, stage, outcome.plan.rule, outcome.plan.n, outcome.plan.tolerates, len(outcome.refused),
            f" ({outcome.plan.why})" if outcome.plan.why else "",
        )  # fmt: skip
        refused = sorted([*outcome.refused, *left_out])
        for member, reason in refused:
            logger.warning("round %d, stage %d: the update of %s is left out: %s", state.round, stage, member[:12], reason)
        core.emit(
            "stage_done", round=state.round, stage=stage, rule=outcome.plan.rule, n=outcome.plan.n, f=outcome.plan.f,
            tolerates=outcome.plan.tolerates, prepare=outcome.plan.prepare, why=outcome.plan.why, accepted=outcome.accepted,
            refused=refused, kinds=outcome.kinds, outcomes=outcome.outcomes, clips=outcome.clips,
            trimmed_shares=outcome.trimmed_shares, norms=outcome.norms, digests=outcome.digests, step_norm=outcome.step_norm,
            file=made.model_dump(mode="json"),
        )  # fmt: skip

    async def _publish(self, manifest: VersionManifest, *, frames: int, record: dict[str, Any] | None) -> None:
        cid = await asyncio.to_thread(self._versions.publish, manifest)
        if record is not None:
            record["cid"] = cid
        self._core.emit("version", version=manifest.version, round=manifest.round, cid=cid, frames=frames, record=record)
        logger.info("version %d is published as %s", manifest.version, cid)

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def _outer(self) -> dict[str, Any]:
        config = self._core.config
        return {
            "optimizer": "nesterov", "lr": config.rounds.outer_lr, "momentum": config.rounds.outer_momentum,
            "rule": config.aggregation.rule, "tolerate": config.aggregation.tolerate, "prepare": config.aggregation.prepare,
            "inner": config.inner_terms,
        }  # fmt: skip

    def _cursor(self, frames: int) -> dict[str, Any]:
        state = self._core.state
        return {
            "epoch": state.cursor.epoch, "position": state.cursor.position, "frames": frames,
            "returned": [[one.epoch, one.start, one.stop] for one in sorted(state.returned)],
            "next_microbatch_id": state.next_microbatch_id, "seed": self._core.config.run.seed,
        }  # fmt: skip

    def _record(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """The round as reports show it."""
        state, counts = self._core.state, self._core.state.counts
        return {
            "round": state.round,
            "version": state.version + 1,
            "base_cid": state.base_cid,
            "heldout_loss": None,
            **{key: counts[key] for key in counts if key not in ("bytes", "microbatches", "trained")},
            "duplicate_microbatches": sum(one["duplicates"] for one in counts["microbatches"]),
            "dropped_microbatches": sum(one["dropped"] for one in counts["microbatches"]),
            "microbatches": counts["microbatches"],
            "target_frames": state.target_frames,
            "contributions": contributions(state, results),
            "stages": [
                {
                    "stage": stage, "rule": one["rule"], "f": one["f"], "n": one["n"], "tolerates": one["tolerates"],
                    "prepare": one["prepare"], "why": one["why"],
                    "accepted": len(one["accepted"]), "accepted_members": one["accepted"],
                    "clips": one["clips"], "trimmed_shares": one["trimmed_shares"],
                    "refused": [{"member": member, "reason": reason} for member, reason in one["refused"]],
                    "norms": one["norms"], "step_norm": one["step_norm"],
                }
                for stage, one in enumerate(results)
            ],
        }  # fmt: skip

    async def _clean_up(self) -> None:
        """Remove what only the rounds before needed: their updates, older working files, versions that may go, freed memory.

        Versions are dropped beside the event loop: there may be many files.
        """
        core, state = self._core, self._core.state
        self._drop_updates({self._state_dir / one.path for one in state.updates.values()})
        await asyncio.to_thread(give_back_freed_memory)
        try:
            core.pins = await asyncio.to_thread(read_pins, self._state_dir)
            stays = retained_by(state, core.config.checkpoint, core.pins)
        except HocketError as error:
            logger.warning("no version is dropped as long as it is not known which are pinned: %s", error.line())
            stays = {one["cid"]: ("kept",) for one in state.versions}
        versions, roots = list(state.versions), list(state.dataset["pinned"])

        def work() -> None:
            # Stages that nobody trained have their newest working file in an older folder; the block store has it anyway.
            self._versions.drop_working_files(state.version, {one["version"] for one in versions if one["cid"] in stays})
            self._versions.prune(versions, stays, roots=roots)

        await asyncio.to_thread(work)

    def _drop_updates(self, current: set[Path]) -> None:
        updates = self._state_dir / "updates"
        with disk_errors(updates):
            for path in updates.glob("*/*/*"):
                if path not in current:
                    path.unlink()
            for folder in sorted(updates.glob("**/"), reverse=True):
                if not any(folder.iterdir()):
                    folder.rmdir()


def frames_of(update: Update, counts: Mapping[str, Any]) -> int:
    """Frames that an update claims, at most those of the whole round: a claim beyond them cannot make others look idle."""
    counted = int(counts.get("frames", 0))
    return min(update.frames, counted) if counted else update.frames
