"""Whole recordings to pieces: who speaks, what is said, and how much memory it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from common.errors import Code, HocketError
from tokenizer.audio import read_audio, resample
from tokenizer.audio_source import AudioSource
from tokenizer.recordings.clip_voice import ClipVoice
from tokenizer.recordings.cluster import ClusterSettings
from tokenizer.recordings.diarise import CutSettings, Piece, RecordingTools, cut_recording
from tokenizer.recordings.embed import SpeakerEncoder, tf32
from tokenizer.recordings.extras import import_extra
from tokenizer.recordings.subtitles import Cue
from tokenizer.recordings.windows import WindowSettings, activity, choose

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "tokenizer" / "data" / "corpus-slt" / "wavs"
REAL = ROOT.parent / "shared" / "speech"
RATE = 16000
Turn = tuple[float, float, str]


@pytest.fixture(scope="module")
def tools() -> RecordingTools:
    for package in ("silero_vad", "resemblyzer"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    return RecordingTools.load(batch_size=16)


def conversation(path: Path, voices: list[list[np.ndarray]], turns: int, seed: int = 1) -> list[Turn]:
    """Write a recording in which voices take turns of one or two clips; who speaks from when to when."""
    rng = np.random.default_rng(seed)
    parts, said, at, last = [], [], 0, -1
    for _ in range(turns):
        last = int(rng.choice([n for n in range(len(voices)) if n != last or len(voices) == 1]))
        for _ in range(int(rng.integers(1, 3))):
            clip = voices[last][int(rng.integers(len(voices[last])))]
            parts += [clip, np.zeros(int(rng.uniform(0.3, 0.7) * RATE), np.float32)]
            said.append((at / RATE, (at + len(clip)) / RATE, f"v{last}"))
            at += len(clip) + len(parts[-1])
    soundfile.write(path, np.concatenate(parts), RATE)
    return said


@pytest.fixture(scope="module")
def voices() -> list[list[np.ndarray]]:
    """The shipped voice, and two others that it gives when its clips are played faster or slower."""
    clips = [read_audio(path, RATE) for path in sorted(SHIPPED.iterdir())[:12]]
    return [clips, [resample(clip, 13000, RATE) for clip in clips], [resample(clip, 21000, RATE) for clip in clips]]


def right(pieces: list[Piece], turns: list[Turn]) -> float:
    """The share of the spoken time whose piece has the speaker that most of the true speaker's time has."""
    true = np.full(int(turns[-1][1] * 100) + 200, -1)
    found = np.full(len(true), -1)
    names, speakers = sorted({turn[2] for turn in turns}), sorted({piece.speaker for piece in pieces})
    for start, stop, name in turns:
        true[int(start * 100) : int(stop * 100)] = names.index(name)
    for piece in pieces:
        found[int(piece.start_s * 100) : int(piece.stop_s * 100)] = speakers.index(piece.speaker)
    best = {n: np.bincount(found[(true == n) & (found >= 0)]).argmax() for n in range(len(names))}
    assert len(set(best.values())) == len(names)
    spoken = true >= 0
    return float(np.mean([found[at] == best[true[at]] for at in np.flatnonzero(spoken)]))


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory, voices: list[list[np.ndarray]]) -> tuple[AudioSource, list[Turn]]:
    path = tmp_path_factory.mktemp("talk") / "talk.flac"
    turns = conversation(path, voices, 14)
    return AudioSource(path), turns


def same(one: list[Piece], two: list[Piece]) -> bool:
    def plain(piece: Piece) -> tuple:
        vector = None if piece.embedding is None else piece.embedding.tobytes()
        return piece.start_s, piece.stop_s, piece.speaker, piece.text, vector

    return [plain(piece) for piece in one] == [plain(piece) for piece in two]


def test_speakers_are_found_without_subtitles(tools: RecordingTools, talk: tuple[AudioSource, list[Turn]]) -> None:
    audio, turns = talk
    heard: list[float] = []
    pieces = cut_recording(audio, tools, progress=heard.append)
    assert {piece.speaker for piece in pieces} == {"speaker-1", "speaker-2", "speaker-3"}
    assert pieces[0].speaker == "speaker-1" and all(piece.text is None for piece in pieces)
    assert right(pieces, turns) > 0.9
    assert heard == sorted(heard) and heard[-1] >= turns[-1][1]
    for piece in pieces:
        assert piece.embedding is not None and piece.embedding.shape == (256,)
        assert np.linalg.norm(piece.embedding) == pytest.approx(1, abs=1e-5)


def test_nothing_depends_on_the_size_of_the_blocks(tools: RecordingTools, talk: tuple[AudioSource, list[Turn]]) -> None:
    whole = cut_recording(talk[0], tools, settings=CutSettings(block_s=1000))
    assert same(whole, cut_recording(talk[0], tools, settings=CutSettings(block_s=3.3)))


def test_a_given_number_of_speakers(tools: RecordingTools, talk: tuple[AudioSource, list[Turn]]) -> None:
    pieces = cut_recording(talk[0], tools, settings=CutSettings(speakers=ClusterSettings(speakers=2)))
    assert {piece.speaker for piece in pieces} == {"speaker-1", "speaker-2"}
    with pytest.raises(HocketError) as caught:
        cues = [Cue(1, 2, "x", "A")]
        cut_recording(talk[0], tools, cues=cues, settings=CutSettings(speakers=ClusterSettings(speakers=2)))
    assert caught.value.code is Code.OPTION_INVALID


def test_cues_that_name_speakers(tools: RecordingTools, talk: tuple[AudioSource, list[Turn]]) -> None:
    audio, turns = talk
    cues = [Cue(start + 0.1, stop - 0.1, f"text {n}.", name) for n, (start, stop, name) in enumerate(turns)]
    pieces = cut_recording(audio, tools, cues=cues)
    assert " ".join(piece.text or "" for piece in pieces).split() == " ".join(cue.text for cue in cues).split()
    assert right(pieces, turns) > 0.95
    voices: dict[str, list[np.ndarray]] = {}
    for piece in pieces:
        assert piece.text is not None and piece.embedding is not None
        voices.setdefault(piece.speaker, []).append(piece.embedding)
    means = {name: np.mean(vectors, axis=0) for name, vectors in voices.items()}
    for name, vectors in voices.items():
        assert all(max(means, key=lambda other: vector @ means[other]) == name for vector in vectors)


def test_cues_without_names_are_given_to_the_speakers_that_are_found(
    tools: RecordingTools, talk: tuple[AudioSource, list[Turn]]
) -> None:
    audio, turns = talk
    cues = [Cue(start, stop, f"text {n}.") for n, (start, stop, _) in enumerate(turns)]
    pieces = cut_recording(audio, tools, cues=cues)
    assert " ".join(piece.text or "" for piece in pieces).split() == " ".join(cue.text for cue in cues).split()
    assert len({piece.speaker for piece in pieces}) == 3 and right(pieces, turns) > 0.9


def test_speech_that_no_cue_covers_is_known_by_its_voice(tools: RecordingTools, talk: tuple[AudioSource, list[Turn]]) -> None:
    audio, turns = talk
    left_out = set(range(len(turns) - 4, len(turns)))
    cues = [Cue(start, stop, f"text {n}.", name) for n, (start, stop, name) in enumerate(turns) if n not in left_out]
    pieces = cut_recording(audio, tools, cues=cues)
    uncovered = [piece for piece in pieces if piece.text is None]
    assert uncovered and {piece.speaker for piece in uncovered} <= {"v0", "v1", "v2"}
    assert min(piece.start_s for piece in uncovered) > turns[-5][1] - 0.5 and right(pieces, turns) > 0.9


def test_overlapping_speakers_each_keep_their_own_voice(tools: RecordingTools, voices: list, tmp_path: Path) -> None:
    one, two = voices[1][0], voices[2][1]
    samples = np.zeros(len(one) + len(two) - RATE // 2, np.float32)
    samples[: len(one)] += one
    samples[-len(two) :] += two
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    cues = [Cue(0, len(one) / RATE, "one", "a"), Cue((len(samples) - len(two)) / RATE, len(samples) / RATE, "two", "b")]
    pieces = cut_recording(AudioSource(tmp_path / "a.wav"), tools, cues=cues)
    assert [(piece.speaker, piece.text) for piece in pieces] == [("a", "one"), ("b", "two")]
    for piece, clip, other in zip(pieces, (one, two), (two, one), strict=True):
        for at, wave in enumerate((clip, other)):
            soundfile.write(tmp_path / f"{at}.wav", wave, RATE)
        alone = [cut_recording(AudioSource(tmp_path / f"{at}.wav"), tools)[0].embedding for at in range(2)]
        assert piece.embedding @ alone[0] > 0.9 > piece.embedding @ alone[1]  # type: ignore[operator]


def test_recordings_without_speech_and_subtitles_of_another(tools: RecordingTools, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 1e-3, 5 * RATE), RATE)
    audio = AudioSource(tmp_path / "a.wav")
    assert cut_recording(audio, tools) == []
    with pytest.raises(HocketError) as caught:
        cut_recording(audio, tools, cues=[Cue(1, 2, "x"), Cue(7, 9, "y")])
    assert caught.value.code is Code.TEXT_AUDIO_MISMATCH
    (piece,) = cut_recording(audio, tools, cues=[Cue(1, 2, "x", "A")])
    assert (piece.text, piece.speaker, piece.embedding) == ("x", "A", None)


def test_one_word(tools: RecordingTools, tmp_path: Path, voices: list[list[np.ndarray]]) -> None:
    soundfile.write(tmp_path / "a.wav", np.pad(voices[0][0][: RATE // 2], RATE), RATE)
    (piece,) = cut_recording(AudioSource(tmp_path / "a.wav"), tools)
    assert piece.speaker == "speaker-1" and 0.9 < piece.start_s < piece.stop_s < 1.7


def test_embeddings_do_not_depend_on_batches_and_survive_too_little_memory(
    tools: RecordingTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    full = activity(0, 3200, [(0, 3200, 0)], 1)
    block = choose(rng.random((3200, 40), np.float32), np.ones(3200, np.float32), full, full, WindowSettings())

    def run(encoder: SpeakerEncoder) -> np.ndarray:
        found: list[np.ndarray] = []
        embedding = encoder.start(lambda vectors: found.append(vectors.copy()))
        embedding.push(block)
        embedding.push(block)
        embedding.finish()
        return np.concatenate(found)

    whole = run(tools.encoder)
    assert len(whole) == 2 * len(block)
    package = tools.encoder.model(torch.from_numpy(block.crops(slice(0, 4)))).detach().numpy()
    np.testing.assert_allclose(whole[:4], package, atol=1e-5)
    limited = SpeakerEncoder("cpu", 13)
    embed, sizes = limited.embed, []

    def small(crops: torch.Tensor) -> torch.Tensor:
        sizes.append(len(crops))
        if len(crops) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return embed(crops)

    monkeypatch.setattr(limited, "embed", small)
    np.testing.assert_allclose(run(limited), whole, atol=1e-5)
    assert sizes[:3] == [13, 7, 4] and max(sizes[3:]) <= 4


def test_a_clip_has_the_voice_of_its_speaker_at_any_rate_and_level(tools: RecordingTools, voices: list) -> None:
    voice_of = ClipVoice(tools.encoder)
    found = [[voice_of(clip, RATE) for clip in clips[:4]] for clips in voices[1:]]
    means = [np.mean([vector for vector in vectors if vector is not None], axis=0) for vectors in found]
    for n, vectors in enumerate(found):
        for vector in vectors:
            assert vector is not None and np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
            assert vector @ means[n] > vector @ means[1 - n]
    clip = voices[1][0]
    again = voice_of(0.05 * resample(clip, RATE, 24000), 24000)
    assert again is not None and again @ found[0][0] > 0.99  # type: ignore[operator]
    assert voice_of(clip[:3000], RATE) is None and voice_of(np.zeros(RATE, np.float32), RATE) is None


def test_tf32_is_set_within_only() -> None:
    def state() -> list[str]:
        return [place.fp32_precision for place in (torch.backends.cuda.matmul, torch.backends.cudnn.rnn)]  # type: ignore[union-attr]

    before = state()
    with pytest.raises(KeyError), tf32():
        assert state() == ["tf32", "tf32"]
        raise KeyError
    assert state() == before


def test_a_device_that_is_not_there_is_replaced(tools: RecordingTools, caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    encoder = SpeakerEncoder("cuda:0", 4)
    assert encoder.device == torch.device("cpu") and "computed on the CPU" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_embeddings_on_cuda_are_those_of_the_cpu(talk: tuple[AudioSource, list[Turn]], tools: RecordingTools) -> None:
    on_cpu = cut_recording(talk[0], tools)
    on_card = cut_recording(talk[0], RecordingTools.load("cuda:0", 16))
    assert [piece.speaker for piece in on_cpu] == [piece.speaker for piece in on_card]
    for one, two in zip(on_cpu, on_card, strict=True):
        assert one.embedding is not None and two.embedding is not None and one.embedding @ two.embedding > 0.999


def test_a_missing_package_is_named_with_what_to_type() -> None:
    with pytest.raises(HocketError) as caught:
        import_extra("a_package_that_is_not_there")
    assert caught.value.code is Code.EXTRA_MISSING and "pip install --no-deps resemblyzer" in str(caught.value)


def real_voices() -> list[list[np.ndarray]]:
    if not REAL.is_dir():
        pytest.skip("no real speech beside the checkout (../shared/speech)")
    folders = [REAL / "allison-en" / "wavs", REAL / "june-fr" / "wavs"]
    clips = [[read_audio(path, RATE) for path in sorted(folder.iterdir())[20:60]] for folder in folders]
    return [[clip for clip in voice if len(clip) > 2 * RATE] for voice in clips]


def test_two_real_speakers_in_two_languages(tools: RecordingTools, tmp_path: Path) -> None:
    turns = conversation(tmp_path / "a.flac", real_voices(), 14, seed=3)
    pieces = cut_recording(AudioSource(tmp_path / "a.flac"), tools)
    assert {piece.speaker for piece in pieces} == {"speaker-1", "speaker-2"} and right(pieces, turns) > 0.9


CHILD = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from simulations.usage import peak_bytes
from tokenizer.audio_source import AudioSource
from tokenizer.recordings.diarise import RecordingTools, cut_recording
from tokenizer.recordings.subtitles import Cue
seconds, speakers = float(sys.argv[2]), int(sys.argv[3])
cues = [Cue(at * 3.0, at * 3.0 + 4.0, f"cue {at}", f"s{at * 8 % max(1, speakers)}") for at in range(int(seconds / 3) - 1)] or None
pieces = cut_recording(AudioSource(Path(sys.argv[1])), RecordingTools.load(batch_size=16), cues=cues if speakers else None)
print(json.dumps({"peak_mib": peak_bytes() / 2**20, "pieces": len(pieces),
                  "speakers": len({piece.speaker for piece in pieces})}))
"""


def peak(path: Path, seconds: float, speakers: int) -> dict:
    command = [sys.executable, "-c", CHILD, str(path), str(seconds), str(speakers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    result: dict = json.loads(done.stdout)
    return result


def long_recording(path: Path, minutes: float) -> Path:
    clips = [read_audio(clip, RATE) for clip in sorted(SHIPPED.iterdir())[:30]]
    some = np.concatenate([np.pad(clip, (0, 4000)) for clip in clips])
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        while file.frames < minutes * 60 * RATE:
            file.write(some)
    return path


@pytest.mark.timeout(400)
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as on Linux")
def test_memory_depends_on_neither_length_nor_speakers(tools: RecordingTools, tmp_path: Path) -> None:
    short = peak(long_recording(tmp_path / "a.flac", 0.5), 30, 2)
    long = peak(long_recording(tmp_path / "b.flac", 5), 300, 21)
    assert long["speakers"] == 21 and long["pieces"] > 5 * short["pieces"]
    assert long["peak_mib"] - short["peak_mib"] < 12


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("speakers", [0, 2, 21])
def test_memory_of_an_hour_is_that_of_two_minutes(tools: RecordingTools, tmp_path: Path, speakers: int) -> None:
    short = peak(long_recording(tmp_path / "a.flac", 2), 120, speakers)
    long = peak(long_recording(tmp_path / "b.flac", 60), 3600, speakers)
    assert long["peak_mib"] - short["peak_mib"] < 16
