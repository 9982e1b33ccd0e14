"""The work folder of a dataset in the making: what is done so far, so that the same command goes on where it was broken off.

`OUT/.work` holds a lock, `plan.json` and results that are whole or absent. The plan says what they depend on: the files of the
corpus (path, size, time of change), the settings and the versions of what computes. With another plan the work starts over.
The folder is removed when the dataset is finished.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error, remove_leftovers
from common.lock import locked
from protocol.manifest import canonical_json
from tokenizer.corpus import Corpus

WORK = ".work"
PLAN = "plan.json"
LOCK = "lock"
FORMAT = "hocket-work/1"
# What computes phonemes, samples, codes, embeddings and files. Those that are not installed have no part in the result.
PACKAGES = (
    "hocket", "numpy", "torch", "transformers", "soundfile", "av", "pyarrow", "gruut", "gruut-ipa", "num2words", "babel",
    "pyopenjtalk-plus", "silero-vad", "resemblyzer",
)  # fmt: skip


class Work:
    """An open work folder; made by `open_work`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def bind(self, plan: Mapping[str, Any]) -> bool:
        """Keep the results of this plan, and remove those of another; whether there was work of this plan before.

        Raises:
            HocketError: DISK_FULL, STATE_UNREADABLE.
        """
        wanted = canonical_json({"format": FORMAT, **plan})
        path = self.folder / PLAN
        try:
            if path.is_file() and path.read_bytes() == wanted:
                return True
            # The plan goes first: without it, what a kill leaves of the rest is never taken for the new plan's.
            path.unlink(missing_ok=True)
            self._remove(self._results())
        except OSError as error:
            raise disk_error(error, self.folder) from error
        atomic_write(path, wanted)
        return False

    @property
    def codec(self) -> Path:
        return self.folder / "codec"

    def job(self, number: int) -> Path:
        return self.folder / "jobs" / f"{number:06d}.safetensors"

    def cut(self, number: int) -> Path:
        return self.folder / "cuts" / f"{number:06d}.safetensors"

    def alignment(self, language: str, settings: Mapping[str, Any]) -> Path:
        """The file of a language's alignment with these settings."""
        digest = hashlib.sha256(canonical_json(settings)).hexdigest()[:16]
        return self.folder / "alignments" / f"{language}-{digest}.safetensors"

    @property
    def has_results(self) -> bool:
        return any(any(path.iterdir()) for path in self._results() if path.is_dir())

    def _results(self) -> list[Path]:
        return [self.folder / name for name in ("jobs", "cuts", "alignments")]

    def remove(self) -> None:
        """Remove the folder; the lock, which is held, last."""
        try:
            self._remove(path for path in self.folder.iterdir() if path.name != LOCK)
            (self.folder / LOCK).unlink(missing_ok=True)
            self.folder.rmdir()
        except OSError as error:
            raise disk_error(error, self.folder) from error

    @staticmethod
    def _remove(paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def open_work(out: Path) -> Iterator[Work]:
    """The work folder of the dataset in `out`, held by this process alone. It is removed at the end.

    After an error it stays if it holds results, for the same command to go on with.

    Raises:
        HocketError: STATE_LOCKED if another process makes a dataset there, OUTPUT_EXISTS if `out` holds something else,
            STATE_UNREADABLE, DISK_FULL.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        ours = (out / "manifest.json").is_file() or (out / WORK).is_dir()
        if any(out.iterdir()) and not ours:
            raise HocketError(Code.OUTPUT_EXISTS, f"{out} holds something that is no dataset")
    except OSError as error:
        raise disk_error(error, out) from error
    work = Work(out / WORK)
    with locked(work.folder):
        if not (work.folder / LOCK).is_file():
            raise HocketError(Code.STATE_LOCKED, f"{out} was being finished by another process")
        remove_leftovers(out)
        try:
            yield work
        except HocketError:
            if not work.has_results:
                work.remove()
            raise
        work.remove()


def inputs_of(corpus: Corpus) -> str:
    """SHA-256 of all that a corpus says of its clips, and of path, size and time of change of every file that it names.

    Raises:
        HocketError: CORPUS_UNREADABLE where a file cannot be looked at.
    """
    digest = hashlib.sha256()
    seen: set[Path] = set()

    def add(*values: object) -> None:
        digest.update(canonical_json([str(value) for value in values]) + b"\n")

    def add_file(path: Path) -> None:
        if path in seen:
            return
        seen.add(path)
        try:
            found = path.stat()
        except OSError as error:
            raise HocketError(Code.CORPUS_UNREADABLE, f"{path} ({error.strerror})") from error
        add(path.absolute(), found.st_size, found.st_mtime_ns)

    add(corpus.speaker, corpus.language, corpus.licence, corpus.layout)
    for clip in corpus.clips:
        add(clip.id, clip.audio, clip.text, clip.language, clip.speaker, clip.licence, clip.start_s, clip.stop_s)
        add_file(clip.audio.path)
    for recording in corpus.recordings:
        add(recording.id, recording.audio, recording.subtitles, recording.language, recording.speaker, recording.licence)
        add_file(recording.audio.path)
        if recording.subtitles is not None:
            add_file(recording.subtitles)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of the packages that have a part in the result."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
