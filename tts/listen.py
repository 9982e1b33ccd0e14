"""Listens to a version of a run: `python -m tts.listen ORDER.json`.

Measures it on the held-out set, decides which alarms to give, and speaks the preview sentences. Writes into a folder

    watch.json          written last: {"round", "version", "cid", "seconds", "watch", "alarms", "previews", "errors"}
    NN-LANGUAGE[-VOICE].wav, .png     each preview's sound, and its spectrogram with the phones that were spoken

The coordinator runs it as a child, at a low priority and on one core, so that neither its own process needs torch nor the
training waits; it ends when its standard input closes. What cannot be done (a codec that is not there, a symbol that the dataset
has not) is told in `errors`, and the rest is done.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error
from common.log import set_up_logging
from protocol.manifest import DatasetManifest, VersionManifest, read_manifest
from swarm.blocks import BlockStore
from swarm.stored_stages import read_stage_file
from tokenizer.dataset_codec import load_dataset_codec
from tokenizer.shards import read_shard
from tokenizer.utterance import Utterance
from tts.alarms import ALL, Watch, alarms
from tts.config import ModelConfig
from tts.durations import stretch
from tts.export import Card, Export
from tts.pictures import Phone, draw_spectrogram
from tts.preview_texts import preview_texts
from tts.stage_files import expected_tensors
from tts.stages import Stage, build_stage
from tts.synthesis import Line, predict_durations
from tts.voice import Voice, write_wav
from tts.watch import measure, spread_over_speakers

NICENESS = 10
RESULT = "watch.json"
MOST_READ = 2000        # held-out utterances that are looked at
MOST_MEASURED = 64      # and of these the ones that are measured: enough for figures within some hundredths
LEAST_MEASURED = 8      # whatever the model's size
MEASURING_FLOPS = 2e13  # a quarter of an hour on one core; a model of 3 B parameters is measured on the fewest utterances
SHUFFLES = 3
MOST_GROUPS = 32        # largest ones that are told, for a set of very many speakers
MOST_LANGUAGES = 4
MOST_VOICES = 2         # of a language
HELDOUT_TEXTS = 3       # spoken in a language without sentences of its own


@dataclass(frozen=True)
class Order:
    """What to listen to.

    Args:
        store: folder of the block store that has the version and the dataset. cid: of the version's manifest.
        signer: public key, in hex, that must have signed it. out: folder for what is made.
        codec: name or folder; it must be the dataset's.
        sentences: spoken in the dataset's first language; empty: the built-in ones, in each language.
        seed: of shufflings and draws.
    """

    store: str
    cid: str
    signer: str
    out: str
    codec: str
    sentences: list[str] = field(default_factory=list)
    seed: int = 0


@dataclass
class Listened:
    """What came of it, as `watch.json` has it; `watch` is null where it could not be measured."""

    round: int
    version: int
    cid: str
    seconds: float = 0.0
    watch: dict[str, Any] | None = None
    alarms: list[dict[str, str]] = field(default_factory=list)
    previews: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def listen(order: Order) -> Listened:
    """Carry out an order.

    Raises:
        HocketError: when the version cannot be read from the store, or nothing can be written.
    """
    started = time.monotonic()
    store, out = BlockStore(Path(order.store)), Path(order.out)
    manifest = read_manifest(VersionManifest, store.read_file(order.cid), signer=bytes.fromhex(order.signer))
    dataset = read_manifest(DatasetManifest, store.read_file(manifest.dataset_cid), signer=None)
    found = Listened(round=manifest.round, version=manifest.version, cid=order.cid)
    with scratch_folder(out) as scratch:
        stage = whole_model(manifest, store, scratch)
        rows = heldout_rows(dataset, store, sum(parameter.numel() for parameter in stage.parameters()))
        with told(found.errors):
            watch = measure([stage], rows, languages=dataset.languages, seed=order.seed, shuffles=SHUFFLES)
            found.watch = largest_groups(watch).to_json()
            found.alarms = [asdict(alarm) for alarm in alarms(watch, round=manifest.round)]
        with told(found.errors):
            load_dataset_codec(order.codec, dataset.codec, scratch / "codec")
            card = Card(
                config=stage.config, phonemes=tuple(dataset.phonemes), languages=tuple(dataset.languages),
                speakers=tuple(dataset.speakers), voices={name: tuple(voice) for name, voice in dataset.voices.items()},
            )  # fmt: skip
            export = Export(stage, card, scratch / "codec")
            for preview in wanted_previews(order.sentences, dataset, rows):
                with told(found.errors, f"{preview.language}, {preview.text[:60]!r}: "):
                    found.previews.append(speak_preview(export, preview, out, order.seed))
    found.seconds = time.monotonic() - started
    return found


@contextmanager
def told(errors: list[str], where: str = "") -> Iterator[None]:
    """What goes wrong inside is told as a line in `errors`, and the rest goes on."""
    try:
        yield
    except HocketError as error:
        errors.append(where + error.line())


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """A folder inside `out` that is gone afterwards."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".scratch-") as name:
            yield Path(name)
    except OSError as error:
        raise disk_error(error, out) from error


def whole_model(manifest: VersionManifest, store: BlockStore, scratch: Path) -> Stage:
    """All stages of a version as one, each file checked against the model; beside the model one file is in memory at a time."""
    config = ModelConfig.from_dict(manifest.model)
    stage = build_stage(config, 0, 1)
    parameters = dict(stage.named_parameters())
    for part in manifest.stages:
        expected = expected_tensors(config, part.stage, len(manifest.stages))
        weights, _ = read_stage_file(store, part, expected, scratch / f"stage-{part.stage}.safetensors")
        with torch.no_grad():
            for name, array in weights.items():
                parameters.pop(name).copy_(torch.from_numpy(array))
    if parameters:
        raise HocketError(Code.CHECKPOINT_INVALID, f"{next(iter(parameters))} is in no stage of version {manifest.version}")
    return stage


def heldout_rows(dataset: DatasetManifest, store: BlockStore, parameters: int) -> list[Utterance]:
    """Held-out utterances to measure, spread over languages and speakers.

    Args:
        parameters: of the model: the larger it is, the fewer utterances can be measured in about the same time.
    """
    rows: list[Utterance] = []
    for shard in dataset.heldout:
        if len(rows) < MOST_READ:
            rows += read_shard(store.read_file(shard.cid, max_bytes=shard.size_bytes), n_symbols=len(dataset.phonemes))
    if not rows:
        return []
    frames = sum(row.n_frames for row in rows) / len(rows)
    affordable = int(MEASURING_FLOPS / (2 * parameters * frames * (1 + SHUFFLES)))
    count = max(LEAST_MEASURED, min(MOST_MEASURED, affordable))
    return [rows[index] for index in spread_over_speakers(rows, count, seed=0)]


def largest_groups(watch: Watch) -> Watch:
    """A watch of at most `MOST_GROUPS` groups: the one of all, and the largest others, in their order."""
    ordered = sorted(watch.groups, key=lambda group: (group.kind != ALL, -group.utterances))[:MOST_GROUPS]
    return Watch(tuple(group for group in watch.groups if group in ordered))


@dataclass(frozen=True)
class Preview:
    """One text to speak, with its number in the listening; `voice` None: the model has one voice."""

    number: int
    language: str
    voice: str | None
    text: str

    @property
    def name(self) -> str:
        """Of its files; names that strangers wrote become letters, digits and hyphens."""
        parts = [f"{self.number:02d}", self.language, *([self.voice] if self.voice else [])]
        return "-".join(re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-")[:40] for part in parts)


def wanted_previews(sentences: Sequence[str], dataset: DatasetManifest, rows: Sequence[Utterance]) -> list[Preview]:
    """What is spoken: in each language its sentences, by the voices that most held-out utterances of it are by."""
    previews: list[Preview] = []
    for language in dataset.languages[: 1 if sentences else MOST_LANGUAGES]:
        own = [row for row in rows if row.language == language]
        texts = list(sentences) or preview_texts(language) or [row.text for row in own if row.text][:HELDOUT_TEXTS]
        speakers = Counter(row.speaker for row in own if row.speaker in dataset.voices)
        voices: list[str | None] = [name for name, _ in speakers.most_common(MOST_VOICES)]
        for voice in voices or [None]:
            previews += [Preview(len(previews) + number, language, voice, text) for number, text in enumerate(texts)]
    return previews


def speak_preview(export: Export, preview: Preview, out: Path, seed: int) -> dict[str, Any]:
    """Speak one text into a WAV and draw it; what `hocket say` speaks with the same seed."""
    voice = Voice(export, preview.language, preview.voice)
    lines = [with_durations(export.stage, line) for line in voice.lines(preview.text)]
    codes = voice.codes(lines, voice.sampling(seed=seed))
    samples = np.concatenate([voice.codec.decode(one) for one in codes])
    write_wav(out / f"{preview.name}.wav", samples, voice.codec.sample_rate)
    phones = list(spoken_phones(lines, export.card.phonemes, voice.codec.frame_rate))
    draw_spectrogram(out / f"{preview.name}.png", samples, voice.codec.sample_rate, preview.text, phones)
    return {
        "file": f"{preview.name}.wav", "picture": f"{preview.name}.png", "language": preview.language,
        "voice": preview.voice, "text": preview.text, "phonemes": " ".join(phone.symbol for phone in phones),
        "seconds": len(samples) / voice.codec.sample_rate,
    }  # fmt: skip


def with_durations(front: Stage, line: Line) -> Line:
    """A line with the durations that the model itself gives it, so that they are known to the picture too."""
    natural = predict_durations(front, line.phonemes, line.word_starts, speaker=line.speaker, language=line.language)
    return replace(line, durations=stretch(natural, 1.0))


def spoken_phones(lines: Sequence[Line], symbols: Sequence[str], frame_rate: float) -> Iterator[Phone]:
    """Every phone of lines that are spoken one after the other, with its end."""
    frames = 0
    for line in lines:
        assert line.durations is not None
        for number, duration in zip(line.phonemes, line.durations, strict=True):
            frames += int(duration)
            yield Phone(symbols[int(number)], frames / frame_rate)


def end_with_the_parent() -> None:
    """End this process when its standard input closes: a coordinator that was killed starts a listener of its own again."""
    while os.read(0, 1024):
        continue
    os._exit(1)


def main() -> None:
    """Run as a child process, until its standard input closes at the longest; one error line where nothing could be done."""
    set_up_logging("WARNING")
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    os.nice(NICENESS)
    torch.set_num_threads(1)
    try:
        order = Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        found = listen(order)
        text = json.dumps(asdict(found), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        atomic_write(Path(order.out) / RESULT, text.encode() + b"\n")
    except HocketError as error:
        sys.stderr.write(error.line() + "\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
