"""Finds the coordinator: at the ticket's addresses, and where the coordinator itself says in the DHT that it has moved to."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc

from common.errors import Code, HocketError
from node.door import open_channel
from protocol.ticket import Ticket
from swarm.directory import Directory
from swarm.whereabouts import Whereabouts, newest_of

logger = logging.getLogger(__name__)

_NOT_THERE = (Code.COORDINATOR_UNREACHABLE, Code.COORDINATOR_KEY_MISMATCH, Code.TICKET_INVALID)


class Finder:
    """Opens the way to the coordinator of one run.

    Wherever it is found, it must show the certificate that the ticket pins; a record in the DHT must be signed with the key
    that the ticket names, and be no older than one that was followed before.

    Args:
        ticket: of the run.
        directory: where the coordinator says where it is; None: nowhere, the ticket's addresses are all.
        now_ms: clock, milliseconds since the epoch.
    """

    def __init__(self, ticket: Ticket, directory: Directory | None, now_ms: Callable[[], int]) -> None:
        self._ticket = ticket
        self._directory = directory
        self._now_ms = now_ms
        self._followed: Whereabouts | None = None

    async def open(self) -> grpc.aio.Channel:
        """A channel to the coordinator, opened where it was found last, at the ticket's addresses, or where its record says.

        Raises:
            HocketError: what the ticket's addresses gave, when no record leads further: COORDINATOR_UNREACHABLE,
                COORDINATOR_KEY_MISMATCH, TICKET_INVALID.
        """
        if self._followed is not None:
            channel = await self._at(self._followed)
            if channel is not None:
                return channel
        try:
            return await open_channel(self._ticket)
        except HocketError as error:
            channel = await self._look_up() if error.code in _NOT_THERE and self._directory is not None else None
            if channel is None:
                raise
            return channel

    async def _at(self, record: Whereabouts) -> grpc.aio.Channel | None:
        """A channel to one of a record's addresses; None if nobody is there, or somebody else."""
        try:
            return await open_channel(self._ticket, record.addresses)
        except HocketError as error:
            if error.code not in _NOT_THERE:
                raise
            logger.info("the coordinator is not at %s: %s", ", ".join(record.addresses), error.detail)
            return None

    async def _look_up(self) -> grpc.aio.Channel | None:
        """Ask the DHT, and go where the newest record says; one that was tried in vain already is not tried again."""
        assert self._directory is not None
        try:
            found = await self._directory.find_coordinator(self._ticket.run_id)
        except HocketError as error:
            logger.info("the DHT does not tell where the coordinator is: %s", error.line())
            return None
        tried = self._followed
        record = newest_of(
            self._ticket.coordinator_key, found, now_ms=self._now_ms(), not_before_ms=tried.time_ms if tried is not None else 0
        )
        if record is None or (tried is not None and record.addresses == tried.addresses):
            return None
        channel = await self._at(record)
        if channel is not None:
            logger.info("the coordinator is found at %s", ", ".join(record.addresses))
            self._followed = record
        return channel
