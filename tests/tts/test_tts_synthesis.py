from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up_utterances import MadeUp, make, small_config
from numpy.typing import NDArray

from common.errors import Code, HocketError
from tts import delay
from tts.dropout import PassContext
from tts.durations import fit, stretch
from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches
from tts.sampling import choose, unit_draw
from tts.stages import Stage, build_stages, collate
from tts.synthesis import Line, Sampling, predict_durations, speak, speak_in_steps, speak_many


@pytest.fixture(scope="module")
def trained() -> tuple[list[Stage], list]:  # type: ignore[type-arg]
    """A model that has learnt six utterances by heart."""
    torch.set_num_threads(1)
    config = small_config(dropout=0.0, code_corruption=0.1)
    utterances = make(6, config=config)
    trainer = ReferenceTrainer(config, 2, InnerSettings(peak_lr=6e-3, floor=0.05, warmup_frames=1000, total_frames=40_000))
    batches = cut_microbatches(utterances, 1, config)
    step = 0
    while trainer.frames_done < 40_000:
        trainer.inner_step([(step, batches[0])])
        step += 1
    return trainer.stages, utterances


def say(stages: list[Stage], utterance: MadeUp, **options: Any) -> NDArray[np.uint16]:
    """Speak with the utterance's own durations."""
    return speak(stages, utterance.phonemes, utterance.word_starts, durations=utterance.durations, **options)


def mixed_at_once(stages: list[Stage], utterance: MadeUp, codes: NDArray[np.uint16], guidance: float) -> torch.Tensor:
    """What the guided model says of every step [S, K, card] when it is given all codes at once, without a cache."""
    config = stages[0].config
    spoken = type(utterance)(**{**vars(utterance), "codes": codes})
    batch, ctx = collate([spoken, spoken], config), PassContext()
    with torch.no_grad():
        states, _ = stages[0].text.encode(batch.phonemes, batch.word_starts, batch.n_phonemes, batch.speaker, batch.language, ctx)
        hidden = stages[0].text.condition(states, batch.durations, batch.n_frames, torch.tensor([False, True]), ctx)
        hidden = hidden + stages[0].codes(batch.codes, batch.n_frames, ctx)
        for stage in stages:
            hidden = stage._run_blocks(hidden, ctx)
        given_text, without = stages[-1].heads.logits(hidden)[..., : config.codebook_size].log_softmax(-1)
    mixed: torch.Tensor = without + guidance * (given_text - without)
    return mixed


def test_a_few_utterances_are_recalled(trained) -> None:  # type: ignore[no-untyped-def]
    stages, utterances = trained
    right = total = 0
    for utterance in utterances:
        codes = say(stages, utterance, temperature=0.0, guidance=1.0)
        assert codes.shape == utterance.codes.shape and codes.dtype == np.uint16
        right, total = right + int((codes == utterance.codes).sum()), total + codes.size
    assert right / total > 0.9
    predicted = np.concatenate([predict_durations(stages[0], u.phonemes, u.word_starts) for u in utterances])
    true = np.concatenate([u.durations for u in utterances])
    assert np.abs(predicted - true).mean() < 0.5


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_cached_greedy_speech_is_what_the_whole_sequence_at_once_says(guidance: float) -> None:
    config = small_config()
    stages = build_stages(config, 3, seed=5)
    (utterance,) = make(1, seed=3, config=config)
    codes = say(stages, utterance, temperature=0.0, guidance=guidance)
    mixed = mixed_at_once(stages, utterance, codes, guidance)
    expected = delay.undelay(mixed.argmax(-1).T[None])[0]
    assert np.array_equal(expected.numpy(), codes)


@pytest.mark.parametrize("rate", [0.7, 1.0, 1.4])
def test_the_length_is_exactly_the_rate_times_the_durations(rate: float) -> None:
    config = small_config()
    stages = build_stages(config, 1, seed=1)
    (utterance,) = make(1, seed=8, config=config)
    natural = predict_durations(stages[0], utterance.phonemes, utterance.word_starts)
    codes = speak(stages, utterance.phonemes, utterance.word_starts, rate=rate, guidance=1.0)
    assert codes.shape[1] == max(1, int(np.floor(natural.sum() * rate + 0.5)))
    assert codes.max() < config.codebook_size  # no EOS among them
    given = say(stages, utterance, rate=rate, guidance=1.0)
    assert given.shape[1] == int(np.floor(utterance.n_frames * rate + 0.5))


def test_draws_depend_on_the_seed_alone() -> None:
    config = small_config()
    stages = build_stages(config, 2, seed=1)
    (utterance,) = make(1, seed=4, config=config)

    torch.manual_seed(1)
    first = say(stages, utterance, seed=1, temperature=1.0)
    torch.manual_seed(2)
    assert np.array_equal(first, say(stages, utterance, seed=1, temperature=1.0))
    assert not np.array_equal(first, say(stages, utterance, seed=2, temperature=1.0))


def test_the_number_of_stages_does_not_matter() -> None:
    config = small_config()
    (utterance,) = make(1, seed=4, config=config)
    spoken = [speak(build_stages(config, n, seed=6), utterance.phonemes, utterance.word_starts) for n in (1, 3)]
    assert np.array_equal(spoken[0], spoken[1])


@given(st.lists(st.floats(0, 40), min_size=1, max_size=60), st.floats(0.3, 3.0))
def test_stretched_durations_have_the_exact_total(durations: list[float], rate: float) -> None:
    lengths = stretch(np.array(durations), rate)
    total = max(1, int(np.floor(np.cumsum(np.array(durations))[-1] * rate + 0.5)))
    assert lengths.sum() == total and lengths.min() >= 0
    if total >= len(durations):
        assert lengths.min() >= 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=50), st.integers(1, 400))
def test_fitted_durations_sum_to_the_frames(durations: list[int], frames: int) -> None:
    lengths = fit(np.array(durations), frames)
    assert lengths.sum() == frames and lengths.min() >= 0


def test_stretch_at_rate_one_changes_nothing() -> None:
    durations = np.array([1, 5, 2, 9])
    assert np.array_equal(stretch(durations, 1.0), durations)


def test_choice_follows_the_probabilities() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2, 1e-9]]).log()
    draws = [unit_draw(9, 0, frame, 0) for frame in range(4000)]
    counts = np.bincount([int(choose(logits, [draw], 1.0, 0)) for draw in draws], minlength=4) / len(draws)
    assert np.abs(counts - [0.5, 0.3, 0.2, 0]).max() < 0.03
    assert {int(choose(logits, [draw], 1.0, 2)) for draw in draws} == {0, 1}
    assert int(choose(logits, [0.99], 0.0, 0)) == 0
    assert int(choose(logits, [0.0], 5.0, 3)) == 0


def test_bad_requests_are_refused() -> None:
    config = small_config()
    stages = build_stages(config, 2)
    with pytest.raises(HocketError) as caught:
        speak(stages, np.array([], int), np.array([], int))
    assert caught.value.code is Code.NO_PHONEMES
    with pytest.raises(HocketError) as caught:
        speak(stages, np.array([config.n_phonemes]), np.array([0]))
    assert caught.value.code is Code.INPUT_INVALID
    with pytest.raises(HocketError) as caught:
        speak(stages, np.array([1]), np.array([0]), rate=0.0)
    assert caught.value.code is Code.OPTION_INVALID
    with pytest.raises(HocketError) as caught:
        speak(stages[:1], np.array([1]), np.array([0]))
    assert caught.value.code is Code.STAGES_INVALID
    with pytest.raises(HocketError) as caught:
        speak(stages, np.array([1] * 10), np.array([0] * 10), durations=np.array([600] * 10))
    assert caught.value.code is Code.INPUT_INVALID


FIXED_LINES = 4


def fixed_lines(config) -> list[Line]:  # type: ignore[no-untyped-def]
    """Lines of different lengths, as a batch of sentences has them."""
    utterances = make(FIXED_LINES, seed=12, config=config)
    return [Line(u.phonemes, u.word_starts, number=index, durations=u.durations) for index, u in enumerate(utterances)]


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_lines_are_spoken_alike_alone_in_a_batch_and_streamed(guidance: float) -> None:
    config = small_config()
    stages = build_stages(config, 2, seed=3)
    how = Sampling(seed=7, temperature=0.9, top_k=0, guidance=guidance)
    lines = fixed_lines(config)
    together = speak_many(stages, lines, how)
    assert len({codes.shape[1] for codes in together}) > 1, "the lines differ in length"
    for line, codes in zip(lines, together, strict=True):
        assert np.array_equal(speak_many(stages, [line], how)[0], codes)
        streamed = [frame for (frame,) in speak_in_steps(stages, [line], how)]
        assert {frame.shape[1] for frame in streamed} <= {0, 1}
        assert np.array_equal(np.concatenate(streamed, axis=1), codes)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_drawn_speech_with_cached_keys_is_what_the_whole_sequence_draws(guidance: float) -> None:
    config = small_config()
    stages = build_stages(config, 2, seed=5)
    (utterance,) = make(1, seed=3, config=config)
    how = Sampling(seed=11, temperature=0.8, top_k=6, guidance=guidance)
    line = Line(utterance.phonemes, utterance.word_starts, number=2, durations=utterance.durations)
    (codes,) = speak_many(stages, [line], how)
    mixed = mixed_at_once(stages, utterance, codes, guidance)
    again = np.empty_like(codes)
    for book in range(config.n_codebooks):
        for frame in range(codes.shape[1]):
            draw = unit_draw(how.seed, line.number, frame, book)
            again[book, frame] = int(choose(mixed[frame + book, book][None], [draw], how.temperature, how.top_k))
    assert np.array_equal(again, codes)


def test_a_line_s_number_names_its_draws() -> None:
    config = small_config()
    stages = build_stages(config, 1, seed=1)
    (utterance,) = make(1, seed=4, config=config)
    u = utterance
    lines = [Line(u.phonemes, u.word_starts, number=number, durations=u.durations) for number in (0, 1, 0)]
    first, second, third = speak_many(stages, lines, Sampling(temperature=1.0))
    assert np.array_equal(first, third) and not np.array_equal(first, second)


WRONG = [{"rate": 0.0}, {"rate": float("nan")}, {"guidance": -1.0}, {"temperature": -0.1}, {"top_k": -1}]


@pytest.mark.parametrize("wrong", WRONG)
def test_sampling_that_cannot_be_honoured_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HocketError) as caught:
        Sampling(**wrong)
    assert caught.value.code is Code.OPTION_INVALID
