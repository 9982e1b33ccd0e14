"""Encoding in jobs: fixed slices of the clips, each with its result in a file that is whole or absent.

A job depends on its clips and the codec alone, so it does not matter which process does it, or when. A result holds the codes of
its clips one after the other, what each recording is like, and why those that have no codes are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import Code, HocketError
from common.faults import NO_FAULTS, Faults
from protocol.tensor_files import json_of, json_tensor, read_tensors, write_tensors
from tokenizer.audio import check_sound, read_audio_and_facts
from tokenizer.audio_source import AudioSource
from tokenizer.audio_stream import AudioFacts
from tokenizer.byte_cache import ByteCache
from tokenizer.codec import Codec, latents_of
from tokenizer.items import Item

CLIPS_PER_JOB = 16
MAX_CLIP_FRAMES = 65535  # a duration is 16 bits wide
CACHE_BYTES = 32 * 2**20
READERS = 2
BATCH_S = 240.0  # of sound that is encoded together at most, unless one clip is longer: 23 MB of samples at 24 kHz


@dataclass(frozen=True)
class ClipTask:
    """A clip to encode: where its sound lies, and how many frames its text needs at least."""

    id: str
    audio: AudioSource
    start_s: float
    stop_s: float | None
    n_phonemes: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "audio": self.audio.to_json()}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> ClipTask:
        return ClipTask(**{**fields, "audio": AudioSource.from_json(fields["audio"])})


@dataclass(frozen=True)
class Encoded:
    """What became of a clip: frames and facts, or a refusal (code and reason)."""

    frames: int
    facts: AudioFacts | None
    code: Code | None = None
    reason: str = ""


_Read = tuple[NDArray[np.float32] | None, Encoded]


class VoiceOf(Protocol):
    """The embedding float32 [E] of a clip's speaker from its samples float32 [N]; None where there is too little speech."""

    def __call__(self, samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float32] | None: ...


def slices(items: Sequence[Item]) -> list[list[ClipTask]]:
    """The jobs: so many clips each, in order."""
    tasks = [ClipTask(item.id, item.audio, item.start_s, item.stop_s, len(item.phonemes)) for item in items]
    return [tasks[start : start + CLIPS_PER_JOB] for start in range(0, len(tasks), CLIPS_PER_JOB)]


def encode_job(
    clips: Sequence[ClipTask],
    codec: Codec,
    path: Path,
    *,
    voice_of: VoiceOf | None = None,
    faults: Faults = NO_FAULTS,
    number: int = 0,
) -> None:
    """Encode the clips of a job and write its result to `path`.

    Raises:
        HocketError: DISK_FULL, STATE_UNREADABLE, and what the codec raises. What is wrong with a clip is in the result.
    """
    codes: list[NDArray[np.uint16]] = []
    voices: list[NDArray[np.float32] | None] = []
    results: list[Encoded] = []
    for batch in _batches(_read_ahead(clips, codec), round(BATCH_S * codec.sample_rate)):
        usable = [samples for samples, _ in batch if samples is not None]
        encoded = iter(codec.encode_batch(usable) if usable else [])
        for samples, result in batch:
            if samples is None:
                results.append(result)
                continue
            found = next(encoded)  # [K, T]
            codes.append(np.ascontiguousarray(found.T))
            results.append(Encoded(found.shape[1], result.facts))
            if voice_of is not None:
                voices.append(voice_of(samples, codec.sample_rate))
    faults.reach("tokenize.job.before", job=number)
    _write(path, codec.n_codebooks, results, codes, voices if voice_of is not None else None)
    faults.reach("tokenize.job.after", job=number)


def _read_ahead(clips: Sequence[ClipTask], codec: Codec) -> Iterator[_Read]:
    """The clips' samples in order; the next ones are read while the last are used."""
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        coming: deque[Future[_Read]] = deque()
        for clip in clips:
            coming.append(pool.submit(_read, clip, codec))
            if len(coming) > READERS:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _batches(read: Iterable[_Read], most: int) -> Iterator[list[_Read]]:
    """Clips together until they have `most` samples, so that long clips are not all in memory. Codes do not depend on it."""
    batch: list[_Read] = []
    size = 0
    for samples, result in read:
        batch.append((samples, result))
        size += 0 if samples is None else len(samples)
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(clip: ClipTask, codec: Codec) -> _Read:
    """Samples of a clip and what they are like; or no samples, and why it is refused."""
    try:
        longest = (MAX_CLIP_FRAMES + 1) * codec.hop / codec.sample_rate
        samples, facts = read_audio_and_facts(
            clip.audio, codec.sample_rate, start_s=clip.start_s, stop_s=clip.stop_s, max_s=longest
        )
        frames = codec.n_frames(len(samples))
        if frames > MAX_CLIP_FRAMES:
            detail = f"{clip.audio.title}: {frames} frames, at most {MAX_CLIP_FRAMES} make a clip"
            raise HocketError(Code.AUDIO_UNREADABLE, detail)
        if frames < clip.n_phonemes:
            raise HocketError(Code.TOO_FEW_FRAMES, f"{frames} frames for {clip.n_phonemes} phonemes")
        check_sound(facts, clip.audio.title)
    except HocketError as error:
        if error.code in (Code.EXTRA_MISSING, Code.CODEC_UNREADABLE):
            raise
        return None, Encoded(0, None, error.code, error.detail)
    return samples, Encoded(frames, facts)


def _write(
    path: Path,
    n_codebooks: int,
    results: Sequence[Encoded],
    codes: Sequence[NDArray[np.uint16]],
    voices: Sequence[NDArray[np.float32] | None] | None,
) -> None:
    about = [
        {
            "frames": result.frames,
            "facts": None if result.facts is None else asdict(result.facts),
            "code": None if result.code is None else int(result.code),
            "reason": result.reason,
        }
        for result in results
    ]
    tensors: dict[str, NDArray[Any]] = {
        "about": json_tensor(about),
        "codes": np.concatenate(codes) if codes else np.zeros((0, n_codebooks), np.uint16),  # [sum of T, K]
    }
    if voices is not None:
        width = max((len(voice) for voice in voices if voice is not None), default=1)
        tensors["voices"] = np.array(
            [np.zeros(width, np.float32) if voice is None else voice for voice in voices], np.float32
        ).reshape(len(voices), width)  # [clips with codes, E]; zeros: none
    write_tensors(path, tensors)


class JobResult:
    """A result that has been read back."""

    def __init__(self, path: Path) -> None:
        tensors = read_tensors(path)
        self.codes: NDArray[np.uint16] = tensors["codes"]  # [sum of T, K]
        self._voices: NDArray[np.float32] | None = tensors.get("voices")
        self.clips = [_encoded(entry) for entry in json_of(tensors["about"])]
        self._ends = np.cumsum([clip.frames for clip in self.clips])
        self._rank = np.cumsum([clip.code is None for clip in self.clips]) - 1

    def codes_of(self, place: int) -> NDArray[np.uint16]:
        """[K, T] of the clip at a place of the job."""
        end = int(self._ends[place])
        return np.ascontiguousarray(self.codes[end - self.clips[place].frames : end].T)

    def voice_of(self, place: int) -> NDArray[np.float32] | None:
        """[E] of the clip at a place of the job, where its speaker was embedded."""
        voice = None if self._voices is None else self._voices[self._rank[place]]
        return voice if voice is not None and voice.any() else None

    @property
    def size_bytes(self) -> int:
        return self.codes.nbytes + 512 * len(self.clips)


def _encoded(entry: dict[str, Any]) -> Encoded:
    facts = None if entry["facts"] is None else AudioFacts(**entry["facts"])
    return Encoded(entry["frames"], facts, None if entry["code"] is None else Code(entry["code"]), entry["reason"])


class CodeStore:
    """The codes of all clips, read from the results of their jobs as they are wanted; a bounded part is in memory.

    Args:
        path_of: the file of a job's result by its number.
        vectors: float32 [K, codebook_size, D], what each code adds to the latent.
    """

    def __init__(self, path_of: Callable[[int], Path], vectors: NDArray[np.float32], *, cache_bytes: int = CACHE_BYTES) -> None:
        self._path_of, self._vectors = path_of, vectors
        self._kept: ByteCache[int, JobResult] = ByteCache(cache_bytes)

    def _result(self, index: int) -> tuple[JobResult, int]:
        job, place = divmod(index, CLIPS_PER_JOB)
        result = self._kept.get(job)
        if result is None:
            result = JobResult(self._path_of(job))
            self._kept.put(job, result, result.size_bytes)
        return result, place

    def codes(self, index: int) -> NDArray[np.uint16]:
        """[K, T] of a clip by its number among the items."""
        result, place = self._result(index)
        return result.codes_of(place)

    def voice(self, index: int) -> NDArray[np.float32] | None:
        result, place = self._result(index)
        return result.voice_of(place)

    def features(self, index: int) -> NDArray[np.float32]:
        """Dequantised latents [T, D] of a clip."""
        return latents_of(self._vectors, self.codes(index))
