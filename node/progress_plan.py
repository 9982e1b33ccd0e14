"""When a replica's inner progress is saved, and what of a saved one may be taken up. Pure.

Saving costs the training a copy in memory, and the disk its life: a volunteer's drive must not be worn out by a run. So the
pause between two saves grows with what the last one cost and with its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from node.context import RoundContext
from node.progress_file import Progress
from protocol.commitments import MOMENTS_ROUNDS

LEAST_PAUSE_S = 1.0
STALL_SHARE = 0.01  # of the time may go into copies
WRITE_BYTES_PER_S = 2 << 20  # on average: 170 GiB in a day of steady work
FIRST_RETRY_S = 30.0
LONGEST_RETRY_S = 1800.0


@dataclass(frozen=True)
class Decision:
    """Whether to save at this boundary."""

    save: bool
    reason: str


class SavePlan:
    """When to save next. `now` is in seconds, of a clock that never goes back.

    Args:
        least_pause_s: between two saves. stall_share: of the time, for the copies. write_bytes_per_s: on average.
    """

    def __init__(
        self,
        *,
        least_pause_s: float = LEAST_PAUSE_S,
        stall_share: float = STALL_SHARE,
        write_bytes_per_s: float = WRITE_BYTES_PER_S,
    ) -> None:
        self._least_pause_s = least_pause_s
        self._stall_share = stall_share
        self._write_bytes_per_s = write_bytes_per_s
        self._next_at: float | None = None
        self._failures = 0
        self._why = ""

    @property
    def failures(self) -> int:
        """Failed saves since the last one that reached the disk."""
        return self._failures

    def decide(self, now: float, *, writing: bool) -> Decision:
        """Decide at the boundary of an inner step.

        Args:
            writing: the save before is not on disk yet.
        """
        if writing:
            return Decision(False, "the save before is still being written")
        if self._next_at is not None and now < self._next_at:
            return Decision(False, f"in {self._next_at - now:.1f} s: {self._why}")
        return Decision(True, "the first one" if self._next_at is None else self._why)

    def saved(self, now: float, size_bytes: int, stall_s: float) -> None:
        """A save was taken into memory at `now`, which stopped the training for `stall_s`."""
        pauses = {
            f"at least {self._least_pause_s:.1f} s lie between two saves": self._least_pause_s,
            f"copying took {stall_s:.3f} s and may take {self._stall_share:.0%} of the time": stall_s / self._stall_share,
            f"{size_bytes / 2**20:.1f} MiB were written, {self._write_bytes_per_s / 2**20:.0f} a second may be on average":
                size_bytes / self._write_bytes_per_s,
        }  # fmt: skip
        self._why = max(pauses, key=lambda why: pauses[why])
        self._next_at = now + pauses[self._why]

    def written(self) -> None:
        """The last save is on disk."""
        self._failures = 0

    def failed(self, now: float) -> float:
        """A save failed; returns the seconds until the next try, twice as many after each failure in a row."""
        pause_s = min(FIRST_RETRY_S * 2 ** min(self._failures, 16), LONGEST_RETRY_S)
        self._failures += 1
        self._why = f"{self._failures} saves in a row have failed"
        self._next_at = now + pause_s
        return pause_s


class Use(Enum):
    """What of a saved progress may be taken up."""

    ALL = "all"  # weights, moments and everything that was counted
    MOMENTS = "moments"  # the optimizer's state alone: the weights belong to another base
    NOTHING = "nothing"


def usable(progress: Progress, context: RoundContext, weights_sha256: str) -> tuple[Use, str]:
    """Decide what of a saved progress a replica may begin a round with.

    Args:
        context: of the round that it begins. weights_sha256: of the base's stage file that it has loaded, in hex.
    """
    if (progress.run_id, progress.member_id) != (context.run_id, context.member_id):
        return Use.NOTHING, f"it is of member {progress.member_id[:12]} in run {progress.run_id}"
    if (progress.stage, progress.stages) != (context.stage, context.stages):
        return Use.NOTHING, f"it is of stage {progress.stage} of {progress.stages}"
    if progress.steps_taken == 0:
        return Use.NOTHING, "no step had been taken"
    other = ""
    if (progress.round, progress.base_cid, progress.weights_sha256) != (context.round, context.base_cid, weights_sha256):
        other = f"it was trained in round {progress.round}, on another base"
    elif progress.generation > context.generation:
        other = f"it is of generation {progress.generation}, later than our {context.generation}"
    if not other:
        return Use.ALL, f"it is of this round: {progress.inner_steps} inner steps"
    if not progress.chain_link or context.round - progress.round > MOMENTS_ROUNDS:
        return Use.NOTHING, f"{other}, and the coordinator knows its moments no more"
    return Use.MOMENTS, other
