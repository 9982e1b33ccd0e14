"""Everything that reads bytes of strangers, called directly: the quickest way to many malformed inputs.

A reader may refuse with a numbered error or take what is harmless. Anything else is a fault, and so is taking a second over it:
of the processor's time, as readers wait for nobody, and what keeps them from the processor is not theirs. One that does wait is
noticed after `HUNG_S` by the clock.
Where the bytes are bound by a signature or a hash, each change must be refused; where a signer could be hostile himself, the
changed content is signed anew, so that what lies behind the signature is reached.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.errors import HocketError
from simulations.hostile.bulk import bulk_readers
from simulations.hostile.documents import document_readers
from simulations.hostile.inputs import Reader
from simulations.hostile.tally import SLOW_S, Tally, own_bytes

GROWTH_LIMIT_BYTES = 96 << 20
HUNG_S = 20.0


def fuzz_readers(messages: int, seed: int, folder: Path) -> Tally:
    """Give each reader its share of malformed inputs.

    Args:
        messages: in all. folder: for a file that is written again and again.

    Raises:
        TimeoutError: a reader has not come back; which one is the last fault noted.
    """
    tally = Tally("readers", limit_bytes=GROWTH_LIMIT_BYTES)
    began, before = time.monotonic(), own_bytes()
    everyone = [*document_readers(), *bulk_readers(folder)]
    # In a thread of its own: whatever it raises is looked at and not caught, and one that hangs is noticed.
    spent_s = 0.0

    def read(reader: Reader, data: bytes) -> None:
        nonlocal spent_s
        start = time.thread_time()
        try:
            reader.read(data)
        finally:
            spent_s = time.thread_time() - start

    with ThreadPoolExecutor(max_workers=1) as pool:
        for number in range(messages):
            reader = everyone[number % len(everyone)]
            kind, data = reader.make(random.Random(f"{seed}/{number}"))
            what = f"{reader.name}, message {number} of seed {seed} ({kind})"
            error = pool.submit(read, reader, data).exception(HUNG_S)
            if spent_s > SLOW_S:
                tally.fault(f"{what}: took {spent_s:.1f} s")
            if error is None:
                outcome = "harmless"
                if reader.strict:
                    tally.fault(f"{what}: taken")
            elif isinstance(error, HocketError):
                outcome = f"H{int(error.code)}"
            else:
                outcome = "fault"
                tally.fault(f"{what}: {error!r}")
            tally.sent(reader.name, outcome)
    tally.seconds = time.monotonic() - began
    tally.grew(before)
    return tally
