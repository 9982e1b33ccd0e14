"""The calls in flight to the replicas of one stage: each trusted for as long as fits its callee.

All calls to one callee are judged together: when it has fallen silent for one of them, no other that has heard nothing since
waits for its own bound to pass; and when the roster drops a callee, whatever is still under way to it is broken off.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass

from common.errors import Code, HocketError
from node.arrivals import Arrivals
from node.wire import TRAIN_STEP_PROTOCOL
from swarm.carrier import Carrier, Message, PeerAddress

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Call:
    """One call: when it began and when it last had a sign of life, on the loop's clock, and the longest gap so far."""

    scope: asyncio.Timeout
    began_at: float
    heard_at: float = -math.inf
    longest_gap_s: float = 0.0
    broken_off: str = ""

    def heard(self, gap_s: float) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self.longest_gap_s = max(self.longest_gap_s, gap_s)


class Callees:
    """Makes the calls of one sender.

    Args:
        carrier: ours. arrivals: what is known of the callees; it learns from every answer.
    """

    def __init__(self, carrier: Carrier, arrivals: Arrivals) -> None:
        self._carrier = carrier
        self._arrivals = arrivals
        self._calls: dict[str, set[_Call]] = {}

    async def call(self, address: PeerAddress, message: Message, *, ceiling_s: float, deadline_s: float) -> Message:
        """One call of train_step.

        Args:
            ceiling_s: the longest silence that the run allows. deadline_s: for the whole call.

        Raises:
            HocketError: as `Carrier.call`; PEER_SILENT also when the call was broken off.
        """
        peer, loop = address.peer_id, asyncio.get_running_loop()
        bound = self._arrivals.bound(peer, ceiling_s)
        calls = self._calls.setdefault(peer, set())
        call: _Call | None = None
        try:
            async with asyncio.timeout(None) as scope:
                call = _Call(scope, loop.time())
                calls.add(call)
                answer = await self._carrier.call(
                    address,
                    TRAIN_STEP_PROTOCOL,
                    message,
                    silence_s=bound.silence_s,
                    deadline_s=deadline_s,
                    heard=call.heard,
                )
        except TimeoutError as error:
            raise HocketError(Code.PEER_SILENT, f"{peer}: {call.broken_off if call is not None else ''}") from error
        except HocketError as error:
            if call is not None:
                calls.discard(call)
                silent_since = max(call.began_at, call.heard_at)
                if error.code is Code.PEER_SILENT and loop.time() - silent_since >= bound.silence_s:
                    logger.info("%s was trusted for %s", peer, bound.reason)
                    self._break_off(peer, "another call has found it silent", silent_since)
            raise
        finally:
            if call is not None:
                calls.discard(call)
        self._arrivals.came(peer, call.longest_gap_s)
        return answer

    def drop(self, peer: str, reason: str) -> None:
        """Break off every call to a callee that need not be waited for any more; the calls fail as if it had gone silent."""
        self._break_off(peer, reason, math.inf)

    def _break_off(self, peer: str, reason: str, silent_since: float) -> None:
        """Break off the calls that have had no sign of life after `silent_since`."""
        now = asyncio.get_running_loop().time()
        for call in self._calls.get(peer, ()):
            if not call.broken_off and call.heard_at <= silent_since:
                call.broken_off = reason
                call.scope.reschedule(now)
