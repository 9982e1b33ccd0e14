"""Asks a coordinator for its status, over a channel that trusts only the certificate that the ticket pins."""

from __future__ import annotations

import json
from typing import Any

import grpc.aio

from common.errors import Code, HocketError
from node.door import open_channel
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.ticket import Ticket

UNSETTLED = 5


class StatusClient:
    """One kept channel; a lost one is opened anew at the next call."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._channel: grpc.aio.Channel | None = None
        self._settled: list[dict[str, Any]] = []

    async def status(self, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """The coordinator's status with all finished rounds.

        While the run goes on, those that are known from an earlier call are not sent again, but for the newest, to which a
        held-out loss is still added.

        Args:
            timeout_s: of each of the calls that it takes.

        Raises:
            HocketError: COORDINATOR_UNREACHABLE or COORDINATOR_KEY_MISMATCH.
        """
        rounds = self._settled
        while True:
            answer = await self._ask(int(rounds[-1]["round"]) if rounds else 0, timeout_s)
            rounds = rounds + answer["rounds"]
            if not answer["rounds_more"]:
                break
        self._settled = [] if answer["phase"] == "FINISHED" else rounds[:-UNSETTLED]
        return {**answer, "rounds": rounds}

    async def _ask(self, after: int, timeout_s: float) -> dict[str, Any]:
        if self._channel is None:
            self._channel = await open_channel(self._ticket)
        try:
            reply = await rpc.CoordinatorStub(self._channel).Status(pb.StatusRequest(after_round=after), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            await self.close()
            raise HocketError(Code.COORDINATOR_UNREACHABLE, f"{error.code().name} {error.details()}") from error
        answer: dict[str, Any] = json.loads(reply.json)
        return answer

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


async def fetch_status(ticket: Ticket, *, timeout_s: float = 10.0) -> dict[str, Any]:
    """One status, over a channel of its own."""
    client = StatusClient(ticket)
    try:
        return await client.status(timeout_s=timeout_s)
    finally:
        await client.close()
