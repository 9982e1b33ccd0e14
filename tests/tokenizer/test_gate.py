"""The gate: wrong transcripts are caught, right ones pass, and a corpus that does not say its texts is stopped."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer.align import Aligner, learn_alignment
from tokenizer.audio import read_audio
from tokenizer.codec import load_codec
from tokenizer.corpus import default_corpus
from tokenizer.evidence import CONTRAST_PAIRS, CONTRASTS, NAMES, Evidence, contrast_pairs, corpus_evidence
from tokenizer.gate import MIN_CLIPS, Judged, contrast_scores, judge_alignment, judge_clips, judge_evidence
from tokenizer.phonemes import Phonemizer

pytestmark = pytest.mark.timeout(400)

CLIPS = 150
STEPS = 100  # of learning; fewer than by default, for time
SPEECH = Path(__file__).parents[2].parent / "shared" / "speech"


class Speech:
    """Clips as the gate sees them."""

    def __init__(self, folder: Path, clips: int | None) -> None:
        codec = load_codec()
        phonemizer = Phonemizer("en-US")
        self.symbols = phonemizer.inventory.symbols
        self.ids: list[str] = []
        self.texts: list[np.ndarray] = []
        self.sounds: list[np.ndarray] = []
        paths = {path.stem: path for path in (folder / "wavs").iterdir()}
        lines = [line.split("|") for line in (folder / "metadata.csv").read_text().splitlines()]
        for name, *texts in lines[:: max(1, len(lines) // clips)][:clips] if clips else lines:
            if name != "spy-h323":  # a name that has no reading
                self.ids.append(name)
                self.texts.append(phonemizer.inventory.encode(phonemizer.phonemize(texts[-1] or texts[0]).phonemes))
                self.sounds.append(codec.latents(codec.encode(read_audio(paths[name], codec.sample_rate))))


@cache
def shipped() -> Speech:
    return Speech(default_corpus(), CLIPS)


@cache
def learnt() -> Aligner:
    speech = shipped()
    return learn_alignment(speech.texts, speech.sounds, n_symbols=len(speech.symbols), steps=STEPS)


def swapped(speech: Speech, share: float, seed: int) -> tuple[list[np.ndarray], set[int]]:
    """Texts of which a share changed places among themselves, and the clips that have another text now."""
    draw = np.random.default_rng(seed)
    chosen = draw.choice(len(speech.texts), max(2, round(share * len(speech.texts))), replace=False).tolist()
    texts = list(speech.texts)
    for one, two in itertools.pairwise([*chosen, chosen[0]]):
        texts[one] = speech.texts[two]
    return texts, {index for index in chosen if not np.array_equal(texts[index], speech.texts[index])}


def judge(
    speech: Speech, texts: list[np.ndarray], sounds: list[np.ndarray] | None = None, seed: int = 0, aligner: Aligner | None = None
) -> tuple[Judged, set[int]]:
    """The verdict on a corpus, and the clips that are refused by it or for their frames."""
    sounds = speech.sounds if sounds is None else sounds
    usable = [index for index in range(len(texts)) if len(texts[index]) <= len(sounds[index])]
    kept, heard = [texts[index] for index in usable], [sounds[index] for index in usable]
    short = [index for index in range(len(kept)) if len(heard[index]) <= 750]
    used = aligner or learn_alignment(
        [kept[index] for index in short], [heard[index] for index in short], n_symbols=len(speech.symbols), seed=seed, steps=STEPS
    )
    durations = [path for path, _ in used.align_all(kept, heard)]
    judged = judge_clips(used, kept, durations, heard, symbols=speech.symbols, seed=seed, reused=aligner is not None)
    return judged, {usable[index] for index in judged.refused} | (set(range(len(texts))) - set(usable))


def test_right_transcripts_pass() -> None:
    speech = shipped()
    durations = [path for path, _ in learnt().align_all(speech.texts, speech.sounds)]
    judged = judge_clips(learnt(), speech.texts, durations, lambda index: speech.sounds[index], symbols=speech.symbols)
    assert judged.corpus_problem is None
    assert len(judged.refused) <= 0.02 * CLIPS
    assert judged.facts["separation"] > 0.95


def test_swapped_transcripts_are_caught_and_others_pass() -> None:
    speech = shipped()
    caught, wrong, others = 0, 0, 0
    for seed in range(2):
        texts, bad = swapped(speech, 0.05, seed)
        judged, refused = judge(speech, texts, seed=seed)
        assert judged.corpus_problem is None
        caught, wrong, others = caught + len(refused & bad), wrong + len(bad), others + len(refused - bad)
        assert all("does not say its text" in reason for reason in judged.refused.values())
    assert caught >= 0.9 * wrong
    assert others <= 0.02 * 2 * CLIPS


def test_a_table_shifted_by_one_line_stops_the_corpus() -> None:
    speech = shipped()
    judged, _ = judge(speech, speech.texts[1:] + speech.texts[:1])
    assert judged.corpus_problem is not None and "do not say its texts" in judged.corpus_problem
    assert not judged.refused
    assert judged.facts["separation"] < 0.6


def test_noise_and_silence_under_texts_are_refused() -> None:
    speech = shipped()
    codec, draw = load_codec(), np.random.default_rng(3)
    sounds = list(speech.sounds)
    for place, index in enumerate((5, 40, 77, 110)):
        loudness = 0.05 if place % 2 else 1e-5
        noise = (draw.normal(size=len(sounds[index]) * codec.hop) * loudness).astype(np.float32)
        sounds[index] = codec.latents(codec.encode(noise))
    judged, refused = judge(speech, speech.texts, sounds)
    assert judged.corpus_problem is None
    assert {5, 40, 77, 110} <= refused
    assert len(refused) <= 4 + 0.02 * CLIPS


def test_a_few_clips_are_judged_by_an_aligner_of_another_corpus_only() -> None:
    speech = shipped()
    texts, sounds = speech.texts[:20], speech.sounds[:20]
    teacher = learn_alignment(speech.texts[20:], speech.sounds[20:], n_symbols=len(speech.symbols), steps=STEPS)
    fitted = teacher.fitted_to(20, sounds)
    right, _ = judge(speech, texts, sounds, aligner=fitted)
    assert right.corpus_problem is None and len(right.refused) <= 1
    shifted, _ = judge(speech, texts[1:] + texts[:1], sounds, aligner=fitted)
    assert shifted.corpus_problem is not None
    # Learnt on the twenty alone the aligner knows their mistakes by heart; nothing is claimed then.
    alone, _ = judge(speech, texts[1:] + texts[:1], sounds)
    assert alone.corpus_problem is None and not alone.refused and alone.facts == {"clips": 20.0}


def test_going_on_from_a_kept_aligner_aligns_a_few_clips_as_a_whole_corpus_does() -> None:
    speech = shipped()
    teacher = learn_alignment(speech.texts[20:], speech.sounds[20:], n_symbols=len(speech.symbols), steps=STEPS)
    texts, sounds = speech.texts[:20], speech.sounds[:20]
    tuned = learn_alignment(texts, sounds, n_symbols=len(speech.symbols), start=teacher.fitted_to(20, sounds))
    errors = [
        abs(np.cumsum(one)[:-1].astype(int) - np.cumsum(two)[:-1].astype(int))
        for (one, _), (two, _) in zip(tuned.align_all(texts, sounds), learnt().align_all(texts, sounds), strict=True)
    ]
    assert (np.concatenate(errors) <= 2).mean() > 0.95


def test_the_verdict_is_a_function_of_its_seed() -> None:
    speech = shipped()
    durations = [path for path, _ in learnt().align_all(speech.texts, speech.sounds)]
    one, again = (judge_clips(learnt(), speech.texts, durations, speech.sounds, symbols=speech.symbols, seed=7) for _ in range(2))
    assert one == again


def test_contrast_scores_are_lower() -> None:
    speech = shipped()
    own = [score for _, score in learnt().align_all(speech.texts, speech.sounds)]
    contrast = contrast_scores(learnt(), speech.texts, speech.sounds, seed=1)
    assert len(contrast) == CONTRASTS * CLIPS
    assert np.median(own) > np.median(contrast) + 2
    judged = judge_alignment(own, contrast)
    assert judged.corpus_problem is None and len(judged.refused) <= 0.02 * CLIPS
    assert judge_alignment(contrast[:CLIPS], contrast).corpus_problem is not None


# ---- the decisions alone -----------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=40),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_the_contrast_is_of_other_texts_that_fit(texts: list[list[int]], seed: int, data: st.DataObject) -> None:
    phonemes = [np.array(text) for text in texts]
    n_frames = [len(text) + data.draw(st.integers(0, 8)) for text in texts]
    pairs = contrast_pairs(phonemes, n_frames, seed=seed)
    assert pairs == contrast_pairs(phonemes, n_frames, seed=seed)
    assert len(set(pairs)) == len(pairs) <= CONTRAST_PAIRS
    for clip, other in pairs:
        assert texts[clip] != texts[other]
        assert len(texts[other]) <= n_frames[clip]


def test_a_large_corpus_is_sampled() -> None:
    draw = np.random.default_rng(0)
    phonemes = [draw.integers(1, 40, size=12) for _ in range(5000)]
    pairs = contrast_pairs(phonemes, [60] * 5000, seed=0)
    assert 0.9 * CONTRAST_PAIRS < len(pairs) <= CONTRAST_PAIRS
    assert len({clip for clip, _ in pairs}) > 900


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.1), st.integers(MIN_CLIPS, 400), st.floats(-8.0, 0.0), st.floats(0.2, 2.0))
@settings(max_examples=40)
def test_the_cut_adapts_to_where_the_scores_lie(seed: int, share: float, clips: int, place: float, width: float) -> None:
    # The same corpus with its scores moved and stretched gets the same verdict: no number is fixed.
    draw = np.random.default_rng(seed)
    wrong = round(share * clips)
    own = np.concatenate([draw.normal(0, 0.5, clips - wrong), draw.normal(-4, 0.5, wrong)])
    contrast = draw.normal(-4, 0.5, 4 * clips)
    plain = judge_alignment(own.tolist(), contrast.tolist())
    moved = judge_alignment((own * width + place).tolist(), (contrast * width + place).tolist())
    assert plain.corpus_problem is moved.corpus_problem is None
    assert plain.refused.keys() == moved.refused.keys()
    refused = set(plain.refused)
    # Of a handful of wrong ones a single draw far out is more than a tenth.
    assert wrong - len(refused & set(range(clips - wrong, clips))) <= max(1, 0.1 * wrong)
    assert len(refused & set(range(clips - wrong))) <= 0.02 * clips


@given(st.integers(0, 2**32 - 1), st.integers(MIN_CLIPS, 300))
@settings(max_examples=20, deadline=None)
def test_evidence_that_tells_nothing_stops_the_corpus_and_evidence_that_tells_all_refuses_nobody(seed: int, clips: int) -> None:
    draw = np.random.default_rng(seed)
    clip_of = np.arange(clips * 4) // 4
    table = draw.normal(size=(clips * 5, len(NAMES)))
    blind = Evidence(table[:clips], table[clips:], clip_of, np.zeros((0, len(NAMES))))
    assert judge_evidence(blind).corpus_problem is not None
    seen = judge_evidence(Evidence(table[:clips] + 8, table[clips:], clip_of, np.zeros((0, len(NAMES)))))
    assert seen.corpus_problem is None and not seen.refused


def test_evidence_of_clips_does_not_depend_on_their_company() -> None:
    speech = shipped()
    durations = [path for path, _ in learnt().align_all(speech.texts[:12], speech.sounds[:12])]
    whole = corpus_evidence(learnt(), speech.texts[:12], durations, speech.sounds[:12], silent=(1, 2))
    part = corpus_evidence(learnt(), speech.texts[:3], durations[:3], speech.sounds[:3], silent=(1, 2))
    assert np.allclose(whole.own[:3], part.own, atol=1e-5)
    assert np.isfinite(whole.own).all() and np.isfinite(whole.contrast).all() and np.isfinite(whole.unspoken).all()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["shipped", "allison-en"])
def test_swaps_in_whole_corpora(name: str) -> None:
    folder = default_corpus() if name == "shipped" else SPEECH / name
    if not folder.is_dir():
        pytest.skip("there is no ../shared/speech beside the checkout")
    speech = Speech(folder, None)
    caught, wrong, others = 0, 0, 0
    for seed in range(4):
        texts, bad = swapped(speech, 0.05, seed)
        _, refused = judge(speech, texts, seed=seed)
        caught, wrong, others = caught + len(refused & bad), wrong + len(bad), others + len(refused - bad)
    assert caught >= 0.9 * wrong
    assert others <= 0.02 * 4 * len(speech.texts)
