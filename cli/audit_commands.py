"""`hocket audit show|verify`: why a member was quarantined, and whether that holds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import JsonFlag, plain, print_json
from common.errors import Code, HocketError

audit_app = typer.Typer(no_args_is_help=True, help="Look at the evidence against quarantined members, and check it again.")

EvidenceArgument = Annotated[str, typer.Argument(metavar="EVIDENCE", help="A file, or the CID that `hocket members list` names.")]
FromOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="STATE", help="State folder of the coordinator, or a copy of its versions/ and blocks/."),
]
KeyOption = Annotated[str, typer.Option("--key", help="Member id of the coordinator that must have signed; a ticket names it.")]


@audit_app.callback()
def audit() -> None:
    """Commands that only read."""


@audit_app.command("show")
def show(evidence: EvidenceArgument, state: FromOption = None, key: KeyOption = "", json_output: JsonFlag = False) -> None:
    """Show what a member is accused of, what was measured and which files there are; only the signature is checked."""
    from simulations.audit_check import find_evidence

    found = find_evidence(evidence, state, _key(key))
    one = found.evidence
    if json_output:
        print_json({"signer": found.signer, "evidence": one.model_dump(mode="json", exclude={"signed"})})
        return
    place = [f"round {one.round}", f"stage {one.stage}", f"generation {one.generation}"]
    place += [f"step {one.step}"] if one.step is not None else []
    place += [f"microbatch {one.microbatch}"] if one.microbatch is not None else []
    facts: dict[str, Any] = {
        "accused": f"{one.member} ({one.operator or 'names no operator'})", "of": one.kind, "because": one.reason,
        "where": ", ".join(place), "run": one.run_id, "version": one.base_cid, "signed by": found.signer,
        "recomputed by": one.by or "nobody", "messages": len(one.signed),
    }  # fmt: skip
    for name, value in facts.items():
        typer.echo(f"{name:>14}  {plain(str(value))}")
    for name, number in sorted(one.statistics.items()):
        typer.echo(f"{'measured':>14}  {plain(str(name))} {plain(str(number))}")
    for file in one.files:
        typer.echo(f"{'file':>14}  {plain(file.part)} by {plain(file.member[:12])}, {file.size_bytes} bytes, {file.cid}")


@audit_app.command("verify")
def verify(
    evidence: EvidenceArgument,
    state: Annotated[Path, typer.Option("--from", metavar="STATE", help="State folder of the coordinator, or a copy.")],
    key: KeyOption = "",
    recompute: Annotated[
        bool, typer.Option("--recompute/--no-recompute", help="Compute the accused work again, where that is the proof.")
    ] = True,
    json_output: JsonFlag = False,
) -> None:
    """Check evidence again: signatures, commitments, digests, the draw and the work itself.

    Ends with exit code 0 when all of it holds, 3 when something does not, 5 when nothing fails but not all could be checked.
    """
    from coordinator.evidence_check import Outcome
    from simulations.audit_check import ask_referee, find_evidence, verify_evidence

    found = find_evidence(evidence, state, _key(key))
    with tempfile.TemporaryDirectory() as scratch:
        checks = verify_evidence(found, state, Path(scratch), ask=ask_referee if recompute else None)
    if json_output:
        rows = [{"what": one.what, "outcome": one.outcome.value, "detail": one.detail} for one in checks]
        print_json({"kind": found.evidence.kind, "member": found.evidence.member, "signer": found.signer, "checks": rows})
    else:
        for one in checks:
            typer.echo(f"{one.outcome.value:>13}  {plain(one.what)}{': ' + plain(one.detail) if one.detail else ''}")
    failed = [one.what for one in checks if one.outcome is Outcome.FAILS]
    left = [one.what for one in checks if one.outcome is Outcome.OPEN]
    if failed:
        raise HocketError(Code.EVIDENCE_INVALID, f"{found.evidence.kind}: {', '.join(failed)}")
    if left:
        raise HocketError(Code.EVIDENCE_INCOMPLETE, f"{found.evidence.kind}: {', '.join(left)}")


def _key(text: str) -> bytes | None:
    from protocol.identity import public_from_member_id

    return public_from_member_id(text) if text else None
