"""What is measured of a model: figures that can be checked by hand, and the alarms that real models give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from made_up_utterances import MadeUp, make, small_config

from common.errors import Code, HocketError
from tts.alarms import Watch, alarms
from tts.dropout import PassContext
from tts.evaluate_loss import heldout_loss, shuffle_text
from tts.reference import InnerSettings, ReferenceTrainer, cut_microbatches, forward_chain
from tts.stages import Stage, build_stages, collate
from tts.synthesis import Line, Sampling, speak_many
from tts.watch import frequencies, measure, perplexity, spread_over_speakers

FRAMES = 40_000


@dataclass
class Told(MadeUp):
    """A made-up utterance that names its speaker."""

    speaker: str = "a"


def named(utterances: list[MadeUp], speaker: str, language: str = "en-US") -> list[MadeUp]:
    return [Told(**{**vars(one), "language": language, "speaker": speaker}) for one in utterances]


def train(utterances: list[MadeUp], frames: int = FRAMES) -> list[Stage]:
    config = small_config(dropout=0.0, code_corruption=0.2)
    trainer = ReferenceTrainer(config, 2, InnerSettings(peak_lr=6e-3, floor=0.05, warmup_frames=1000, total_frames=frames))
    batches = cut_microbatches(utterances, 1, config)
    step = 0
    while trainer.frames_done < frames:
        trainer.inner_step([(step, batches[0])])
        step += 1
    return trainer.stages


@pytest.fixture(scope="module")
def utterances() -> list[MadeUp]:
    return named(make(8), "a")


@pytest.fixture(scope="module")
def trained(utterances: list[MadeUp]) -> list[Stage]:
    torch.set_num_threads(1)
    return train(utterances)


def kinds(watch: Watch) -> set[str]:
    return {one.kind for one in alarms(watch)}


def test_a_trained_model_gives_no_alarm(trained: list[Stage], utterances: list[MadeUp]) -> None:
    watch = measure(trained, utterances)
    assert alarms(watch) == ()
    assert watch.whole.reads_its_text and min(watch.whole.accuracy) > 0.8 and watch.whole.duration_error < 0.2
    assert min(watch.whole.diversity) > 0.8


def test_an_untrained_model_does_not_read_its_text(utterances: list[MadeUp]) -> None:
    for seed in range(3):
        found = alarms(measure(build_stages(small_config(), 2, seed=seed), utterances, generate=2))
        (deaf,) = [one for one in found if one.kind == "text_not_read"]
        assert "this model does not read its text" in deaf.reason


def test_nor_does_one_that_was_trained_on_other_texts(utterances: list[MadeUp]) -> None:
    """Each round of training shows the codes under other texts: what can be learnt is how codes follow one another."""
    config = small_config(dropout=0.0, code_corruption=0.0)
    trainer = ReferenceTrainer(config, 2, InnerSettings(peak_lr=6e-3, floor=0.05, warmup_frames=1000, total_frames=20_000))
    step = 0
    while trainer.frames_done < 20_000:
        shuffled = shuffle_text(utterances, step)
        trainer.inner_step([(step, cut_microbatches(shuffled, 1, config)[0])])
        step += 1
    watch = measure(trainer.stages, utterances)
    assert watch.whole.loss < heldout_loss(build_stages(config, 2), utterances).per_code - 1, "it has learnt something"
    assert "text_not_read" in kinds(watch)


def test_heads_that_say_one_code_are_a_collapse(utterances: list[MadeUp]) -> None:
    stages = build_stages(small_config(), 2, seed=1)
    config, heads = stages[0].config, stages[-1].heads
    with torch.no_grad():
        usual = hidden_states(stages, utterances).mean((0, 1))
        heads.weight.view(config.n_codebooks, config.codebook_size + 1, -1)[:, 5] = 50 * usual
    watch = measure(stages, utterances)
    assert {"collapsed_codes", "codebook_not_learnt", "text_not_read"} <= kinds(watch)
    assert max(watch.whole.diversity) < 0.1


def hidden_states(stages: list[Stage], utterances: list[MadeUp]) -> torch.Tensor:
    """What the heads read, [B, S, D]."""
    batch, ctx = collate(utterances, stages[0].config), PassContext()
    hidden, _ = stages[0].first(batch, ctx)
    for stage in stages[1:]:
        hidden = stage.middle(hidden, batch.side(), ctx)
    return stages[-1].heads.norm(hidden)


def test_the_loss_is_the_held_out_loss(trained: list[Stage], utterances: list[MadeUp]) -> None:
    watch = measure(trained, utterances, generate=0)
    assert watch.whole.loss == pytest.approx(heldout_loss(trained, utterances).per_code, rel=1e-5)
    shuffled = [heldout_loss(trained, shuffle_text(utterances, seed)).per_code for seed in range(3)]
    assert watch.whole.loss_shuffled == pytest.approx(np.mean(shuffled), rel=1e-5)
    assert watch.whole.shuffle_spread == pytest.approx(max(shuffled) - min(shuffled), rel=1e-3, abs=1e-5)
    assert watch.whole.diversity == ()


def test_groups_add_up_to_the_whole(trained: list[Stage], utterances: list[MadeUp]) -> None:
    mixed = [*utterances[:5], *named(utterances[5:], "b", "fr")]
    config = small_config(n_languages=2)
    stages = build_stages(config, 2, seed=4)
    watch = measure(stages, mixed, languages=["en-US", "fr"], generate=4)
    assert [(group.kind, group.name, group.utterances) for group in watch.groups] == [
        ("all", "all", 8), ("speaker", "a", 5), ("speaker", "b", 3), ("language", "en-US", 5), ("language", "fr", 3)
    ]  # fmt: skip
    codes = [sum(config.n_codebooks * (one.n_frames + 1) for one in part) for part in (mixed[:5], mixed[5:])]
    for kind in ("speaker", "language"):
        parts = [group for group in watch.groups if group.kind == kind]
        for name in ("loss", "loss_shuffled"):
            total = sum(getattr(part, name) * count for part, count in zip(parts, codes, strict=True))
            assert getattr(watch.whole, name) == pytest.approx(total / sum(codes))
        assert all(len(part.diversity) == 3 for part in parts)


def test_one_stage_and_many_give_the_same_figures(utterances: list[MadeUp]) -> None:
    config = small_config()
    one, three = (measure(build_stages(config, n, seed=2), utterances, generate=2) for n in (1, 3))
    assert one == three


def test_the_same_utterance_twice_is_counted_twice(trained: list[Stage], utterances: list[MadeUp]) -> None:
    watch = measure(trained, [utterances[0]] * 3 + utterances[1:3], generate=0)
    assert watch.whole.utterances == 5 and watch.whole.duration_error < 0.2


def test_durations_are_compared_with_their_median(utterances: list[MadeUp]) -> None:
    stages = build_stages(small_config(), 1)
    with torch.no_grad():  # 2 frames for every phoneme
        for name, parameter in stages[0].text.duration.named_parameters():
            if name.startswith("out."):
                parameter.fill_(float(np.log(3)) if name == "out.bias" else 0.0)
    durations = np.concatenate([one.durations for one in utterances]).astype(float)
    watch = measure(stages, utterances, generate=0)
    assert watch.whole.duration_error == pytest.approx(np.abs(durations - 2).sum() / durations.sum(), rel=1e-6)
    floor = np.abs(durations - np.median(durations)).sum() / durations.sum()
    assert watch.whole.duration_error_of_median == pytest.approx(floor)


def test_diversity_compares_what_is_spoken_with_the_recording(trained: list[Stage], utterances: list[MadeUp]) -> None:
    config = trained[0].config
    (chosen,) = spread_over_speakers(utterances, 1, 0)
    one = utterances[chosen]
    (codes,) = speak_many(trained, [Line(one.phonemes, one.word_starts, number=chosen, durations=one.durations)], Sampling())
    assert codes.shape == one.codes.shape
    watch = measure(trained, utterances, generate=1, shuffles=1)
    spoken, recorded = (perplexity(frequencies(values, config)) for values in (codes, one.codes))
    assert watch.whole.diversity == pytest.approx(spoken / recorded)


def test_perplexity_counts_codes_that_are_equally_frequent() -> None:
    counts = np.array([[5, 5, 5, 5, 0], [9, 0, 0, 0, 0], [1, 1, 0, 0, 0]])
    assert perplexity(counts).tolist() == pytest.approx([4.0, 1.0, 2.0])


def test_sentences_to_speak_are_spread_over_speakers() -> None:
    many = [*named(make(9), "a"), *named(make(2, seed=1), "b"), *named(make(4, seed=2), "c", "fr")]
    chosen = spread_over_speakers(many, 6, seed=5)
    assert chosen == sorted(set(chosen)) and chosen == spread_over_speakers(many, 6, seed=5)
    assert [sum(many[index].speaker == name for index in chosen) for name in "abc"] == [2, 2, 2]  # type: ignore[attr-defined]
    assert len(spread_over_speakers(many, 100, seed=5)) == len(many)
    assert spread_over_speakers(many, 0, seed=5) == []


def test_too_little_is_refused(trained: list[Stage], utterances: list[MadeUp]) -> None:
    with pytest.raises(HocketError) as caught:
        measure(trained, utterances[:1])
    assert caught.value.code is Code.CORPUS_TOO_SMALL


def test_measuring_leaves_the_model_as_it_is(trained: list[Stage], utterances: list[MadeUp]) -> None:
    before = forward_chain(trained, collate(utterances, trained[0].config), PassContext(seed=1, microbatch_id=2, train=True))
    measure(trained, utterances, generate=1, shuffles=1)
    after = forward_chain(trained, collate(utterances, trained[0].config), PassContext(seed=1, microbatch_id=2, train=True))
    assert torch.equal(before.ce, after.ce)
