"""A replica shows what it has committed to: makes the files of its openings, and sends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from common.errors import HocketError
from node.commitments import HeldStep, PassTrace
from node.replica import EventSink
from node.session import Session, file_digest
from protocol.generated import hocket_pb2 as pb
from protocol.openings import About, Group, opening_tensors
from protocol.tensor_files import write_tensors

logger = logging.getLogger(__name__)

Tensors = dict[str, np.ndarray]


def _groups(**groups: Group) -> dict[str, Group]:
    """Those that are there: the ends of the pipeline have an edge less."""
    return {name: group for name, group in groups.items() if group}


def pass_input(held: HeldStep, trace: PassTrace) -> Tensors:
    """What came into a pass, from both sides."""
    about = held.about.model_copy(update={"microbatches": (trace.about(),)})
    return opening_tensors(about, _groups(input=trace.input, gradient_in=trace.gradient_in))


def pass_output(about: About, trace: PassTrace) -> Tensors:
    """What went out of a pass, to both sides; a witness's answer too."""
    about = about.model_copy(update={"microbatches": (trace.about(),)})
    return opening_tensors(about, _groups(output=trace.output, gradient_out=trace.gradient_out))


def step_opening(held: HeldStep) -> Tensors:
    """An inner step: the states around it, and what came into its passes."""
    plain = {f"before.{name}": value for name, value in (held.before or {}).items()}
    plain |= {f"after.{name}": value for name, value in held.after.items()}
    groups: dict[str, Group] = {}
    for identifier, trace in held.traces.items():
        found = _groups(input=trace.input, gradient_in=trace.gradient_in)
        groups |= {f"mb.{identifier}.{name}": group for name, group in found.items()}
    return opening_tensors(held.about, groups, plain)


def signed_messages(about: About, request: bytes, answer: bytes) -> Tensors:
    """The signed messages of a microbatch as they came."""
    plain = {
        name: np.frombuffer(data, np.uint8) for name, data in (("request", request), ("answer", answer)) if data
    }
    return opening_tensors(about, {}, plain)


class OpeningSender:
    """Sends openings, one at a time.

    Args:
        session: with the coordinator. path: of the file that holds an opening while it is sent.
        event: writes to the worker's event log.
    """

    def __init__(self, session: Session, path: Path, event: EventSink) -> None:
        self._session = session
        self._path = path
        self._event = event
        self._one = asyncio.Lock()

    async def send(self, head: pb.OpeningHead, tensors: Mapping[str, np.ndarray], wanted: Callable[[], bool]) -> bool:
        """Write an opening and send it until it is taken or refused; whether it was taken.

        Args:
            head: without size and digest. wanted: looked at before each try after the first.

        Raises:
            HocketError: DISK_FULL, STATE_UNREADABLE.
        """
        async with self._one:
            try:
                await asyncio.to_thread(write_tensors, self._path, tensors)
                head.size_bytes, head.sha256 = await asyncio.to_thread(file_digest, self._path)
                return await self._send(head, wanted)
            finally:
                self._path.unlink(missing_ok=True)

    async def _send(self, head: pb.OpeningHead, wanted: Callable[[], bool]) -> bool:
        kind = pb.OpeningKind.Name(head.kind).lower()
        what = f"opening {kind} of step {head.step}, round {head.round}"
        try:
            receipt = await self._session.persist(what, lambda: self._session.submit_opening(head, self._path), while_=wanted)
        except HocketError as error:
            logger.warning("%s cannot be sent: %s", what, error.line())
            return False
        taken = receipt is not None and receipt.accepted
        reason = receipt.reason if receipt is not None else "nobody waits for it any more"
        self._event(
            "opening", kind=kind, round=head.round, stage=head.stage, step=head.step, microbatch=head.microbatch_id,
            bytes=head.size_bytes, taken=taken, reason=reason,
        )  # fmt: skip
        if not taken:
            logger.warning("%s was not taken: %s", what, reason)
        return taken
