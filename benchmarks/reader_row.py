"""One reader over all its utterances, in a process of its own.

    python -m benchmarks.reader_row '{"action": "read", "reader": "hocket", "folder": F, "count": 9000, "epochs": 2,
                                      "cache_bytes": N, "core": 0}'

The action is "write" (the utterances, in this reader's form), "read" or "resume". Reading prints one JSON line: the seconds of
each epoch, what the memory grew by, and a checksum of all samples of an epoch, which does not depend on their order. Resuming
prints the seconds from nothing to the first sample after half of an epoch.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reader_data import ARRAYS, FACTS, write_hocket, write_mosaicml, write_webdataset
from simulations.usage import peak_bytes

SEED = 3
Sample = dict[str, Any]
Open = Callable[[], Callable[[int, int], Iterator[Sample]]]
"""Opens the dataset; what it gives reads an epoch from a position on."""


def open_hocket(folder: Path, count: int, cache_bytes: int) -> Callable[[int, int], Iterator[Sample]]:
    """Our own reader, shuffled over the whole dataset; each shard is checked against its CID."""
    from tokenizer.local_dataset import LocalDataset

    dataset = LocalDataset(folder, cache_bytes=cache_bytes)

    def read(epoch: int, start: int) -> Iterator[Sample]:
        for row in dataset.samples(SEED, epoch, start, count):
            yield row.__dict__

    return read


def open_mosaicml(folder: Path, count: int, cache_bytes: int) -> Callable[[int, int], Iterator[Sample]]:
    """StreamingDataset on local shards, with the shuffle that is its default.

    It waits for samples to be ready in steps of 7 ms, so how far it looks ahead bounds its speed: here, further than it can
    read in one of them.
    """
    from benchmarks.competitors import import_streaming

    streaming = import_streaming()
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=SEED, batch_size=32, predownload=8192)

    def read(epoch: int, start: int) -> Iterator[Sample]:
        if start:
            dataset.load_state_dict({**dataset.state_dict(start, True), "epoch": epoch, "sample_in_epoch": start})
        return iter(dataset)

    return read


def open_webdataset(folder: Path, count: int, cache_bytes: int) -> Callable[[int, int], Iterator[Sample]]:
    """Tars in shuffled order through a shuffle buffer of 1000. It cannot resume: what comes before is read and dropped."""
    import msgpack
    import webdataset

    shards = sorted(str(path) for path in folder.glob("*.tar"))

    def read(epoch: int, start: int) -> Iterator[Sample]:
        dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=SEED + epoch).shuffle(1000, seed=SEED + epoch)
        for number, sample in enumerate(dataset):
            if number < start:
                continue
            row = msgpack.unpackb(sample["mp"])
            for name in ARRAYS:
                kind, shape, raw = row[name]
                row[name] = np.frombuffer(raw, kind).reshape(shape)
            yield row

    return read


READERS = {"hocket": open_hocket, "mosaicml_streaming": open_mosaicml, "webdataset": open_webdataset}
WRITERS = {"hocket": write_hocket, "mosaicml_streaming": write_mosaicml, "webdataset": write_webdataset}


def checksum(sample: Sample) -> int:
    """Of everything in a sample."""
    value = zlib.crc32("|".join(str(sample[name]) for name in FACTS if name != "align_score").encode())
    value = zlib.crc32(np.float32(sample["align_score"]).tobytes(), value)
    for name in ARRAYS:
        value = zlib.crc32(sample[name].tobytes(), value)
    return value


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Read the epochs; the checksum is taken in an epoch of its own, which is not timed."""
    folder, count = Path(order["folder"]), int(order["count"])
    before = peak_bytes()
    started = time.perf_counter()
    read = READERS[order["reader"]](folder, count, int(order["cache_bytes"]))
    opened = time.perf_counter() - started
    seconds, frames = [], 0
    for epoch in range(int(order["epochs"])):
        started = time.perf_counter()
        seen = 0
        for sample in read(epoch, 0):
            frames += sample["codes"].shape[1]
            seen += 1
        seconds.append(time.perf_counter() - started)
        if seen != count:
            raise SystemExit(f"{order['reader']} gave {seen} samples of {count}")
    grown = peak_bytes() - before
    total = sum(checksum(sample) for sample in read(int(order["epochs"]), 0)) % (1 << 32)
    return {"seconds": seconds, "open_s": opened, "frames": frames, "grown_bytes": grown, "checksum": total}


def resume(order: dict[str, Any]) -> dict[str, Any]:
    """From nothing to the first sample after half of an epoch."""
    folder, count = Path(order["folder"]), int(order["count"])
    started = time.perf_counter()
    next(iter(READERS[order["reader"]](folder, count, int(order["cache_bytes"]))(0, count // 2)))
    return {"resume_s": time.perf_counter() - started}


def import_all(reader: str) -> None:
    """Import what a reader needs, so that no import is timed."""
    if reader == "hocket":
        import tokenizer.local_dataset  # noqa: F401
    elif reader == "mosaicml_streaming":
        from benchmarks.competitors import import_streaming

        import_streaming()
    else:
        import msgpack  # noqa: F401
        import webdataset  # noqa: F401


def main() -> None:
    """Write, read, or resume, as the order says."""
    order = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {order["core"]})  # before any library starts threads
    import_all(order["reader"])
    if order["action"] == "write":
        WRITERS[order["reader"]](Path(order["folder"]), int(order["count"]))
        print("{}", flush=True)
    else:
        print(json.dumps(run(order) if order["action"] == "read" else resume(order)), flush=True)


if __name__ == "__main__":
    main()
