"""What a stranger does with a run: fetch its version by CID over libp2p, check it, measure it, let it speak.

    python -m simulations.finish ORDER.json

A process of its own that knows a ticket and a CID. It asks the coordinator's block peer and the workers that the DHT names;
nothing is read from their folders. ORDER.json holds `Order`'s fields. Prints one JSON line, see `Outcome`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.errors import Code, HocketError
from common.files import atomic_write
from common.log import set_up_logging
from protocol.identity import member_id
from protocol.ticket import Ticket
from simulations.version_export import export_version
from simulations.version_fetch import Fetched, Origin, fetch_version
from swarm.blocks import BlockStore


@dataclass(frozen=True)
class Order:
    """What to fetch and to make.

    Args:
        ticket: the run's. cid: of the version's manifest.
        out: folder for `checkpoint/`, `sample.wav`, `spectrogram.png` and the fetched blocks.
        codec: name or folder of the codec that the dataset was made with; it must fit the manifest.
        text: to speak; empty: a held-out sentence.
        rates: at which the sentence is spoken; 1.0 goes to `sample.wav`, another to `sample-RATE.wav`.
        shuffles: how many shufflings of the held-out text the loss is measured with.
        losses: of the rounds, to be drawn: {"training": [...], "heldout": [...]}.
    """

    ticket: str
    cid: str
    out: str
    codec: str = "hocket-16k"
    text: str = ""
    seed: int = 0
    rates: tuple[float, ...] = (1.0,)
    shuffles: int = 3
    threads: int = 2
    losses: dict[str, list[float | None]] = field(default_factory=dict)


@dataclass
class Outcome:
    """What came of it; times in seconds, losses in nats per code."""

    cid: str
    version: int
    round: int
    signer: str
    fetch_s: float
    fetched_bytes: int
    providers: list[str]
    loss_right_text: float
    loss_shuffled_text: list[float]
    reads_its_text: bool
    heldout_utterances: int
    text: str
    speech_s: float
    speaking_s: float
    rates: dict[str, float]


def export_checkpoint(order: Order, fetched: Fetched, store: BlockStore, state: Path) -> Path:
    """Merge the stage files into an export folder `checkpoint/`."""
    folder = Path(order.out) / "checkpoint"
    return export_version(order.cid, fetched.manifest, fetched.dataset, store, state, folder, codec=order.codec)


def export_by_cid(ticket: str, cid: str, folder: Path, *, codec: str = "hocket-16k") -> Path:
    """The export folder of a version that is known by its CID: fetched, verified and kept in `folder`, or found there.

    Raises:
        HocketError: as `fetch_version`; CODEC_UNREADABLE when the dataset was made with another codec.
    """
    from tts.export import is_export

    order = Order(ticket=ticket, cid=cid, out=str(folder), codec=codec)
    if not is_export(folder / "checkpoint"):
        state = folder / "fetched"
        state.mkdir(parents=True, exist_ok=True)
        store = BlockStore(state / "blocks")
        fetched = asyncio.run(fetch_version(Origin(ticket), cid, store, state))
        export_checkpoint(order, fetched, store, state)
        shutil.rmtree(state)
    return folder / "checkpoint"


async def finish(order: Order) -> Outcome:
    """Carry out an order."""
    import torch

    from tokenizer.shards import read_shard
    from tts.evaluate_loss import text_check
    from tts.voice import load_voice, write_speech

    torch.set_num_threads(order.threads)
    out = Path(order.out)
    state = out / "visitor"
    state.mkdir(parents=True, exist_ok=True)
    store = BlockStore(state / "blocks")
    fetched = await fetch_version(Origin(order.ticket), order.cid, store, state, heldout=True)
    voice = load_voice(export_checkpoint(order, fetched, store, state))
    heldout = [row for shard in fetched.dataset.heldout for row in read_shard(store.read_file(shard.cid))]
    if len(heldout) < 2:
        raise HocketError(
            Code.CORPUS_TOO_SMALL, f"{len(heldout)} held-out utterances, at least 2 are needed to shuffle their texts"
        )
    check = text_check(
        [voice.stage], heldout, seed=order.seed, shuffles=order.shuffles, languages=fetched.dataset.languages
    )
    # A sentence of middle length: neither a single word nor the longest of all.
    text = order.text or sorted(heldout, key=lambda row: (int(row.n_frames), row.id))[len(heldout) // 2].text
    spoken = write_speech(voice, text, out / "sample.wav", voice.sampling(seed=order.seed))
    rates = {"1.0": spoken.seconds}
    for rate in (rate for rate in order.rates if rate != 1.0):
        how = voice.sampling(seed=order.seed, rate=rate)
        rates[str(rate)] = write_speech(voice, text, out / f"sample-{rate}.wav", how).seconds
    from simulations.plots import draw_losses
    from tts.pictures import draw_spectrogram

    draw_spectrogram(out / "spectrogram.png", spoken.samples, spoken.sample_rate, text)
    draw_losses(out / "loss.png", order.losses)
    return Outcome(
        cid=order.cid,
        version=fetched.manifest.version,
        round=fetched.manifest.round,
        signer=member_id(Ticket.decode(order.ticket).coordinator_key),
        fetch_s=fetched.seconds,
        fetched_bytes=fetched.size_bytes,
        providers=fetched.providers,
        loss_right_text=check.right,
        loss_shuffled_text=list(check.shuffled),
        reads_its_text=check.reads_its_text,
        heldout_utterances=len(heldout),
        text=text,
        speech_s=spoken.seconds,
        speaking_s=spoken.took_s,
        rates=rates,
    )


def main() -> None:
    """Run as a child process: one JSON line on success, one error line otherwise."""
    set_up_logging("WARNING")
    try:
        order = Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        print(json.dumps(asdict(asyncio.run(finish(order)))), flush=True)
    except HocketError as error:
        sys.stderr.write(error.line() + "\n")
        sys.exit(error.exit_code)


def write_order(path: Path, order: Order) -> None:
    """Write an order for `python -m simulations.finish`."""
    atomic_write(path, json.dumps(asdict(order)).encode())


if __name__ == "__main__":
    main()
