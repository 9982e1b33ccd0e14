"""A recording read block by block: memory depends on the block, not on the length.

libsndfile reads what it knows; the rest goes to FFmpeg, where PyAV is installed (the extra `ffmpeg`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tokenizer.audio_source import AudioSource
from tokenizer.resampling import Resampler

MIN_RATE, MAX_RATE = 4000, 200_000  # Hz; a rate far outside would need a huge table of taps
MAX_CHANNELS = 64
FULL_SCALE = 0.999
# Formats in which libsndfile finds a sample exactly; others are read from the start.
SEEKABLE = ("WAV", "WAVEX", "FLAC", "AIFF", "W64", "RF64", "CAF", "AU")
FFMPEG_SUFFIXES = (".m4a", ".aac", ".mp4", ".webm", ".mka", ".mkv", ".wma", ".3gp", ".mov", ".amr")


@dataclass(frozen=True)
class AudioFacts:
    """What a recording is like, before it is resampled.

    Args:
        rate: Hz. channels: how many. seconds: that were read.
        peak: largest magnitude. rms: root of the mean square. clipped: share of the samples at full scale.
    """

    rate: int
    channels: int
    seconds: float
    peak: float
    rms: float
    clipped: float


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
            self._check_not_cut_off()
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
        )

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Samples float32 [N] at `sample_rate`, one block after the other; joined they do not depend on the block.

        Raises:
            HocketError: AUDIO_UNREADABLE, also for samples that are not finite and for a recording without samples.
        """
        resampler = Resampler(self.rate, self.sample_rate)
        for block in self._frames():
            made = resampler.push(np.ascontiguousarray(block.mean(axis=1)))
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
        wanted = self._reader.frames
        if self._stop is None and wanted is not None and self._reader.exact and at < wanted:
            raise _unreadable(f"{self.source.title} ends after {at} of {wanted} samples: it is cut off")

    def _note(self, part: NDArray[np.float32]) -> None:
        magnitude = np.abs(part)
        peak = float(magnitude.max())
        if not np.isfinite(peak) or not np.isfinite(part).all():
            raise _unreadable(f"{self.source.title} has samples that are not finite")
        self._peak = max(self._peak, peak)
        self._full += int((magnitude >= FULL_SCALE).sum())
        self._square += float(np.square(part, dtype=np.float64).sum())
        self._count += len(part)

    def _check_not_cut_off(self) -> None:
        """A WAV that says to hold more than it does: libsndfile would take what there is without a word."""
        head = self._file.read(12)
        if not head:
            raise _unreadable(f"{self.source.title} is empty")
        if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
            while len(chunk := self._file.read(8)) == 8:
                name, size = struct.unpack("<4sI", chunk)
                if name == b"data":
                    here = self._file.tell()
                    left = self._file.seek(0, 2) - here
                    if size not in (0, 0xFFFFFFFF) and size > left:
                        raise _unreadable(f"{self.source.title} says to hold {size} bytes of sound and has {left}: it is cut off")
                    break
                self._file.seek(size + size % 2, 1)
        self._file.seek(0)


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
        self._sound = soundfile.SoundFile(str(source.path) if source.is_whole_file else file)
        self.rate, self.channels = int(self._sound.samplerate), int(self._sound.channels)
        self.exact = self._sound.format in SEEKABLE
        self.frames: int | None = int(self._sound.frames) if self._sound.frames < 2**62 else None

    def skip_to(self, start: int) -> int:
        """Go to a sample if the format finds it exactly; where the reader is then."""
        if start == 0 or not self.exact:
            return 0
        if self.frames is not None and start > self.frames:
            raise _unreadable(f"{self._source.title} has {self.frames} samples, and sample {start} is asked for")
        return int(self._sound.seek(start))

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

    exact = False

    def __init__(self, file: BinaryIO, source: AudioSource, why: str) -> None:
        import av

        self._source = source
        self._errors = (av.FFmpegError, ValueError)
        try:
            self._container: Any = av.open(file, mode="r", metadata_errors="ignore")
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
