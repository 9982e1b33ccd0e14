"""Measure a voice: let it speak held-out sentences, and listen to them beside the recordings and the codec's resynthesis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenizer.audio import read_audio
from tts.evaluation import quality, recogniser
from tts.evaluation import similarity as voices
from tts.evaluation.figures import CODEC, KINDS, RECORDINGS, SYNTHESIS, Figures, Heard, by_speaker, figures_of
from tts.evaluation.heldout import Item
from tts.evaluation.quality import Quality
from tts.evaluation.recogniser import Recogniser
from tts.evaluation.similarity import SpeakerEmbedder
from tts.evaluation.words import character_errors, normalise, word_errors
from tts.export import Export
from tts.synthesis import Line, Sampling, predict_durations, speak_many
from tts.voice import Voice
from tts.watch import Alarm, Watch, alarms, measure

LINES_AT_A_TIME = 16
DNSMOS_CLIPS = 20
MAX_RECORDING_S = 120.0
NOT_READ = "this model does not read its text"

Samples = NDArray[np.float32]
Progress = Callable[[str, int, int], None]
Keep = Callable[[str, Item, Samples, int, Heard], None]
"""Is given (kind, item, samples [N], sample rate, what was heard) of every clip."""


@dataclass(frozen=True)
class Listeners:
    """Who listens; what is None is not measured.

    Args:
        dnsmos_clips: how many clips of each kind are given to `quality`, the same sentences of each.
    """

    recogniser: Recogniser | None = None
    quality: Quality | None = None
    embedder: SpeakerEmbedder | None = None
    dnsmos_clips: int = DNSMOS_CLIPS


@dataclass(frozen=True)
class Evaluation:
    """What came of it.

    Args:
        heard: by kind, in the order of `items`. figures: by kind; None for a kind without a clip.
        watch: what the model does with the held-out rows; None where the dataset is not at hand.
        notes: what could not be measured or was left out, in words.
    """

    items: tuple[Item, ...]
    heard: dict[str, tuple[Heard, ...]]
    figures: dict[str, Figures | None]
    how: Sampling
    watch: Watch | None
    notes: tuple[str, ...] = field(default=())

    @property
    def reads_its_text(self) -> bool | None:
        """Whether another sentence's text costs the model more; None where it was not measured."""
        return None if self.watch is None else self.watch.whole.reads_its_text

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        return () if self.watch is None else alarms(self.watch)

    def to_json(self) -> dict[str, Any]:
        """What `--json` writes."""
        speakers = by_speaker(self.heard, self.how.seed)
        return {
            **{kind: _json(figures) for kind, figures in self.figures.items()},
            "reads_its_text": self.reads_its_text,
            "watch": None if self.watch is None else self.watch.to_json(),
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "speakers": {name: {kind: _json(figures) for kind, figures in kinds.items()} for name, kinds in speakers.items()},
            "sampling": dict(self.how.__dict__),
            "measured_with": {"wer": recogniser.NAME, "dnsmos": quality.NAME, "similarity": voices.NAME},
            "notes": list(self.notes),
            "sentences": [self._sentence(item) for item in self.items],
        }

    def _sentence(self, item: Item) -> dict[str, Any]:
        clips = {kind: clip for kind, clips in self.heard.items() for clip in clips if clip.id == item.id}
        return {
            "id": item.id,
            "speaker": item.speaker,
            "text": item.text,
            "understood": {kind: clip.understood for kind, clip in clips.items()},
            "errors": {kind: clip.words.errors for kind, clip in clips.items() if clip.words is not None},
        }


def _json(figures: Figures | None) -> dict[str, Any] | None:
    return None if figures is None else figures.to_json()


def evaluate(
    export: Export,
    items: Sequence[Item],
    how: Sampling,
    listeners: Listeners,
    *,
    kinds: Sequence[str] = KINDS,
    progress: Progress = lambda part, done, total: None,
    keep: Keep | None = None,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Measure a voice on held-out sentences.

    Args:
        items: at least one. how: how they are spoken.
        kinds: which of "synthesis", "codec" and "recordings" are measured.
        keep: is given each clip when it has been heard, none is held in memory after it.

    Raises:
        HocketError: OPTION_INVALID for what the model cannot honour; INPUT_INVALID, NO_PHONEMES, AUDIO_UNREADABLE,
            CODEC_UNREADABLE.
    """
    sources = _Sources(export, items, how)
    place = {item.id: number for number, item in enumerate(items)}
    heard: dict[str, tuple[Heard, ...]] = {}
    for kind in kinds:
        clips: list[Heard] = []
        source = {SYNTHESIS: sources.speak, CODEC: sources.resynthesise, RECORDINGS: sources.recordings}[kind]
        for item, samples, clip in source():
            clip = _listen(listeners, item, samples, sources.codec.sample_rate, clip, place[item.id] < listeners.dnsmos_clips)
            if keep is not None:
                keep(kind, item, samples, sources.codec.sample_rate, clip)
            clips.append(clip)
            progress(kind, len(clips), len(items))
        heard[kind] = tuple(sorted(clips, key=lambda clip: place[clip.id]))
    said = list(notes)
    for kind in kinds:
        if len(heard[kind]) < len(items):
            there = f"{len(heard[kind])} of {len(items)} sentences"
            said.append(f"{kind}: {there}; the recordings of the others are not at hand (--corpus tells where they are)")
    if listeners.recogniser is not None and any(not _is_english(item) for item in items):
        said.append("word error rates are of the English sentences only: the recogniser knows no other language")
    rows = [item.row for item in items if item.row is not None]
    watch = measure([export.stage], rows, languages=export.card.languages, seed=how.seed) if len(rows) > 1 else None
    if watch is None:
        said.append("whether the model reads its text is not known without two held-out rows of a dataset (--data)")
    recorded = heard.get(RECORDINGS, ())
    figures = {kind: figures_of(heard.get(kind, ()), recorded, how.seed) for kind in KINDS}
    return Evaluation(tuple(items), heard, figures, how, watch, tuple(said))


def _is_english(item: Item) -> bool:
    return item.language.partition("-")[0] == "en"


def _listen(listeners: Listeners, item: Item, samples: Samples, sample_rate: int, clip: Heard, is_scored: bool) -> Heard:
    if listeners.recogniser is not None and _is_english(item):
        understood = listeners.recogniser.transcribe(samples, sample_rate)
        wanted, found = normalise(item.text), normalise(understood)
        clip = replace(clip, understood=understood, words=word_errors(wanted, found), characters=character_errors(wanted, found))
    if listeners.quality is not None and is_scored:
        clip = replace(clip, dnsmos=listeners.quality.score(samples, sample_rate))
    if listeners.embedder is not None:
        clip = replace(clip, embedding=listeners.embedder.embed(samples, sample_rate))
    return clip


class _Sources:
    """The clips of each kind, one at a time: (item, samples float32 [N] at the codec's rate, its lengths and times)."""

    def __init__(self, export: Export, items: Sequence[Item], how: Sampling) -> None:
        self._export, self._items, self._how = export, items, how
        self._voices = {language: Voice(export, language) for language in dict.fromkeys(item.language for item in items)}
        first = next(iter(self._voices.values()))
        first.check_sampling(how)
        self.codec = first.codec

    def _lines(self, item: Item, first: int) -> list[Line]:
        """A sentence's lines as `hocket say` makes them, in its speaker's voice; `first` names the first one's draws."""
        lines = self._voices[item.language].lines(item.text)
        embedding = self._export.card.voices.get(item.speaker)
        if embedding is not None:
            lines = [replace(line, speaker=np.array(embedding, np.float32)) for line in lines]
        return [replace(line, number=first + place) for place, line in enumerate(lines)]

    def speak(self) -> Iterator[tuple[Item, Samples, Heard]]:
        numbered: list[tuple[Item, list[Line]]] = []
        for item in self._items:
            numbered.append((item, self._lines(item, sum(len(lines) for _, lines in numbered))))
        # Those of like length are spoken together; which ones go together changes nothing.
        numbered.sort(key=lambda one: sum(len(line.phonemes) for line in one[1]))
        group: list[tuple[Item, list[Line]]] = []
        for one in numbered:
            if group and sum(len(lines) for _, lines in group) + len(one[1]) > LINES_AT_A_TIME:
                yield from self._speak(group)
                group = []
            group.append(one)
        yield from self._speak(group)

    def _speak(self, group: Sequence[tuple[Item, list[Line]]]) -> Iterator[tuple[Item, Samples, Heard]]:
        started = time.perf_counter()
        codes = iter(speak_many([self._export.stage], [line for _, lines in group for line in lines], self._how))
        took = time.perf_counter() - started
        spoken = [(item, lines, [next(codes) for _ in lines]) for item, lines in group]
        frames = sum(part.shape[1] for _, _, parts in spoken for part in parts)
        for item, lines, parts in spoken:
            started = time.perf_counter()
            samples = np.concatenate([self.codec.decode(part) for part in parts])
            own = sum(part.shape[1] for part in parts)
            seconds = time.perf_counter() - started + took * own / frames
            natural = sum(
                float(
                    predict_durations(
                        self._export.stage, line.phonemes, line.word_starts, speaker=line.speaker, language=line.language
                    ).sum()
                )
                for line in lines
            )
            made = len(samples) / self.codec.hop
            clip = self._clip(item, samples, seconds)
            yield (
                item,
                samples,
                replace(
                    clip,
                    rate_error=abs(made / natural / self._how.rate - 1),
                    tempo=None if item.row is None else natural / item.row.n_frames,
                ),
            )

    def resynthesise(self) -> Iterator[tuple[Item, Samples, Heard]]:
        """The recordings as the codec gives them back, with as many codebooks as the model has."""
        for item in self._items:
            if item.row is not None:
                codes = item.row.codes
            elif item.recording is not None:
                codes = self.codec.encode(self._read(item))
            else:
                continue
            started = time.perf_counter()
            samples = self.codec.decode(codes[: self._export.card.config.n_codebooks])
            yield item, samples, self._clip(item, samples, time.perf_counter() - started)

    def recordings(self) -> Iterator[tuple[Item, Samples, Heard]]:
        for item in self._items:
            if item.recording is not None:
                samples = self._read(item)
                yield item, samples, self._clip(item, samples, None)

    def _read(self, item: Item) -> Samples:
        clip = item.recording
        assert clip is not None
        rate = self.codec.sample_rate
        return read_audio(clip.audio, rate, start_s=clip.start_s, stop_s=clip.stop_s, max_s=MAX_RECORDING_S)

    def _clip(self, item: Item, samples: Samples, took_s: float | None) -> Heard:
        return Heard(item.id, item.speaker, seconds=len(samples) / self.codec.sample_rate, took_s=took_s)
