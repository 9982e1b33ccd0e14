"""From a corpus to a dataset: on the shipped one whole, and on small ones with something wrong."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from common.errors import Code, HocketError
from protocol.identity import MemberKey
from protocol.manifest import DatasetManifest, read_manifest
from tokenizer.codec import Codec, load_codec
from tokenizer.corpus import default_corpus
from tokenizer.pipeline import tokenize
from tokenizer.reader import DatasetReader
from tokenizer.shards import Utterance, shuffled_text

pytestmark = pytest.mark.timeout(400)  # the shipped corpus is tokenised whole

ALLISON = Path(__file__).parents[2].parent / "shared" / "speech" / "allison-en"


@pytest.fixture(scope="module")
def codec() -> Iterator[Codec]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations, which threads that wait for each other only slow down
    yield load_codec()
    torch.set_num_threads(threads)


@dataclass
class Dataset:
    out: Path
    manifest: DatasetManifest
    training: list[Utterance]
    heldout: list[Utterance]
    key: MemberKey

    @property
    def all(self) -> list[Utterance]:
        return self.training + self.heldout


def make(corpus: Path, out: Path, codec: Codec, **options: object) -> Dataset:
    key = MemberKey.generate()
    made = tokenize(corpus, "en-US", codec, out, key=key, **options)  # type: ignore[arg-type]
    manifest = read_manifest(DatasetManifest, (out / "manifest.json").read_bytes(), signer=key.public)
    assert manifest == made

    async def get(cid: str) -> bytes:
        return (out / "shards" / f"{cid}.parquet").read_bytes()

    async def read() -> tuple[list[Utterance], list[Utterance]]:
        reader = DatasetReader(manifest, get)
        return await reader.everything(), await reader.heldout()

    training, heldout = asyncio.run(read())
    return Dataset(out, manifest, training, heldout, key)


# ---- the shipped corpus ------------------------------------------------------------------------------------------------

# What flite calls the sounds of the English inventory.
FLITE = dict(
    zip(
        "p b t d k ɡ f v θ ð s z ʃ ʒ h m n ŋ l ɹ j w t͡ʃ d͡ʒ ə ɚ ɪ i ɛ æ ɑ ɔ ʌ ʊ u aɪ aʊ eɪ oʊ ɔɪ _ |".split(),  # noqa: SIM905
        "p b t d k g f v th dh s z sh zh hh m n ng l r y w ch jh ax er ih iy eh ae aa ao ah uh uw ay aw ey ow oy pau pau".split(),  # noqa: SIM905
        strict=True,
    )
)
FLITE_VOWELS = set("ax er ih iy eh ae aa ao ah uh uw ay aw ey ow oy".split())  # noqa: SIM905


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, codec: Codec) -> Dataset:
    return make(default_corpus(), tmp_path_factory.mktemp("shipped") / "data", codec)


def flite_times() -> dict[str, list[tuple[str, float]]]:
    times: dict[str, list[tuple[str, float]]] = {}
    for line in (default_corpus() / "phones.tsv").read_text().splitlines():
        name, phone, end = line.split("\t")
        times.setdefault(name, []).append((phone, float(end)))
    return times


def matches(ours: list[str], theirs: list[str]) -> dict[int, int]:
    """Places of the same sound in two transcriptions of one sentence, by the cheapest edit path; a vowel may match another."""

    def cost(one: str, two: str) -> float:
        return 0.0 if one == two else 0.3 if {one, two} <= FLITE_VOWELS else 3.0

    table = np.add.outer(np.arange(len(ours) + 1.0), np.arange(len(theirs) + 1.0))
    for i, j in itertools.product(range(1, len(ours) + 1), range(1, len(theirs) + 1)):
        table[i, j] = min(table[i - 1, j - 1] + cost(ours[i - 1], theirs[j - 1]), table[i - 1, j] + 1, table[i, j - 1] + 1)
    i, j, pairs = len(ours), len(theirs), {}
    while i and j:
        if table[i, j] == table[i - 1, j - 1] + cost(ours[i - 1], theirs[j - 1]):
            i, j = i - 1, j - 1
            if cost(ours[i], theirs[j]) < 1:
                pairs[i] = j
        elif table[i, j] == table[i - 1, j] + 1:
            i -= 1
        else:
            j -= 1
    return pairs


def test_the_alignment_is_within_two_frames_of_the_truth(shipped: Dataset) -> None:
    times = flite_times()
    errors: list[float] = []
    whole_sentences: list[float] = []
    boundaries = 0
    for row in shipped.all:
        symbols = [FLITE[shipped.manifest.phonemes[number].lstrip("ˈˌ")] for number in row.phonemes]
        ends = np.cumsum(row.durations)
        truth = times[row.id]
        boundaries += len(truth) - 1
        pairs = matches(symbols, [phone for phone, _ in truth])
        # A boundary can be compared where both of its sounds are neighbours in both transcriptions.
        for place, other in pairs.items():
            if pairs.get(place + 1) == other + 1:
                errors.append(abs(float(ends[place]) - truth[other][1] * 50))
        if len(truth) == len(symbols):
            whole_sentences += [abs(float(end) - time * 50) for end, (_, time) in zip(ends[:-1], truth[:-1], strict=True)]
    # The reader and flite have two dictionaries: nearly all of flite's boundaries have their like.
    assert len(errors) > 0.97 * boundaries
    assert np.mean(np.array(errors) <= 2) >= 0.98
    assert len(whole_sentences) > 0.85 * boundaries
    assert np.mean(np.array(whole_sentences) <= 2) >= 0.98


def test_the_shipped_corpus_is_what_it_is_said_to_be(shipped: Dataset) -> None:
    assert (len(shipped.training), len(shipped.heldout)) == (700, 100)
    minutes = sum(row.n_frames for row in shipped.training) / 50 / 60
    assert 32 < minutes < 34
    files = list((default_corpus() / "wavs").iterdir())
    assert 6e6 < sum(path.stat().st_size for path in files) < 8e6
    vocabulary = {word for row in shipped.training for word in row.spoken.lower().split()}
    assert len(vocabulary) >= 340
    assert {word for row in shipped.heldout for word in row.spoken.lower().split()} <= vocabulary
    assert not {row.spoken for row in shipped.training} & {row.spoken for row in shipped.heldout}
    assert all(4 <= len(row.spoken.split()) <= 14 for row in shipped.all)
    assert {row.id for row in shipped.heldout} == set((default_corpus() / "heldout.txt").read_text().split())
    ends = flite_times()
    for row in shipped.all[::40]:
        assert abs(soundfile.info(default_corpus() / "wavs" / f"{row.id}.ogg").duration - ends[row.id][-1][1]) < 0.05


def test_the_manifest_says_what_is_there(shipped: Dataset) -> None:
    manifest = shipped.manifest
    assert manifest.languages == ["en-US"] and manifest.speakers == ["flite-slt"] and manifest.licences == ["Apache-2.0"]
    assert manifest.codec["cid"].startswith("baf") and manifest.codec["sample_rate"] == 16000
    assert sum(entry.frames for entry in manifest.shards) == sum(row.n_frames for row in shipped.training)
    names = {f"{entry.cid}.parquet" for entry in [*manifest.shards, *manifest.heldout]}
    assert {path.name for path in (shipped.out / "shards").iterdir()} == names
    assert all(entry.size_bytes <= 2**20 for entry in [*manifest.shards, *manifest.heldout]), "one block each"
    assert (shipped.out / "refused.txt").read_text() == ""
    copy = load_codec(shipped.out / "codec")
    assert copy.decode(shipped.heldout[0].codes).shape == (shipped.heldout[0].n_frames * copy.hop,)


def test_every_row_is_consistent_and_aligned_well(shipped: Dataset) -> None:
    for row in shipped.all:
        row.check()
        assert row.phonemes[0] == row.phonemes[-1] == 1 and row.word_starts.sum() == len(row.spoken.split())
        assert -2.5 < row.align_score < 0
    for row in shuffled_text(shipped.heldout, 0):
        row.check()


# ---- small corpora -----------------------------------------------------------------------------------------------------


def copy_clips(folder: Path, count: int) -> Path:
    """The first clips of the shipped corpus, as a corpus of their own."""
    (folder / "wavs").mkdir(parents=True)
    lines = (default_corpus() / "metadata.csv").read_text().splitlines()[:count]
    (folder / "metadata.csv").write_text("".join(f"{line}\n" for line in lines))
    for line in lines:
        name = f"{line.split('|')[0]}.ogg"
        shutil.copy(default_corpus() / "wavs" / name, folder / "wavs" / name)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_clips(tmp_path_factory.mktemp("small") / "corpus", 6)


@pytest.fixture
def own(small: Path, tmp_path: Path) -> Path:
    """A copy of the small corpus that a test may spoil."""
    return Path(shutil.copytree(small, tmp_path / "own"))


def refusal(corpus: Path, out: Path, codec: Codec, **options: object) -> HocketError:
    with pytest.raises(HocketError) as caught:
        tokenize(corpus, "en-US", codec, out, key=MemberKey.generate(), **options)  # type: ignore[arg-type]
    assert not (out / "manifest.json").exists()
    assert "\n" not in caught.value.line() and "Remedy:" in caught.value.line()
    return caught.value


def test_the_same_corpus_gives_the_same_shards(small: Path, tmp_path: Path, codec: Codec) -> None:
    one, two = (make(small, tmp_path / name, codec) for name in ("one", "two"))
    assert one.manifest == two.manifest
    assert len(one.heldout) == 1 and len(one.training) == 5


def test_progress_comes_for_every_phase(small: Path, tmp_path: Path, codec: Codec) -> None:
    seen: list[tuple[str, int, int]] = []
    make(small, tmp_path / "out", codec, progress=lambda phase, done, total: seen.append((phase, done, total)))
    assert [phase for phase, _ in itertools.groupby(seen, key=lambda step: step[0])] == ["text", "audio", "align", "shards"]
    assert all(done <= total for _, done, total in seen)
    ends = {phase: done for phase, done, total in seen if done == total}
    assert ends == {"text": 6, "audio": 6, "align": 1, "shards": 6}


def test_what_is_held_out_can_be_chosen(small: Path, tmp_path: Path, codec: Codec) -> None:
    assert len(make(small, tmp_path / "a", codec, heldout=4).heldout) == 4
    chosen = make(small, tmp_path / "b", codec, heldout=["slt-0003", "slt-0005"])
    assert [row.id for row in chosen.heldout] == ["slt-0003", "slt-0005"]
    assert refusal(small, tmp_path / "c", codec, heldout=6).code is Code.CORPUS_TOO_SMALL
    assert refusal(small, tmp_path / "d", codec, heldout=0).code is Code.CORPUS_TOO_SMALL
    error = refusal(small, tmp_path / "e", codec, heldout=["slt-9999"])
    assert error.code is Code.CORPUS_UNREADABLE and "slt-9999" in error.line()


def test_small_shards_hold_the_same_rows(small: Path, tmp_path: Path, codec: Codec) -> None:
    whole, cut = make(small, tmp_path / "whole", codec), make(small, tmp_path / "cut", codec, shard_target_bytes=1)
    assert len(cut.manifest.shards) == 5
    assert [row.id for row in cut.all] == [row.id for row in whole.all]


def test_an_earlier_dataset_is_replaced_and_nothing_else(small: Path, tmp_path: Path, codec: Codec) -> None:
    out = tmp_path / "out"
    first = make(small, out, codec)
    second = make(small, out, codec, shard_target_bytes=1)
    assert {entry.cid for entry in first.manifest.shards}.isdisjoint(path.stem for path in (out / "shards").iterdir())
    assert len(list((out / "shards").iterdir())) == len(second.manifest.shards) + 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert refusal(small, tmp_path / "mine", codec).code is Code.OUTPUT_EXISTS
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_other_sample_rates_and_channels_are_converted(own: Path, tmp_path: Path, codec: Codec) -> None:
    samples, rate = soundfile.read(own / "wavs" / "slt-0001.ogg", dtype="float32")
    (own / "wavs" / "slt-0001.ogg").unlink()
    doubled = np.repeat(samples, 2)  # 32 kHz
    soundfile.write(own / "wavs" / "slt-0001.flac", np.stack([doubled, doubled], axis=1), 2 * rate)
    row = next(row for row in make(own, tmp_path / "out", codec).all if row.id == "slt-0001")
    assert row.n_frames == codec.n_frames(len(samples))


@pytest.mark.parametrize("missing", ["text", "recording"])
def test_texts_and_recordings_that_do_not_match(own: Path, tmp_path: Path, codec: Codec, missing: str) -> None:
    if missing == "text":
        table = (own / "metadata.csv").read_text()
        (own / "metadata.csv").write_text(table.split("\n", 1)[1])
    else:
        (own / "wavs" / "slt-0001.ogg").unlink()
    error = refusal(own, tmp_path / "out", codec)
    assert error.code is Code.TEXT_AUDIO_MISMATCH and "slt-0001" in error.line() and "1 of 6" in error.line()


def test_fewer_frames_than_phonemes(own: Path, tmp_path: Path, codec: Codec) -> None:
    soundfile.write(own / "wavs" / "slt-0002.ogg", np.zeros(1600, np.float32), 16000, format="OGG", subtype="OPUS")
    error = refusal(own, tmp_path / "out", codec)
    assert error.code is Code.TOO_FEW_FRAMES and "slt-0002 (5 frames for" in error.line()


def test_a_recording_that_is_none(own: Path, tmp_path: Path, codec: Codec) -> None:
    (own / "wavs" / "slt-0003.ogg").write_bytes(b"OggS and then nothing")
    error = refusal(own, tmp_path / "out", codec)
    assert error.code is Code.AUDIO_UNREADABLE and "slt-0003" in error.line()


def test_a_text_that_cannot_be_read(own: Path, tmp_path: Path, codec: Codec) -> None:
    table = (own / "metadata.csv").read_text().split("\n")
    (own / "metadata.csv").write_text("\n".join(["slt-0001|Привет", *table[1:]]))
    error = refusal(own, tmp_path / "out", codec)
    assert error.code is Code.SCRIPT_MISMATCH and "Привет" in error.line()


def test_no_corpus_and_wrong_languages(small: Path, tmp_path: Path, codec: Codec) -> None:
    assert refusal(tmp_path / "nowhere", tmp_path / "a", codec).code is Code.CORPUS_UNREADABLE
    for language, advice in (("JP", "use ja"), ("fr", "use en")):
        with pytest.raises(HocketError, match=advice) as caught:
            tokenize(small, language, codec, tmp_path / "b", key=MemberKey.generate())
        assert caught.value.code is Code.LANGUAGE_REFUSED
    german = Path(shutil.copytree(small, tmp_path / "german"))
    (german / "corpus.json").write_text('{"language": "de"}')
    assert refusal(german, tmp_path / "c", codec).code is Code.LANGUAGE_REFUSED


def test_a_full_disk_keeps_the_earlier_dataset(
    small: Path, tmp_path: Path, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    first = make(small, out, codec)
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.rglob("*") if path.is_file()}
    written = 0
    fsync = os.fsync

    def nearly_full(descriptor: int) -> None:
        nonlocal written
        written += 1
        if written > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", nearly_full)
    with pytest.raises(HocketError) as caught:
        tokenize(small, "en-US", codec, out, key=first.key, shard_target_bytes=1)
    assert caught.value.code is Code.DISK_FULL
    monkeypatch.undo()
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == digest for path, digest in before.items())


def test_single_bad_clips_are_left_out_with_their_reasons(tmp_path: Path, codec: Codec) -> None:
    corpus = copy_clips(tmp_path / "corpus", 110)
    (corpus / "wavs" / "slt-0010.ogg").write_bytes(b"no sound")
    lines = (corpus / "metadata.csv").read_text().splitlines()
    lines[19] = "slt-0020|Forty ducks swam over to Vienna and slept."  # not what the recording says
    (corpus / "metadata.csv").write_text("\n".join(lines))
    dataset = make(corpus, tmp_path / "out", codec)
    assert len(dataset.all) == 108
    refused = (tmp_path / "out" / "refused.txt").read_text().splitlines()
    assert [line.split(" ")[:2] for line in refused] == [["slt-0010:", "H208"], ["slt-0020:", "H212"]]


@pytest.mark.skipif(not ALLISON.is_dir(), reason="the recordings of shared/speech are not here")
def test_real_speech(tmp_path: Path, codec: Codec) -> None:
    # A quarter of the corpus, the clip of 73 seconds with it.
    corpus = tmp_path / "corpus"
    (corpus / "wavs").mkdir(parents=True)
    lines = (ALLISON / "metadata.csv").read_text().splitlines()
    lines = lines[:130] + [line for line in lines[130:] if line.startswith("demo-instruct|")]
    (corpus / "metadata.csv").write_text("\n".join(lines))
    for line in lines:
        name = f"{line.split('|')[0]}.flac"
        (corpus / "wavs" / name).symlink_to(ALLISON / "wavs" / name)
    dataset = make(corpus, tmp_path / "out", codec)
    assert len(dataset.all) >= len(lines) - 2 and len(dataset.heldout) == 7
    assert all(len(row.spoken.split()) in range(4, 15) for row in dataset.heldout)
    assert not {row.spoken for row in dataset.training} & {row.spoken for row in dataset.heldout}
    assert not any(character.isdigit() for row in dataset.all for character in row.spoken)
    parts = [row for row in dataset.all if row.id.startswith("demo-instruct-part")]
    assert sum(row.n_frames for row in parts) > 70 * 50, "long clips are aligned too"
    assert len(parts) > 3 and max(row.n_frames for row in parts) <= 25 * 50, "and cut at their pauses"
