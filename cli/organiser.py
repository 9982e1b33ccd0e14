"""The organiser's calls to a running coordinator, signed with the key in its state directory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import grpc.aio

from common.errors import Code, HocketError, error_of_line
from node.door import open_channel
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey
from protocol.messages import make_signed, new_nonce, open_signed
from protocol.ticket import Ticket


class Organiser:
    """Whoever can read the state directory of a coordinator.

    Raises:
        HocketError: STATE_UNREADABLE for a directory that is none of a coordinator, IDENTITY_UNREADABLE, TICKET_INVALID.
    """

    def __init__(self, state_dir: Path) -> None:
        key_file, ticket_file = state_dir / "member.key", state_dir / "ticket.txt"
        if not key_file.is_file():
            raise HocketError(
                Code.STATE_UNREADABLE, f"{state_dir} holds no coordinator's key",
                remedy="give the coordinator's --state-dir, on the machine where it is",
            )  # fmt: skip
        try:
            line = ticket_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HocketError(Code.STATE_UNREADABLE, f"{ticket_file} ({error})", remedy="start the coordinator first") from error
        self._key = MemberKey.load_or_create(key_file)
        self.ticket = Ticket.decode(line)
        if self.ticket.coordinator_key != self._key.public:
            raise HocketError(Code.COORDINATOR_KEY_MISMATCH, f"the ticket in {state_dir} names another key than that in it")

    async def ask(self, request: pb.ManageRequest, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """One request; what the coordinator tells of it.

        Raises:
            HocketError: COORDINATOR_UNREACHABLE; OPTION_INVALID and whatever else the coordinator refuses it with.
        """
        nonce = new_nonce()
        signed = make_signed(
            self._key, method="manage", payload=request, run_id=self.ticket.run_id, receiver=self._key.member_id,
            now_ms=time.time_ns() // 1_000_000, nonce=nonce,
        )  # fmt: skip
        channel = await open_channel(self.ticket)
        try:
            answer = await rpc.CoordinatorStub(channel).Manage(signed, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            told = error_of_line(error.details() or "")
            if told is not None:
                raise told from error
            raise HocketError(Code.COORDINATOR_UNREACHABLE, f"{error.code().name} {error.details()}") from error
        finally:
            await channel.close()
        header, payload = open_signed(
            answer, method="manage", run_id=self.ticket.run_id, receiver=self._key.member_id,
            now_ms=time.time_ns() // 1_000_000, nonces=None, request_nonce=nonce,
        )  # fmt: skip
        if header.public_key != self._key.public:
            raise HocketError(Code.COORDINATOR_KEY_MISMATCH, "the answer is signed by somebody else")
        told_json: dict[str, Any] = json.loads(pb.ManageReply.FromString(payload).json)
        return told_json
