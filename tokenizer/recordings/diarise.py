"""A long recording to pieces of one speaker each, cut at pauses, in memory that depends on neither its length nor its speakers.

One pass over the sound: speech is found, and the windows of the mel spectrogram that are worth it are embedded. Then the
embeddings, in a temporary file, are read block by block: to find the speakers, to say which of them each window is, and to
give each piece its embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.audio_stream import AudioStream
from tokenizer.recordings.cluster import ClusterSettings
from tokenizer.recordings.cue_zones import Zone, settle_cues, snap, widen
from tokenizer.recordings.embed import EmbeddingRun, SpeakerEncoder, tf32
from tokenizer.recordings.features import HOP, SAMPLE_RATE, MelStream
from tokenizer.recordings.pieces import PieceSettings, cut_pieces
from tokenizer.recordings.spool import Spool
from tokenizer.recordings.subtitles import Cue
from tokenizer.recordings.tracks import Tracks
from tokenizer.recordings.vad import SileroVad, SpeechDecider, SpeechSettings
from tokenizer.recordings.voices import find_voices
from tokenizer.recordings.windows import WINDOW, WindowSettings, choose, clean_frames

Progress = Callable[[float], None]
AFTER_END_S = 1.0  # a cue may begin that long after the end of the sound


@dataclass(frozen=True)
class CutSettings:
    """How a recording is cut; every part has its own settings.

    Args:
        stretch_pause_s: silence after which someone else may speak.
        block_s: of the recording in memory at a time.
    """

    pieces: PieceSettings = field(default_factory=PieceSettings)
    speech: SpeechSettings = field(default_factory=SpeechSettings)
    windows: WindowSettings = field(default_factory=WindowSettings)
    speakers: ClusterSettings = field(default_factory=ClusterSettings)
    stretch_pause_s: float = 0.25
    block_s: float = 10.0


@dataclass(frozen=True)
class Piece:
    """One piece of a recording, in seconds of it.

    Args:
        speaker: the name that cues give, or speaker-1, speaker-2, ... in the order in which they are heard in this recording.
        text: of its cues; None where no cue covers it.
        embedding: float32 [256] of unit length, of its speaker in this piece, or in the whole recording where the piece is
            too short. None where the speaker has nowhere enough speech.
    """

    start_s: float
    stop_s: float
    speaker: str
    text: str | None
    embedding: NDArray[np.float32] | None


@dataclass(frozen=True)
class RecordingTools:
    """The models that cutting a recording needs, loaded once for many recordings."""

    vad: SileroVad
    encoder: SpeakerEncoder

    @staticmethod
    def load(device: str = "cpu", batch_size: int | None = None) -> RecordingTools:
        """Load both models.

        Args:
            device: of the speaker encoder; the voice activity detection is small and stays on the CPU.
            batch_size: windows embedded together; None: by free memory.

        Raises:
            HocketError: EXTRA_MISSING where a package is not installed.
        """
        return RecordingTools(SileroVad(), SpeakerEncoder(device, batch_size))


def cut_recording(
    audio: AudioSource,
    tools: RecordingTools,
    *,
    cues: Sequence[Cue] | None = None,
    settings: CutSettings = CutSettings(),
    progress: Progress | None = None,
) -> list[Piece]:
    """Cut a recording into pieces, in order of their starts.

    With cues that name speakers, the cues say who speaks when; with cues without names, speakers are found by clustering and each
    cue gets one; without cues so does each stretch of speech, and pieces have no text. Speech that no cue covers is given
    as pieces without text.

    Args:
        progress: called with the seconds of the recording that have been heard.

    Raises:
        HocketError: what reading the recording raises; OPTION_INVALID for a number of speakers where cues name them;
            TEXT_AUDIO_MISMATCH where cues go on after the recording's end.
    """
    if settings.speakers.speakers is not None and any(cue.speaker is not None for cue in cues or ()):
        raise HocketError(Code.OPTION_INVALID, "the number of speakers is given, but the subtitles name them")
    settled = settle_cues(cues or (), SAMPLE_RATE)
    zones = widen(settled, SAMPLE_RATE)
    with Spool() as spool:
        heard = _Listener(tools, zones, settings, spool)
        with tf32(), AudioStream(audio, SAMPLE_RATE, block_s=settings.block_s) as stream:
            if stream.seconds is not None:
                _check_end(settled, stream.seconds)
            for block in stream.blocks():
                heard.push(block)
                if progress is not None:
                    progress(heard.samples / SAMPLE_RATE)
            heard.finish()
        _check_end(settled, heard.samples / SAMPLE_RATE)
        voices = find_voices(heard.tracks, spool, settings.speakers)
        units, voice_of = voices.units(snap(zones, heard.tracks.spans, SAMPLE_RATE), heard.tracks.spans, heard.samples)
        cuts = cut_pieces(units, heard.samples, SAMPLE_RATE, settings.pieces)
        vectors = voices.embeddings(cuts, voice_of, spool)
    return [
        Piece(cut.start / SAMPLE_RATE, cut.stop / SAMPLE_RATE, cut.speaker, cut.text, vector if vector.any() else None)
        for cut, vector in zip(cuts, vectors, strict=True)
    ]


def _check_end(zones: Sequence[Zone], seconds: float) -> None:
    """Refuse subtitles that go on after the recording: they are another one's."""
    latest = max((zone.start for zone in zones), default=0) / SAMPLE_RATE
    if latest > seconds + AFTER_END_S:
        detail = f"a cue begins at {latest:.1f} s, but the recording ends at {seconds:.1f} s"
        raise HocketError(Code.TEXT_AUDIO_MISMATCH, detail)


class _Listener:
    """The pass over the sound: speech to `tracks`, embeddings of the windows that are worth it to the spool."""

    def __init__(self, tools: RecordingTools, zones: Sequence[Zone], settings: CutSettings, spool: Spool) -> None:
        self._settings = settings
        self._spool = spool
        self._vad = tools.vad.stream()
        self._decider = SpeechDecider(settings.speech)
        self._mel_stream = MelStream()
        self._run: EmbeddingRun = tools.encoder.start(spool.embedded)
        self._mel = np.zeros((0, 40), np.float32)
        self._power = np.zeros(0, np.float32)
        self._first = 0  # the frame with which both begin
        self._window = 0  # the next window
        self.samples = 0
        self.tracks = Tracks(zones, round(settings.stretch_pause_s * SAMPLE_RATE))

    def push(self, block: NDArray[np.float32]) -> None:
        self.samples += len(block)
        self.tracks.hear(self._decider.push(self._vad.push(block).tolist()))
        self._keep(*self._mel_stream.push(block))
        self._embed(min(self._first + len(self._mel), self._decider.decided // HOP - self._settings.windows.margin))

    def finish(self) -> None:
        self.tracks.hear(self._decider.push(self._vad.finish().tolist()))
        self.tracks.hear(self._decider.finish())
        self._keep(*self._mel_stream.finish())
        frames = self._first + len(self._mel)
        self._keep(np.zeros((WINDOW, 40), np.float32), np.zeros(WINDOW, np.float32))  # every frame is in whole windows
        step = self._settings.windows.step
        self._embed((frames - 1) // step * step + WINDOW if frames else 0)
        self._run.finish()

    def _keep(self, mel: NDArray[np.float32], power: NDArray[np.float32]) -> None:
        self._mel, self._power = np.concatenate([self._mel, mel]), np.concatenate([self._power, power])

    def _embed(self, ready: int) -> None:
        """Embed what is worth it in the windows that end before the frame `ready`."""
        step, margin = self._settings.windows.step, self._settings.windows.margin
        last = (ready - WINDOW) // step + 1
        if last <= self._window:
            return
        before = step if self._window else 0
        first = self._window * step - before
        frames = (last - 1) * step + WINDOW - first
        full, keys = self.tracks.columns(first, frames + margin, self._decider.open_from, self._decider.decided)
        clean = clean_frames(full, margin)
        here = slice(first - self._first, first - self._first + frames)
        block = choose(self._mel[here], self._power[here], full[:frames], clean[:frames], self._settings.windows, before)
        if len(block):
            masks = block.masks(slice(None))  # [P, 160]
            used = masks.sum(axis=1)
            middle = (masks * np.arange(WINDOW)).sum(axis=1) // used
            self._spool.expect(keys[block.speakers], (first + block.starts + middle) * HOP, used)
            self._run.push(block)
        self._window = last
        kept = last * step - step - self._first
        self._mel, self._power = self._mel[kept:].copy(), self._power[kept:].copy()
        self._first += kept
