"""Windows of a block, the choice of those that are worth an embedding, and the mel spectrogram they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer.recordings.features import CHUNK, HOP, MelStream
from tokenizer.recordings.windows import LEVEL, WINDOW, Block, WindowSettings, activity, choose, clean_frames

STEP = 80
SETTINGS = WindowSettings(step=STEP)


def streamed(samples: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    stream = MelStream()
    parts = [stream.push(samples[at : at + size]) for at in range(0, len(samples), size)] + [stream.finish()]
    return np.concatenate([mel for mel, _ in parts]), np.concatenate([power for _, power in parts])


def noise(samples: int, seed: int = 0) -> np.ndarray:
    wave = np.random.default_rng(seed).normal(0, 0.1, samples)
    return (wave * (0.1 + np.sin(np.arange(samples) / 3000) ** 2)).astype(np.float32)


def test_mel_is_what_the_encoder_was_trained_on() -> None:
    audio = pytest.importorskip("resemblyzer.audio", reason="Resemblyzer is not installed")
    for samples in (1, 399, 400, 16000, 55555):
        expected = audio.wav_to_mel_spectrogram(noise(samples))
        found = streamed(noise(samples), 10000)[0]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6 * expected.max())


@given(st.integers(0, 3 * CHUNK * HOP), st.integers(1, 30000))
@settings(max_examples=25, deadline=None)
def test_mel_does_not_depend_on_the_blocks(samples: int, size: int) -> None:
    mel, power = streamed(noise(samples), size)
    whole, whole_power = streamed(noise(samples), max(1, samples))
    assert len(mel) == len(power) == 1 + samples // HOP
    assert (mel == whole).all() and (power == whole_power).all()


@st.composite
def speaking(draw: st.DrawFn) -> np.ndarray:
    """Who is heard in each frame: bool [T, S], in runs."""
    speakers, steps = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    spans = draw(
        st.lists(st.tuples(st.integers(0, STEP * steps), st.integers(1, 250), st.integers(0, speakers - 1)), max_size=12)
    )
    return activity(0, STEP * steps, [(start, start + length, who) for start, length, who in spans], speakers)


def naive_pairs(full: np.ndarray) -> set[tuple[int, int]]:
    """Every window and speaker with enough frames, but those whose frames all lie in the next window, or in the last one."""
    pairs = set()
    for window in range((len(full) - WINDOW) // STEP + 1):
        start = window * STEP
        for speaker in range(full.shape[1]):
            heard = set(np.flatnonzero(full[start : start + WINDOW, speaker]) + start)
            before = set(np.flatnonzero(full[max(0, start - STEP) : start + STEP, speaker]) + max(0, start - STEP))
            if len(heard) < SETTINGS.min_frames or min(heard) >= start + STEP or (heard < before and window):
                continue
            pairs.add((window, speaker))
    return pairs


def block_of(full: np.ndarray, seed: int = 0) -> Block:
    rng = np.random.default_rng(seed)
    mel, power = rng.random((len(full), 40), np.float32), rng.random(len(full), np.float32) + 0.01
    return choose(mel, power, full, clean_frames(full, SETTINGS.margin), SETTINGS)


@given(speaking())
@settings(max_examples=150, deadline=None)
def test_choices_are_those_of_a_plain_loop(full: np.ndarray) -> None:
    block = block_of(full)
    assert set(zip((block.starts // STEP).tolist(), block.speakers.tolist(), strict=True)) == naive_pairs(full)
    assert len(set(zip(block.starts.tolist(), block.speakers.tolist(), strict=True))) == len(block)
    assert (np.diff(block.starts) >= 0).all()


@given(speaking())
@settings(max_examples=100, deadline=None)
def test_masks_are_clean_where_that_is_long_enough(full: np.ndarray) -> None:
    block = block_of(full)
    masks = block.masks(slice(None))
    for n, (start, speaker) in enumerate(zip(block.starts, block.speakers, strict=True)):
        heard = full[start : start + WINDOW, speaker]
        clean = np.zeros(WINDOW, bool)
        for frame in range(WINDOW):
            at = start + frame
            near = full[max(0, at - SETTINGS.margin) : at + SETTINGS.margin + 1]
            clean[frame] = full[at, speaker] and not np.delete(near, speaker, axis=1).any()
        expected = clean if clean.sum() >= SETTINGS.min_clean else heard
        assert (masks[n] == expected).all() and block.uses_clean[n] == (clean.sum() >= SETTINGS.min_clean)


@given(speaking())
@settings(max_examples=60, deadline=None)
def test_what_is_heard_long_enough_is_in_some_window(full: np.ndarray) -> None:
    block = block_of(full)
    masks = block.masks(slice(None))
    for speaker in range(full.shape[1]):
        covered = np.zeros(len(full), bool)
        for start, mask in zip(block.starts[block.speakers == speaker], masks[block.speakers == speaker], strict=True):
            covered[start : start + WINDOW] |= mask
        run = 0
        for frame in range(len(full)):
            run = run + 1 if full[frame, speaker] else 0
            if run >= WINDOW:  # the speaker is heard for a whole window's length: some of it was used
                assert covered[frame - WINDOW + 1 : frame + 1].any()


def test_crops_are_made_of_the_heard_frames_at_one_level() -> None:
    full = activity(0, 320, [(10, 130, 0), (100, 320, 1)], 2)
    block = block_of(full)
    crops, masks = block.crops(slice(0, 3)), block.masks(slice(0, 3))
    assert crops.shape == (3, WINDOW, 40) and crops.dtype == np.float32
    for crop, mask, start in zip(crops, masks, block.starts[:3], strict=True):
        gain = LEVEL / block.power[start : start + WINDOW][mask].mean()
        np.testing.assert_allclose(crop[mask], block.mel[start : start + WINDOW][mask] * gain, rtol=1e-5)
        assert not crop[~mask].any()


def test_blocks_keep_views_of_their_arrays() -> None:
    full = activity(0, 800, [(0, 800, 0)], 1)
    mel = np.ones((800, 40), np.float32)
    block = choose(mel, np.ones(800, np.float32), full, full, SETTINGS)
    assert block.mel is mel and block.full is full and len(block) == 9


@pytest.mark.parametrize("step", [40, 80, 160])
def test_blocks_that_follow_each_other_choose_what_one_block_chooses(step: int) -> None:
    rng = np.random.default_rng(5)
    settings = WindowSettings(step=step)
    starts = np.cumsum(rng.integers(20, 200, 60))
    full = activity(0, 4800, [(int(at), int(at + rng.integers(5, 190)), int(rng.integers(3))) for at in starts], 3)
    mel, power = rng.random((4800, 40), np.float32), rng.random(4800, np.float32)
    clean = clean_frames(full, settings.margin)
    whole = choose(mel, power, full, clean, settings)
    parts = []
    windows = (4800 - WINDOW) // step + 1
    for first, last in ((0, 3), (3, 4), (4, 11), (11, windows)):
        before = step if first else 0
        here = slice(first * step - before, (last - 1) * step + WINDOW)
        block = choose(mel[here], power[here], full[here], clean[here], settings, before)
        parts += list(zip((block.starts + here.start).tolist(), block.speakers.tolist(), block.uses_clean.tolist(), strict=True))
    assert parts == list(zip(whole.starts.tolist(), whole.speakers.tolist(), whole.uses_clean.tolist(), strict=True))
