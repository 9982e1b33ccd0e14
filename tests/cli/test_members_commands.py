"""`hocket members` on a running coordinator, over TLS, by its state directory alone."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import grpc
from cryptography.hazmat.primitives import serialization
from door_in_process import House, within
from forked_core import KEY
from typer.testing import CliRunner

from cli.main import app, understood
from common.errors import Code
from coordinator.tls import load_or_create
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey
from protocol.ticket import Ticket

STRANGER = MemberKey.from_seed(b"s" * 32)


def hocket(state_dir: Path, *arguments: str) -> tuple[str, Code | None]:
    """Standard output, and the number of the error that the command ended with."""
    where = () if arguments[0] == "ledger" else ("--state-dir", str(state_dir))
    result = CliRunner().invoke(app, ["members", *arguments, *where])
    error = understood(result.exception) if result.exception is not None else None
    assert (error is None) == (result.exit_code == 0), result.output
    return result.stdout, None if error is None else error.code


def write_key(folder: Path, key: MemberKey) -> None:
    pem = key._private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "member.key").touch(mode=0o600)
    (folder / "member.key").write_bytes(pem)


def test_an_organiser_invites_bans_and_pardons(tmp_path: Path) -> None:
    async def body(house: House) -> None:
        state_dir = tmp_path / "state"
        certificate = load_or_create(tmp_path, "127.0.0.1")
        server = grpc.aio.server()
        rpc.add_CoordinatorServicer_to_server(house.door, server)
        credentials = grpc.ssl_server_credentials([(certificate.key_pem, certificate.pem)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        ticket = Ticket("crashes", (f"127.0.0.1:{port}",), KEY.public, certificate.sha256, ())
        house.clock.now = time.time()

        async def ask(*arguments: str) -> tuple[str, Code | None]:
            return await asyncio.to_thread(hocket, state_dir, *arguments)

        try:
            assert (await ask("list"))[1] is Code.STATE_UNREADABLE
            write_key(state_dir, KEY)
            assert (await ask("list"))[1] is Code.STATE_UNREADABLE
            (state_dir / "ticket.txt").write_text(ticket.encode() + "\n")
            out, _ = await ask("invite", "--uses", "3", "--expires", "12h", "--operator", "Ann")
            invited = Ticket.decode(out)
            assert invited.invitation and Ticket.decode(ticket.encode()).invitation == ""
            (name, invitation), = house.state.admission.invitations.items()
            assert (invitation.uses, invitation.operator) == (3, "Ann")
            assert abs(invitation.expires_at - house.clock.now - 12 * 3600) < 60
            assert await ask("ban", STRANGER.member_id, "--reason", "noise") == (f"banned: {STRANGER.member_id}\n", None)
            assert house.state.admission.bans == {STRANGER.member_id: "noise"}
            told = json.loads((await ask("list", "--json"))[0])
            assert told["members"] == [{"member": STRANGER.member_id, "state": "banned", "reason": "noise"}]
            assert told["invitations"][0]["name"] == name[:12]
            lines, _ = await ask("list")
            assert STRANGER.member_id in lines and "0 of 3 used" in lines
            assert await ask("pardon", STRANGER.member_id[:10]) == (f"pardoned: {STRANGER.member_id}\n", None)
            assert (await ask("pardon", STRANGER.member_id))[1] is Code.OPTION_INVALID
            assert (await ask("revoke", name[:8]))[1] is None and invitation.revoked
            assert (await ask("invite", "--expires", "soon"))[1] is Code.OPTION_INVALID
            assert json.loads((await ask("ledger", ticket.encode(), "--json"))[0]) == {"members": [], "operators": []}
            (state_dir / "member.key").unlink()
            write_key(state_dir, STRANGER)
            assert (await ask("list"))[1] is Code.COORDINATOR_KEY_MISMATCH
        finally:
            await server.stop(None)

    within(tmp_path, body)
