"""Gathers what evidence names from a folder of blocks, and has it checked again: signatures, draws, bytes, the work itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError, error_of_line
from coordinator.evidence import Evidence, read_evidence
from coordinator.evidence_check import (
    BY_BYTES,
    BY_RECOMPUTATION,
    Check,
    Outcome,
    check_batch,
    check_draw,
    check_exchange,
    check_files,
    check_given,
    check_ruling,
    check_terms,
    check_words,
    open_messages,
    referee_job,
    undecided,
)
from coordinator.leased_batches import open_batches, seed_in
from coordinator.update_checks import measure
from protocol.content import parse_cid
from protocol.manifest import MAX_DOCUMENT_BYTES, VersionManifest, read_manifest, signer_of
from protocol.tensor_files import TensorInfo
from simulations.version_export import MAX_MANIFEST_BYTES, kept_versions
from swarm.blocks import BlockStore

REFEREE_LIMIT_S = 1800.0

Ask = Callable[[dict[str, Any], VersionManifest, Path], dict[str, Any]]
"""Has a referee do a job (see `tts.referee`) on a version's model, with a folder for files; its answer."""


@dataclass(frozen=True)
class Found:
    """A document and who signed it."""

    evidence: Evidence
    signer: str


def find_evidence(name: str, state: Path | None, key: bytes | None) -> Found:
    """Read evidence from a file, or by its CID from a folder's blocks.

    Args:
        key: that must have signed; None: anybody.

    Raises:
        HocketError: MANIFEST_INVALID, OPTION_INVALID, BLOCK_NOT_FOUND.
    """
    path = Path(name)
    if path.is_file():
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise HocketError(Code.MANIFEST_INVALID, f"{path} is too large")
        data = path.read_bytes()
    elif state is None:
        raise HocketError(Code.OPTION_INVALID, f"{name} is no file; for a CID give --from a folder that holds its blocks")
    else:
        parse_cid(name)
        data = BlockStore(state / "blocks").read_file(name, max_bytes=MAX_DOCUMENT_BYTES)
    return Found(read_evidence(data, signer=key), signer_of(data))


def ask_referee(job: dict[str, Any], manifest: VersionManifest, scratch: Path) -> dict[str, Any]:
    """Start a referee for one job. CHILD_FAILED, or the error with which it ended."""
    config, orders = scratch / "model.json", scratch / "jobs.json"
    config.write_text(json.dumps(manifest.model), encoding="utf-8")
    orders.write_text(json.dumps({"config": str(config), "stages": len(manifest.stages), "jobs": [job]}), encoding="utf-8")
    command = [sys.executable, "-m", "tts.referee", "--jobs", str(orders)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REFEREE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HocketError(Code.CHILD_FAILED, f"the referee did not end within {REFEREE_LIMIT_S:.0f} s") from error
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != 1:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise error_of_line(last) or HocketError(Code.CHILD_FAILED, f"the referee: {last}")
    ruling: dict[str, Any] = json.loads(lines[0])
    return ruling


def verify_evidence(found: Found, state: Path, scratch: Path, *, ask: Ask | None = ask_referee) -> list[Check]:
    """Check everything that can be checked with what a folder holds.

    Args:
        state: a coordinator's state folder, or a copy of its `versions` and `blocks`. scratch: for files.
        ask: has the work done again, which takes torch and some time; None: it is not.

    Raises:
        HocketError: EVIDENCE_INVALID, CHECKPOINT_INVALID, NOT_FINITE, MANIFEST_INVALID, CHILD_FAILED.
    """
    evidence, store = found.evidence, BlockStore(state / "blocks")
    manifest, checks = _base(found, store)
    secret, revealed = _secret(found, state)
    files: dict[str, Path] = {}
    for number, one in enumerate(evidence.files):
        path = scratch / f"file-{number}.safetensors"
        if store.has(one.cid):
            store.export(one.cid, path, max_bytes=one.size_bytes)
            files[one.cid] = path
    messages, signed = open_messages(evidence)
    checks += [*messages, *check_files(evidence, signed, files), *revealed, *check_draw(evidence, signed, secret)]
    checks += [*check_terms(evidence, manifest, _others(found, state)), *check_given(evidence, signed), *undecided(evidence)]
    base = scratch / "base.safetensors"
    stage = manifest.stages[evidence.stage]
    tensors = [TensorInfo(one.name, one.dtype, tuple(one.shape)) for one in stage.tensors]
    if evidence.kind in (*BY_RECOMPUTATION, "NORM"):
        store.export(stage.cid, base, max_bytes=stage.size_bytes)
    if evidence.kind in (*BY_BYTES, "FORK", "STALE_BASE"):
        most = measure(base, tensors, Code.CHECKPOINT_INVALID).largest if evidence.kind == "NORM" else 0.0
        checks += check_words(evidence, signed, files, tensors, most)
    if evidence.kind == "EQUIVOCATION":
        checks += check_exchange(evidence, signed, files)
    if evidence.kind == "BATCH":
        checks.append(check_batch(
            evidence, signed,
            lambda: open_batches(store, manifest.dataset_cid, manifest.model, seed_in(manifest.data_cursor)),
        ))  # fmt: skip
    if evidence.kind in BY_RECOMPUTATION:
        job = referee_job(evidence, signed, files, base, secret)
        if job is None:
            checks.append(Check("the recomputation", Outcome.OPEN, "a file or a commit that it takes is not at hand"))
        elif ask is None:
            checks.append(Check("the recomputation", Outcome.OPEN, "it was not asked for"))
        else:
            checks.append(check_ruling(evidence, ask(job, manifest, scratch)))
    return checks


def _base(found: Found, store: BlockStore) -> tuple[VersionManifest, list[Check]]:
    """The version that the round began with, and whether the same coordinator signed it."""
    evidence = found.evidence
    data = store.read_file(evidence.base_cid, max_bytes=MAX_MANIFEST_BYTES)
    manifest = read_manifest(VersionManifest, data, signer=None)
    same = (signer_of(data), manifest.run_id) == (found.signer, evidence.run_id)
    if evidence.stage >= len(manifest.stages):
        raise HocketError(Code.EVIDENCE_INVALID, f"stage {evidence.stage} of a version of {len(manifest.stages)}")
    return manifest, [Check("the version is of the same run and signer", Outcome.HOLDS if same else Outcome.FAILS)]


def _others(found: Found, state: Path) -> list[VersionManifest]:
    """The versions at hand that the coordinator of the evidence has signed for its run."""
    kept = [one for one in kept_versions(state) if one.manifest.run_id == found.evidence.run_id]
    return [one.manifest for one in kept if signer_of(one.path.read_bytes()) == found.signer]


def _secret(found: Found, state: Path) -> tuple[bytes | None, list[Check]]:
    """The secret of the evidence's round, from the manifest of the version that the round made."""
    evidence = found.evidence
    if evidence.drawn is None:
        return None, []
    for kept in kept_versions(state):
        told = kept.manifest.audit
        if kept.manifest.run_id != evidence.run_id or kept.manifest.round != evidence.round or "secret" not in told:
            continue
        try:
            secret = bytes.fromhex(told["secret"])
        except ValueError as error:
            raise HocketError(Code.MANIFEST_INVALID, f"{kept.path}: the audit's secret is no hex") from error
        same = signer_of(kept.path.read_bytes()) == found.signer
        return secret, [Check("the secret was revealed by the same signer", Outcome.HOLDS if same else Outcome.FAILS)]
    return None, []
