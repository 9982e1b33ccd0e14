"""A sign of life in a state directory, for health checks from outside: cheap to write, cheap to read.

The process writes how far its machine's clock since boot has come; whoever asks compares that with the same clock now. A log's
age would not do, as a healthy process may have nothing to log for long, nor the time of day, which may jump. Writer and reader
must run on one machine and see each other's process ids, as two processes of one container do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import Code, HocketError
from common.files import atomic_write

logger = logging.getLogger(__name__)

FILE = "heartbeat.json"
EVERY_S = 10.0
FRESH_S = 60.0
_MAX_BYTES = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Beat:
    """One sign of life.

    Args:
        boot: names the start of the machine.
        since_boot_s: the clock that counts from it, the same for all processes of the machine.
        pid: of the process that lives.
    """

    boot: str
    since_boot_s: float
    pid: int


def beat_now() -> Beat:
    """The sign that this process lives now."""
    return Beat(_BOOT_ID.read_text(encoding="ascii").strip(), time.monotonic(), os.getpid())


async def keep_beating(state_dir: Path, *, every_s: float = EVERY_S) -> None:
    """Write a sign of life again and again until cancelled.

    It is the event loop's own turn that writes it, so it stops when the loop does. A disk that takes no file is logged and tried
    again: the work itself may still go on, and the check reports the old sign meanwhile.
    """
    while True:
        text = json.dumps(asdict(beat_now())).encode()
        try:
            await asyncio.to_thread(atomic_write, state_dir / FILE, text)
        except HocketError as error:
            logger.warning("the sign of life could not be written, tried again in %.0f s: %s", every_s, error.line())
        await asyncio.sleep(every_s)


def read_beat(state_dir: Path) -> Beat | None:
    """The last sign of life; None if there is none, or none that can be read."""
    try:
        with (state_dir / FILE).open("rb") as stream:
            fields = json.loads(stream.read(_MAX_BYTES))
        return Beat(str(fields["boot"]), float(fields["since_boot_s"]), int(fields["pid"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def judge(last: Beat | None, now: Beat, exists: Callable[[int], bool], fresh_s: float) -> tuple[bool, str]:
    """Whether the process that gave the last sign of life is alive, and why.

    Args:
        last: the sign found. now: one of whoever asks. exists: whether there is a process of that id.
        fresh_s: the age that a sign may have.
    """
    if last is None:
        return False, "no sign of life yet"
    if last.boot != now.boot or last.since_boot_s > now.since_boot_s:
        return False, "the last sign of life is from before the machine started"
    age_s = now.since_boot_s - last.since_boot_s
    if not age_s <= fresh_s:
        return False, f"the last sign of life is {age_s:.0f} s old, more than {fresh_s:.0f} s"
    if not exists(last.pid):
        return False, f"process {last.pid} has ended"
    return True, f"process {last.pid} gave a sign of life {age_s:.0f} s ago"


def _exists(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").exists()


def check(state_dir: Path, *, fresh_s: float = FRESH_S) -> str:
    """Why the process of a state directory is taken to be alive.

    Raises:
        HocketError: NOT_ALIVE with the reason.
    """
    alive, reason = judge(read_beat(state_dir), beat_now(), _exists, fresh_s)
    if not alive:
        raise HocketError(Code.NOT_ALIVE, f"{state_dir} ({reason})")
    return reason
