"""The last part of a replica's round: its update becomes a file, is signed, sent and acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from node.committer import Committer
from node.replica import EventSink
from node.session import Session, file_digest
from node.stage_service import Serving
from protocol.generated import hocket_pb2 as pb
from protocol.tensor_files import write_tensors

logger = logging.getLogger(__name__)


class Submission:
    """Sends a member's updates, one a round.

    Args:
        session: with the coordinator. committer: of the worker. path: of the file that holds an update while it is sent.
        event: writes to the worker's event log.
    """

    def __init__(self, session: Session, committer: Committer, path: Path, event: EventSink) -> None:
        self._session = session
        self._committer = committer
        self._path = path
        self._event = event

    async def send(self, serving: Serving, wanted: Callable[[], bool], *, leaving: bool = False) -> bool:
        """Take the last inner step of a drained round and send the update; whether it was acknowledged.

        Args:
            wanted: whether the coordinator still waits for this round's update, as far as is known.
            leaving: the member goes, so that its update comes before the round closes.
        """
        update = await serving.replica.close()
        await asyncio.to_thread(write_tensors, self._path, update)
        del update
        try:
            return await self._send(serving, wanted, leaving)
        finally:
            self._path.unlink(missing_ok=True)

    async def _send(self, serving: Serving, wanted: Callable[[], bool], leaving: bool) -> bool:
        context, replica = serving.context, serving.replica
        commit = await self._committer.settled(wanted)
        size_bytes, sha256 = await asyncio.to_thread(file_digest, self._path)
        head = pb.UpdateHead(
            round=context.round,
            base_cid=context.base_cid,
            stage=context.stage,
            generation=context.generation,
            size_bytes=size_bytes,
            sha256=sha256,
            microbatches=[pb.CountedMicrobatch(id=identifier, frames=frames) for identifier, frames in replica.ledger.counted()],
            inner_steps=replica.totals.inner_steps,
            frames=replica.totals.frames,
            duplicates=replica.ledger.duplicates,
            dropped=replica.ledger.dropped,
            leaving=leaving,
        )
        if commit is not None:
            head.chain_link, head.chain_step, head.chain_part = commit.link, commit.step, commit.part
        if replica.recorder is not None:
            head.uncounted.extend(replica.recorder.take_uncounted())
        receipt = await self._session.persist("submit_update", lambda: self._session.submit(head, self._path), while_=wanted)
        if receipt is None:
            logger.warning("the update of round %d was not sent: the run has gone on", context.round)
        elif receipt.accepted:
            self._event("update_acked", round=context.round, stage=context.stage, sha256=sha256.hex(), frames=head.frames)
            if receipt.open_step:
                self._committer.draw_last()
            return True
        else:
            logger.warning("the update of round %d is refused: %s", context.round, receipt.reason)
            self._event("update_refused", round=context.round, stage=context.stage, sha256=sha256.hex(), reason=receipt.reason)
        return False
