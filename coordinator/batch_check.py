"""Compares what stage 0 has committed to have read with the dataset, commit by commit, in the order in which they came.

It takes no opening and no torch: the digest of a batch is in the signed commit, and the coordinator has the dataset. Where it has
not, or cannot read it, nothing is compared, which is said and accuses nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable

from common.errors import HocketError
from coordinator.audit_draw import fraction, seed_of
from coordinator.audit_secret import AuditSecrets
from coordinator.core import Core
from coordinator.leased_batches import Comparison, LeasedBatches, open_batches
from protocol.generated import hocket_pb2 as pb
from swarm.blocks import BlockStore

logger = logging.getLogger(__name__)

WORDS_KEPT = 10_000     # of commits, for the audits that are about them

Differs = Callable[[str, pb.StepCommit, Comparison], None]


class BatchCheck:
    """What is to be compared, and what came of it. All methods belong to the event loop; the comparing is done in a thread.

    Args:
        core, secrets: the run. store: that has the dataset.
        differs: told (member, its commit, what differs).
    """

    def __init__(self, core: Core, secrets: AuditSecrets, store: BlockStore, differs: Differs) -> None:
        self._core = core
        self._secrets = secrets
        self._store = store
        self._differs = differs
        self._batches: LeasedBatches | None = None
        self._pending: deque[tuple[str, pb.StepCommit]] = deque()
        self._words: dict[bytes, str] = {}
        self._working = asyncio.Lock()
        self._news = asyncio.Event()
        self._last_fault = ""
        self.counts: Counter[str] = Counter()   # of microbatches: compared, not_compared, differ; of this process

    def add(self, member: str, commit: pb.StepCommit) -> None:
        """A commit of stage 0 has been taken in: compare it, if it is drawn. One that was added before is not compared again."""
        if commit.stage != 0 or commit.link in self._words or not any(record.frames for record in commit.records):
            return
        seed = seed_of(self._secrets.secret(commit.round), commit.link)
        drawn = fraction(seed, "batch") < self._core.config.audit.batches
        self._say(commit.link, "its batch has not been compared yet" if drawn else "its batch was not drawn to be compared")
        if drawn:
            self._pending.append((member, commit))
            self._news.set()

    def word(self, link: bytes) -> str:
        """What is known of the batch of a commit of stage 0, for people."""
        return self._words.get(link, "its batch was not compared")

    async def run(self) -> None:
        """Compare what comes, until cancelled."""
        while True:
            self._news.clear()
            await self.step()
            await self._news.wait()

    async def step(self) -> None:
        """Compare all that is waiting; on return everything that was there before the call has been compared."""
        async with self._working:
            while self._pending:
                member, commit = self._pending[0]
                found = await asyncio.to_thread(self._compare, commit)
                self._pending.popleft()
                self._take(member, commit, found)

    def _compare(self, commit: pb.StepCommit) -> Comparison:
        state = self._core.state
        try:
            if self._batches is None:
                seed = self._core.config.run.seed
                self._batches = open_batches(self._store, state.dataset["cid"], state.model_config, seed)
        except HocketError as error:
            return Comparison(None, f"the dataset cannot be read: {error.line()}")
        return self._batches.compare_commit(commit)

    def _take(self, member: str, commit: pb.StepCommit, found: Comparison) -> None:
        counted = sum(1 for record in commit.records if record.frames)
        if found.ok:
            self.counts["compared"] += counted
            self._say(commit.link, "its batch is that of its lease")
        elif found.ok is None:
            self.counts["not_compared"] += counted
            self._say(commit.link, f"its batch was not compared: {found.reason}")
            if found.reason != self._last_fault:
                self._last_fault = found.reason
                logger.warning("batches of stage 0 are not compared with the dataset: %s", found.reason)
        else:
            self.counts["differ"] += 1
            self._say(commit.link, found.reason)
            self._differs(member, commit, found)

    def _say(self, link: bytes, word: str) -> None:
        self._words[link] = word
        while len(self._words) > WORDS_KEPT:
            del self._words[next(iter(self._words))]
