"""A recording read block by block: memory depends on the block, not on the length.

libsndfile reads what it knows; the rest goes to FFmpeg, where PyAV is installed (the extra `ffmpeg`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.audio_length import missing_bytes
from tokenizer.audio_source import AudioSource
from tokenizer.resampling import Resampler

MIN_RATE, MAX_RATE = 4000, 200_000  # Hz; a rate far outside would need a huge table of taps
MAX_CHANNELS = 64
FULL_SCALE = 0.999
# Formats in which libsndfile finds a sample exactly (bit for bit what reading from the start gives) and whose headers say how
# many there are. Others are read from the start; an MP3 gives another last bit where it is entered in the middle.
SEEKABLE = ("WAV", "WAVEX", "FLAC", "OGG", "AIFF", "W64", "RF64", "CAF", "AU")
SLACK_S = 0.1  # by which the times of a table may go beyond the end of a recording
# The only containers FFmpeg may find in a file. It knows others that make it open more files, or wait on a network port.
FFMPEG_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,ac3,eac3,amr,amrnb,amrwb,asf,avi,flv,mpeg,mpegts,mp3,mp2,ogg,wav,flac,aiff,au,caf,"
    "ape,wv,tta,dsf,w64,voc"
)
FFMPEG_SUFFIXES = (".m4a", ".aac", ".mp4", ".webm", ".mka", ".mkv", ".wma", ".3gp", ".mov", ".amr")


@dataclass(frozen=True)
class AudioFacts:
    """What a recording is like, before it is resampled.

    Args:
        rate: Hz. channels: how many. seconds: that were read.
        peak: largest magnitude. rms: root of the mean square. clipped: share of the samples at full scale.
        swing: half of the way from the lowest to the highest sample after channels are averaged: the peak of what is heard,
            which is 0 for a constant, and for channels that cancel out.
    """

    rate: int
    channels: int
    seconds: float
    peak: float
    rms: float
    clipped: float
    swing: float


def _unreadable(detail: str, remedy: str | None = None) -> HocketError:
    return HocketError(Code.AUDIO_UNREADABLE, detail, remedy=remedy) if remedy else HocketError(Code.AUDIO_UNREADABLE, detail)


class AudioStream:
    """Blocks of a recording, channels averaged, at a given rate; a context manager, read once.

    Args:
        source: where it lies.
        sample_rate: Hz of the blocks.
        block_s: of the recording at a time, in seconds.
        start_s, stop_s: the part that is read, in seconds, exact to the sample; it is resampled as if it were the whole.

    Raises:
        HocketError: AUDIO_UNREADABLE when it is opened, or when reading comes to what cannot be read.
    """

    def __init__(
        self,
        source: AudioSource,
        sample_rate: int,
        *,
        block_s: float = 10.0,
        start_s: float = 0.0,
        stop_s: float | None = None,
    ) -> None:
        self.source, self.sample_rate = source, sample_rate
        self._file = source.open()
        try:
            self._check_whole()
            self._reader: _SoundFileReader | _AvReader = _open(self._file, source)
        except BaseException:
            self._file.close()
            raise
        self.rate, self.channels = self._reader.rate, self._reader.channels
        if not MIN_RATE <= self.rate <= MAX_RATE or not 1 <= self.channels <= MAX_CHANNELS:
            self.close()
            raise _unreadable(f"{source.title} says it has {self.rate} samples a second in {self.channels} channels")
        self._block = max(1, round(block_s * self.rate))
        self._start = max(0, round(start_s * self.rate))
        self._stop = None if stop_s is None else round(stop_s * self.rate)
        self._count, self._square, self._peak, self._full = 0, 0.0, 0.0, 0
        self._low, self._high = np.inf, -np.inf

    def __enter__(self) -> AudioStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._file.close()

    @property
    def seconds(self) -> float | None:
        """Of the whole recording, where its header says so."""
        frames = self._reader.frames
        return None if frames is None else frames / self.rate

    @property
    def facts(self) -> AudioFacts:
        """Of what has been read so far."""
        values = max(1, self._count * self.channels)
        return AudioFacts(
            rate=self.rate,
            channels=self.channels,
            seconds=self._count / self.rate,
            peak=self._peak,
            rms=float(np.sqrt(self._square / values)),
            clipped=self._full / values,
            swing=(self._high - self._low) / 2 if self._count else 0.0,
        )

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Samples float32 [N] at `sample_rate`, one block after the other; joined they do not depend on the block.

        Raises:
            HocketError: AUDIO_UNREADABLE, also for samples that are not finite and for a recording without samples.
        """
        resampler = Resampler(self.rate, self.sample_rate)
        for block in self._frames():
            mixed = np.ascontiguousarray(block.mean(axis=1))
            self._low, self._high = min(self._low, float(mixed.min())), max(self._high, float(mixed.max()))
            made = resampler.push(mixed)
            if len(made):
                yield made
        last = resampler.finish()
        if len(last):
            yield last
        if self._count == 0:
            raise _unreadable(f"{self.source.title} has no samples")

    def _frames(self) -> Iterator[NDArray[np.float32]]:
        """Frames [n, channels] of the wanted part."""
        at = self._reader.skip_to(self._start)
        while self._stop is None or at < self._stop:
            block = self._reader.read(self._block)
            if len(block) == 0:
                break
            first = max(0, self._start - at)
            last = len(block) if self._stop is None else max(0, min(len(block), self._stop - at))
            at += len(block)
            part = block[first:last]
            if len(part):
                self._note(part)
                yield part
        wanted = self._reader.frames if self._reader.exact else None
        if self._stop is not None:
            if at < self._stop - SLACK_S * self.rate or at <= self._start:
                raise self._too_short(at, f"to {self._stop / self.rate:.2f}")
        elif wanted is not None and at < wanted:
            detail = f"{self.source.title} gives {at} of its {wanted} samples: it is cut off or damaged"
            raise _unreadable(detail, "copy it again, or leave it out")
        elif self._start and at <= self._start:
            raise self._too_short(at, f"from {self._start / self.rate:.2f}")

    def _too_short(self, samples: int, wanted: str) -> HocketError:
        detail = f"{self.source.title} lasts {samples / self.rate:.2f} s, and a part {wanted} s is asked for"
        return _unreadable(detail, "correct the times, or copy the recording again")

    def _note(self, part: NDArray[np.float32]) -> None:
        magnitude = np.abs(part)
        peak = float(magnitude.max())
        if not np.isfinite(peak) or not np.isfinite(part).all():
            raise _unreadable(f"{self.source.title} has samples that are not finite")
        self._peak = max(self._peak, peak)
        self._full += int((magnitude >= FULL_SCALE).sum())
        self._square += float(np.square(part, dtype=np.float64).sum())
        self._count += len(part)

    def _check_whole(self) -> None:
        """Decoders take what there is of a recording without a word."""
        if not self._file.read(1):
            raise _unreadable(f"{self.source.title} is empty: it has 0 bytes", "copy it again, or leave it out")
        missing = missing_bytes(self._file)
        if missing:
            lack = f"{missing} bytes are missing" if missing > 1 else "its end is missing"
            raise _unreadable(f"{self.source.title} is cut off: {lack}", "copy it again, or leave it out")


def _open(file: BinaryIO, source: AudioSource) -> _SoundFileReader | _AvReader:
    try:
        return _SoundFileReader(file, source)
    except (OSError, RuntimeError) as error:  # soundfile's own errors are RuntimeErrors
        why = str(error).rpartition(": ")[2]
    file.seek(0)
    try:
        import av  # noqa: F401
    except ImportError:
        if source.path.suffix.lower() in FFMPEG_SUFFIXES or source.name.lower().endswith(FFMPEG_SUFFIXES):
            detail = f"{source.title} needs FFmpeg, and PyAV is not installed"
            raise HocketError(Code.EXTRA_MISSING, detail, remedy="pip install 'hocket[ffmpeg]'") from None
        raise _unreadable(f"{source.title}: {why}") from None
    return _AvReader(file, source, why)


class _SoundFileReader:
    """Frames by libsndfile."""

    def __init__(self, file: BinaryIO, source: AudioSource) -> None:
        self._source = source
        if source.is_whole_file:
            # By number: faster than calls to Python, and whatever the name. Not `file`'s own, whose place Python remembers.
            self._sound = soundfile.SoundFile(os.open(source.path, os.O_RDONLY), closefd=True)
        else:
            self._sound = soundfile.SoundFile(file)
        self.rate, self.channels = int(self._sound.samplerate), int(self._sound.channels)
        self.exact = self._sound.format in SEEKABLE
        self.frames: int | None = int(self._sound.frames) if self._sound.frames < 2**62 else None

    def skip_to(self, start: int) -> int:
        """Go to a sample if the format finds it exactly; where the reader is then."""
        if start == 0 or not self.exact:
            return 0
        return int(self._sound.seek(start if self.frames is None else min(start, self.frames)))

    def read(self, count: int) -> NDArray[np.float32]:
        try:
            block: NDArray[np.float32] = self._sound.read(count, dtype="float32", always_2d=True)
        except (OSError, RuntimeError) as error:
            raise _unreadable(f"{self._source.title}: {error}") from error
        return block

    def close(self) -> None:
        self._sound.close()


class _AvReader:
    """Frames by FFmpeg."""

    exact = False  # its length is that of the longest track, to a millisecond

    def __init__(self, file: BinaryIO, source: AudioSource, why: str) -> None:
        import av

        self._source = source
        self._errors = (av.FFmpegError, ValueError)
        try:
            options = {"format_whitelist": FFMPEG_FORMATS, "protocol_whitelist": "none"}
            self._container: Any = av.open(file, mode="r", metadata_errors="ignore", container_options=options)
            if not self._container.streams.audio:
                raise _unreadable(f"{source.title} holds no sound")
            stream = self._container.streams.audio[0]
            self.rate, self.channels = int(stream.rate or 0), int(stream.channels or 0)
            duration = self._container.duration
            self.frames: int | None = None if duration is None else round(duration / 1_000_000 * self.rate)
            self._convert = av.AudioResampler(format="flt", layout=stream.layout, rate=stream.rate)
        except self._errors as error:
            raise _unreadable(f"{source.title}: {why}") from error
        self._decoded = self._decode(stream)
        self._left = np.empty((0, self.channels), np.float32)

    def _decode(self, stream: Any) -> Iterator[NDArray[np.float32]]:
        for frame in self._container.decode(stream):
            for part in self._convert.resample(frame):
                yield np.asarray(part.to_ndarray(), np.float32).reshape(-1, self.channels)
        for part in self._convert.resample(None):
            yield np.asarray(part.to_ndarray(), np.float32).reshape(-1, self.channels)

    def skip_to(self, start: int) -> int:
        return 0

    def read(self, count: int) -> NDArray[np.float32]:
        parts, size = [self._left], len(self._left)
        try:
            while size < count:
                part = next(self._decoded, None)
                if part is None:
                    break
                parts.append(part)
                size += len(part)
        except self._errors as error:
            raise _unreadable(f"{self._source.title}: {error}") from error
        joined = np.concatenate(parts)
        self._left = joined[count:]
        return np.ascontiguousarray(joined[:count], dtype=np.float32)

    def close(self) -> None:
        self._container.close()
