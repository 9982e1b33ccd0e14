"""`hocket audit show|verify`: evidence holds where the member lied, and falls where anybody else did."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opened_work import CONFIG, SEED, STAGES, Work, commits, honest, pass_opening
from typer.testing import CliRunner

from cli.main import app
from common.errors import Code, HocketError
from common.files import atomic_write
from coordinator.evidence import DrawnBy, Evidence, EvidenceFile, packed, sign_evidence
from coordinator.evidence_check import Outcome
from protocol.calibration import shipped_calibration
from protocol.content import cid_of
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.manifest import StageFile, TensorEntry, VersionManifest, sign_document
from protocol.messages import make_signed
from protocol.tensors import write_tensors
from simulations.audit_check import find_evidence, verify_evidence
from swarm.blocks import BlockStore
from tts.referee import Referee
from tts.stage_files import expected_tensors, stage_file_name, write_stage
from tts.stages import build_stage

SECRET = b"s" * 32
COMMITMENT = hashlib.sha256(SECRET).hexdigest()
INDEX = 1
TERMS = {"seed": SEED, "wire": "fp32", "weight_decay": 0.01, "clip_norm": 1.0, "stages": STAGES}


@dataclass
class Court:
    """A coordinator's state folder, and the keys of those concerned."""

    state: Path
    key: MemberKey
    prover: MemberKey
    witness: MemberKey
    base_cid: str

    @property
    def store(self) -> BlockStore:
        return BlockStore(self.state / "blocks")

    def signed(self, key: MemberKey, method: str, payload: Any) -> str:
        message = make_signed(
            key, method=method, payload=payload, run_id="run", receiver=self.key.member_id, round=3, base_cid=self.base_cid,
            stage=INDEX, now_ms=1,
        )  # fmt: skip
        return packed(message.SerializeToString())

    def file(self, part: str, key: MemberKey, tensors: dict[str, np.ndarray], given: str = "") -> tuple[EvidenceFile, str]:
        """A file in the store, and its maker's signed head."""
        path = self.state / f"{part}.tmp"
        write_tensors(path, tensors)
        digest, size = hashlib.sha256(path.read_bytes()).digest(), path.stat().st_size
        head = pb.OpeningHead(
            round=3, stage=INDEX, generation=1, size_bytes=size, sha256=digest, input_cid=given if part == "witness" else ""
        )
        entry = EvidenceFile(part=part, member=key.member_id, cid=self.store.add_file(path), sha256=digest.hex(), size_bytes=size)
        return entry, self.signed(key, "submit_opening", head)

    def chain(self, work: Work) -> tuple[pb.StepCommit, ...]:
        return commits(work, member=self.prover.member_id, base_cid=self.base_cid)

    def evidence(self, kind: str, work: Work, **changes: Any) -> Evidence:
        """What a coordinator writes against the prover (PASS, STEP), or against its witness (WITNESS)."""
        chain = self.chain(work)
        step = 2 if kind == "STEP" else 1
        if kind == "STEP":
            files = [self.file("step", self.prover, work.opening(2))]
        else:
            files = [self.file("input", self.prover, pass_opening(work, 10, "input"))]
            maker = self.prover if kind == "PASS" else self.witness
            part, given = "output" if kind == "PASS" else "witness", files[0][0].cid
            files.append(self.file(part, maker, pass_opening(work, 10, "output"), given))
        accused = self.witness if kind == "WITNESS" else self.prover
        opened, heads = [entry for entry, _ in files], [head for _, head in files]
        promised = [self.signed(self.prover, "commit", one) for one in chain[step - 1 : step + 1]]
        made = Evidence(
            run_id="run", kind=kind, member=accused.member_id, reason="it is wrong", time_s=1.0, round=3, stage=INDEX,
            generation=1, base_cid=self.base_cid, version=1, step=step, microbatch=None if kind == "STEP" else 10,
            signed=[*promised, *heads], files=opened,
            drawn=DrawnBy(
                link=chain[step].link.hex(), step=step, microbatch=None if kind == "STEP" else 10, audited=1.0, microbatches=4,
                steps=1,
            ),
            audit_commitment=COMMITMENT, device_class="cpu-x86_64-float32", by="referee", statistics={"hidden.median": 0.1},
            settings=TERMS,
        )  # fmt: skip
        return made.model_copy(update=changes)

    def write(self, evidence: Evidence, key: MemberKey | None = None) -> str:
        return self.store.add_bytes(sign_evidence(key or self.key, evidence))


@pytest.fixture
def court(tmp_path: Path) -> Court:
    """A version before the accused round, and the one that it made, whose manifest reveals the round's secret."""
    key, store = MemberKey.generate(), BlockStore(tmp_path / "blocks")
    stages = []
    for index in range(STAGES):
        path = tmp_path / stage_file_name(index)
        write_stage(path, build_stage(CONFIG, index, STAGES, seed=1))
        tensors = [TensorEntry(name=t.name, dtype=t.dtype, shape=list(t.shape)) for t in expected_tensors(CONFIG, index, STAGES)]
        stages.append(
            StageFile(
                stage=index, cid=store.add_file(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                size_bytes=path.stat().st_size, tensors=tensors,
            )
        )  # fmt: skip
    cids = []
    for number, round, audit in ((1, 2, {}), (2, 3, {"secret": SECRET.hex(), "commitment": COMMITMENT})):
        manifest = VersionManifest(
            run_id="run", version=number, round=round, model=CONFIG.model_dump(mode="json"), stages=stages,
            dataset_cid=cid_of(b"dataset"), audit=audit, outer={"inner": TERMS},
        )  # fmt: skip
        data = sign_document(key, manifest.model_dump(mode="json"))
        cids.append(store.add_bytes(data))
        atomic_write(tmp_path / "versions" / f"v{number}" / "manifest.json", data)
    return Court(tmp_path, key, MemberKey.generate(), MemberKey.generate(), cids[0])


def scaled() -> Work:
    """Work of which one output is not what came out, committed to as it is."""
    work = honest()[INDEX]
    hidden = work.outputs[10].hidden
    assert hidden is not None
    return replace(work, outputs=work.outputs | {10: replace(work.outputs[10], hidden=hidden * np.float32(0.9))})


def unstepped() -> Work:
    """Work whose second step was not taken, but counted."""
    work = honest()[INDEX]
    after = {name: value + np.float32(1) if name.endswith(".step") else value for name, value in work.states[1].items()}
    return replace(work, states=(*work.states[:2], after))


def verify(court: Court, cid: str, *words: str) -> tuple[Code | None, dict[str, tuple[str, str]]]:
    """What `hocket audit verify` ends with, and its checks."""
    result = CliRunner().invoke(app, ["audit", "verify", cid, "--from", str(court.state), "--json", *words])
    assert result.exception is None or isinstance(result.exception, HocketError | SystemExit), result.exception
    code = result.exception.code if isinstance(result.exception, HocketError) else None
    checks = json.loads(result.output)["checks"] if result.output.startswith("{") else []
    return code, {one["what"]: (one["outcome"], one["detail"]) for one in checks}


def verify_here(court: Court, evidence: Evidence) -> dict[str, tuple[Outcome, str]]:
    """The checks, with the referee in this process."""

    def ask(job: dict[str, Any], manifest: VersionManifest, scratch: Path) -> dict[str, Any]:
        return Referee(CONFIG, STAGES, shipped_calibration()).judge(job)

    found = find_evidence(court.write(evidence), court.state, court.key.public)
    scratch = court.state / f"scratch-{len(list(court.state.iterdir()))}"
    scratch.mkdir()
    return {one.what: (one.outcome, one.detail) for one in verify_evidence(found, court.state, scratch, ask=ask)}


@pytest.mark.parametrize("kind", ["PASS", "STEP", "WITNESS"])
def test_a_liar_is_convicted_offline_and_the_honest_is_not(court: Court, kind: str) -> None:
    checks = verify_here(court, court.evidence(kind, unstepped() if kind == "STEP" else scaled()))
    assert {outcome for outcome, _ in checks.values()} == {Outcome.HOLDS}, checks
    assert "the recomputation" in checks and "the draw" in checks
    checks = verify_here(court, court.evidence(kind, honest()[INDEX]))
    assert [what for what, (outcome, _) in checks.items() if outcome is not Outcome.HOLDS] == ["the recomputation"]


def test_the_command_starts_a_referee(court: Court) -> None:
    code, checks = verify(court, court.write(court.evidence("PASS", scaled())))
    assert code is None and checks["the recomputation"][0] == "holds", checks


def test_without_the_recomputation_nothing_is_proved(court: Court) -> None:
    code, checks = verify(court, court.write(court.evidence("PASS", scaled())), "--no-recompute")
    assert code is Code.EVIDENCE_INCOMPLETE and checks["the recomputation"][0] == "not checked"


def _last_changed(text: str) -> str:
    raw = bytearray(base64.b64decode(text))
    raw[-1] ^= 1
    return packed(bytes(raw))


def test_what_a_coordinator_made_up_does_not_hold(court: Court) -> None:
    """Each change is one that a lying coordinator can make to a document that it signs itself."""
    whole = court.evidence("PASS", scaled())
    drawn = whole.drawn
    assert drawn is not None
    other = court.file("output", court.prover, pass_opening(honest()[INDEX], 10, "output"))[0]
    forged = court.signed(court.key, "submit_opening", pb.OpeningHead(round=3, sha256=bytes.fromhex(other.sha256)))
    changes: dict[str, dict[str, Any]] = {
        "signed message 1": {"signed": [_last_changed(whole.signed[0]), *whole.signed[1:]]},
        "the accused member signed it": {"member": MemberKey.generate().member_id},
        "the drawn step is one that was committed to": {"drawn": drawn.model_copy(update={"link": "ab" * 32})},
        "the draw": {"drawn": drawn.model_copy(update={"audited": 0.0})},
        "the secret is the one committed to": {"audit_commitment": "00" * 32},
        f"file output of {court.prover.member_id[:12]}": {
            "files": [whole.files[0], other], "signed": [*whole.signed[:3], forged],
        },
    }  # fmt: skip
    for what, change in changes.items():
        code, checks = verify(court, court.write(whole.model_copy(update=change)), "--no-recompute")
        assert code is Code.EVIDENCE_INVALID and checks[what][0] == "does not hold", (what, checks)
    code, _ = verify(court, court.write(whole, MemberKey.generate()), "--no-recompute")
    assert code is Code.EVIDENCE_INVALID  # another signer than that of the version
    code, _ = verify(court, court.write(whole), "--no-recompute", "--key", MemberKey.generate().member_id)
    assert code is Code.MANIFEST_INVALID


def test_a_witness_is_not_convicted_by_an_input_that_it_was_not_given(court: Court) -> None:
    whole = court.evidence("WITNESS", scaled())
    entry, head = court.file("witness", court.witness, pass_opening(scaled(), 10, "output"), cid_of(b"something else"))
    code, checks = verify(
        court, court.write(whole.model_copy(update={"files": [whole.files[0], entry], "signed": [*whole.signed[:3], head]})),
        "--no-recompute",
    )  # fmt: skip
    assert code is Code.EVIDENCE_INVALID and checks["the witness answered for this input"][0] == "does not hold"


@pytest.mark.parametrize("term", [{"seed": SEED + 1}, {"wire": "int8"}, {"weight_decay": "much"}, {"weight_decay": 10**400}])
def test_work_is_computed_again_as_the_version_says_and_not_as_the_evidence_does(court: Court, term: dict[str, Any]) -> None:
    for kind in ("PASS", "NORM"):
        whole = court.evidence("PASS", scaled(), settings={**TERMS, **term}).model_copy(update={"kind": kind})
        code, checks = verify(court, court.write(whole), "--no-recompute")
        assert code is Code.EVIDENCE_INVALID and checks["the run trains as the version says"][0] == "does not hold"


def test_an_older_version_is_not_the_base_of_the_round(court: Court) -> None:
    """Else whoever handed in on the newest one could be shown to have named another than the round's."""
    between = VersionManifest.model_validate(
        {**json.loads((court.state / "versions/v1/manifest.json").read_bytes())["body"], "version": 2, "round": 2}
    )
    data = sign_document(court.key, between.model_dump(mode="json"))
    atomic_write(court.state / "versions" / "v2" / "manifest.json", data)
    head = pb.UpdateHead(round=3, stage=INDEX, generation=1)
    signed = make_signed(
        court.prover, method="submit_update", payload=head, run_id="run", receiver=court.key.member_id, round=3,
        base_cid=cid_of(data), stage=INDEX, now_ms=1,
    )  # fmt: skip
    made = court.evidence("PASS", scaled(), files=[], drawn=None, signed=[packed(signed.SerializeToString())])
    code, checks = verify(court, court.write(made.model_copy(update={"kind": "STALE_BASE"})))
    assert code is Code.EVIDENCE_INVALID
    assert checks["the version is the newest one before the round"][0] == "does not hold"


def test_what_is_not_at_hand_is_said_to_be(court: Court) -> None:
    whole = court.evidence("PASS", scaled())
    missing = whole.files[1].model_copy(update={"cid": cid_of(b"gone")})
    (court.state / "versions" / "v2" / "manifest.json").unlink()
    code, checks = verify(court, court.write(whole.model_copy(update={"files": [whole.files[0], missing]})))
    assert code is Code.EVIDENCE_INCOMPLETE
    assert {what for what, (outcome, _) in checks.items() if outcome == "not checked"} == {
        f"file output of {court.prover.member_id[:12]}", "the draw", "the recomputation",
    }  # fmt: skip
    code, checks = verify(court, court.write(whole.model_copy(update={"kind": "NOT_OPENED"})))
    assert code is Code.EVIDENCE_INCOMPLETE and checks["that it opened nothing"][0] == "not checked"


def test_two_links_for_one_step_are_proof(court: Court) -> None:
    honest_chain, other_chain = court.chain(honest()[INDEX]), court.chain(scaled())
    one, other = (court.signed(court.prover, "commit", chain[1]) for chain in (honest_chain, other_chain))
    base = court.evidence("PASS", scaled(), files=[], drawn=None).model_copy(update={"kind": "FORK"})
    assert verify(court, court.write(base.model_copy(update={"signed": [one, other]})))[0] is None
    code, checks = verify(court, court.write(base.model_copy(update={"signed": [one, one]})))
    assert code is Code.EVIDENCE_INVALID and checks["it signed two different links for one step"][0] == "does not hold"


def test_an_update_that_is_not_the_committed_one_is_proof(court: Court) -> None:
    work = honest()[INDEX]
    chain = court.chain(work)
    base = {name.removeprefix("weights."): value for name, value in work.states[0].items() if name.startswith("weights.")}
    update = {name: value - work.states[2][f"weights.{name}"] for name, value in base.items()}
    for lie in (True, False):
        sent = {name: value * np.float32(2 if lie else 1) for name, value in update.items()}
        entry, _ = court.file("update", court.prover, sent)
        head = pb.UpdateHead(
            round=3, stage=INDEX, generation=1, sha256=bytes.fromhex(entry.sha256), size_bytes=entry.size_bytes, chain_step=2,
            chain_link=chain[2].link,
        )  # fmt: skip
        messages = [court.signed(court.prover, "submit_update", head), court.signed(court.prover, "commit", chain[2])]
        made = court.evidence("PASS", work, files=[entry], signed=messages, drawn=None).model_copy(update={"kind": "CHAIN"})
        code, checks = verify(court, court.write(made))
        assert code is (None if lie else Code.EVIDENCE_INVALID), checks


def test_evidence_is_shown_from_a_file_and_from_a_store(court: Court, tmp_path: Path) -> None:
    evidence = court.evidence("PASS", scaled(), reason="wrong\x1b[31m numbers")
    cid = court.write(evidence)
    (tmp_path / "document").write_bytes(court.store.read_file(cid))
    for words in ([cid, "--from", str(court.state)], [str(tmp_path / "document")]):
        shown = CliRunner().invoke(app, ["audit", "show", *words])
        assert shown.exit_code == 0 and court.prover.member_id in shown.output and "\x1b" not in shown.output
    told = json.loads(CliRunner().invoke(app, ["audit", "show", str(tmp_path / "document"), "--json"]).output)
    assert told["signer"] == court.key.member_id and told["evidence"]["kind"] == "PASS"
    result = CliRunner().invoke(app, ["audit", "show", cid])
    assert isinstance(result.exception, HocketError) and result.exception.code is Code.OPTION_INVALID
    (tmp_path / "document").write_bytes(court.store.read_file(cid).replace(b"PASS", b"STEP"))
    result = CliRunner().invoke(app, ["audit", "show", str(tmp_path / "document")])
    assert isinstance(result.exception, HocketError) and result.exception.code is Code.MANIFEST_INVALID
