from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_utterances import CARD, CODEBOOKS, make, small_config

from common.errors import Code, HocketError
from tts.batch import Side, own_tensor
from tts.dropout import PassContext, keep_mask
from tts.partition import partition
from tts.reference import cut_microbatches, forward_chain
from tts.stages import build_stage, build_stages, collate, hidden_shape, merged_state
from tts.synthesis import predict_durations
from tts.text_front import expand

CALM = PassContext(train=False)


def test_initial_values_do_not_depend_on_the_cut_nor_on_global_draws() -> None:
    config = small_config()
    torch.manual_seed(1)
    whole = merged_state(build_stages(config, 1, seed=4))
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    for n in (2, 3, 4, 5):
        cut = merged_state(build_stages(config, n, seed=4))
        assert set(cut) == set(whole)
        assert all(torch.equal(cut[name], value) for name, value in whole.items())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(merged_state(build_stages(config, 1, seed=5))["codes.weight"], whole["codes.weight"])


def test_a_stage_holds_its_own_parameters_and_no_others() -> None:
    config = small_config()
    stages = [build_stage(config, i, 3) for i in range(3)]
    names = [set(stage.shapes()) for stage in stages]
    assert not names[0] & names[1] and not names[0] & names[2] and not names[1] & names[2]
    assert any(name.startswith("text.") for name in names[0]) and not any(
        name.startswith("text.") for name in names[1] | names[2]
    )
    assert "heads.weight" in names[2]
    for stage, spec in zip(stages, partition(config, 3), strict=True):
        assert {int(name.split(".")[1]) for name in stage.shapes() if name.startswith("blocks.")} == set(spec.layers)
    with pytest.raises(HocketError) as caught:
        build_stage(config, 3, 3)
    assert caught.value.code is Code.STAGES_INVALID


def test_counts_are_codes_and_one_eos_a_codebook_and_the_first_loss_is_uniform() -> None:
    config = small_config()
    utterances = make(5, config=config)
    sums = forward_chain(build_stages(config, 2), collate(utterances, config), CALM)
    frames = sum(u.n_frames for u in utterances)
    assert sums.count.tolist() == [frames + len(utterances)] * CODEBOOKS
    assert float(sums.ce.sum() / sums.count.sum()) == pytest.approx(math.log(CARD + 1), rel=0.02)
    total, count = sums.auxiliary["duration"]
    assert count == sum(len(u.phonemes) for u in utterances) and float(total) > 0
    expected = float((sums.ce * torch.tensor(config.weights)).sum() + total * config.duration_weight)
    assert float(sums.objective) == pytest.approx(expected, rel=1e-5)


def test_accuracy_and_duration_error_are_told_as_sums() -> None:
    config = small_config()
    utterances = make(5, config=config)
    stages = build_stages(config, 2, seed=3)
    batch = collate(utterances, config)
    sums = forward_chain(stages, batch, CALM)
    with torch.no_grad():
        hidden, _ = stages[0].first(batch, CALM)
        likeliest = stages[1].heads.logits(stages[1].middle(hidden, batch.side(), CALM)).argmax(-1)
    for book in range(CODEBOOKS):
        right, count = sums.auxiliary[f"accuracy.{book}"]
        expected = 0
        for row, one in enumerate(utterances):
            said = likeliest[row, book : book + one.n_frames + 1, book].numpy()
            expected += int((said == [*one.codes[book], config.eos]).sum())
        assert (float(right), count) == (expected, int(sums.count[book]))
    error, frames = sums.auxiliary["duration_error"]
    assert frames == batch.frames
    predicted = [predict_durations(stages[0], one.phonemes, one.word_starts) for one in utterances]
    wrong = sum(abs(said - one.durations).sum() for said, one in zip(predicted, utterances, strict=True))
    assert float(error) == pytest.approx(wrong, rel=1e-4)


def test_sums_do_not_depend_on_padding_or_on_the_company() -> None:
    config = small_config()
    stages = build_stages(config, 2, seed=2)
    utterances = make(6, seed=9, config=config)
    together = forward_chain(stages, collate(utterances, config), CALM)
    alone = [forward_chain(stages, collate([u], config), CALM) for u in utterances]
    assert torch.allclose(together.ce, torch.stack([s.ce for s in alone]).sum(0), rtol=1e-4)
    assert torch.equal(together.count, torch.stack([s.count for s in alone]).sum(0))
    assert float(together.objective) == pytest.approx(sum(float(s.objective) for s in alone), rel=1e-4)


def test_the_decoder_does_not_see_what_it_is_to_predict() -> None:
    config = small_config()
    stage = build_stage(config, 0, 1, seed=2)
    (utterance,) = make(1, config=config)
    batch = collate([utterance], config)
    frame = utterance.n_frames // 2
    changed = replace(batch, codes=batch.codes.clone())
    changed.codes[:, :, frame] = (changed.codes[:, :, frame] + 1) % CARD
    with torch.no_grad():
        one, two = (stage.heads.logits(stage.first(b, CALM)[0]) for b in (batch, changed))
    # Codebook 0 of the frame is an input from step frame + 1 on, and of nothing before.
    assert torch.equal(one[:, : frame + 1], two[:, : frame + 1])
    assert not torch.equal(one[:, frame + 1], two[:, frame + 1])


def test_a_dropped_condition_hides_the_text() -> None:
    config = small_config(cond_dropout=0.5, dropout=0.0, code_corruption=0.0)
    stage = build_stage(config, 0, 1, seed=2)
    utterances = make(8, config=config)
    batch = collate(utterances, config)
    other = replace(batch, phonemes=(batch.phonemes % (config.n_phonemes - 1) + 1) * (batch.phonemes > 0))
    ctx = PassContext(seed=1, microbatch_id=3, train=True)
    with torch.no_grad():
        one, two = stage.first(batch, ctx)[0], stage.first(other, ctx)[0]
    same = [torch.equal(a, b) for a, b in zip(one, two, strict=True)]
    assert 0 < sum(same) < len(same)


def test_the_duration_loss_trains_the_predictor_alone() -> None:
    config = small_config()
    stage = build_stage(config, 0, 2, seed=2)
    _, sums = stage.first(collate(make(3, config=config), config), CALM)
    sums.objective.backward()
    touched = {name for name, p in stage.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    assert touched and all(name.startswith("text.duration.") for name in touched)


def test_other_weights_can_be_used_without_touching_the_stage() -> None:
    config = small_config()
    stages, others = build_stages(config, 2, seed=1), build_stages(config, 2, seed=2)
    before = {name: value.clone() for name, value in merged_state(stages).items()}
    batch = collate(make(3, config=config), config)
    bound = [stage.with_weights(dict(other.named_parameters())) for stage, other in zip(stages, others, strict=True)]
    assert torch.equal(forward_chain(bound, batch, CALM).ce, forward_chain(others, batch, CALM).ce)
    assert not torch.equal(forward_chain(stages, batch, CALM).ce, forward_chain(others, batch, CALM).ce)
    assert all(torch.equal(value, before[name]) for name, value in merged_state(stages).items())
    missing = dict(others[1].named_parameters())
    missing.pop("heads.weight")
    with pytest.raises(RuntimeError):
        stages[1].with_weights(missing).last(torch.zeros(hidden_shape(config, batch.side())), batch.side(), CALM)


def test_dropout_masks_have_the_share_and_the_scale() -> None:
    like, ctx = torch.zeros(200, 100), PassContext(seed=1, microbatch_id=2, train=True)
    mask = keep_mask(like, 0.25, ctx, "a")
    assert mask is not None and mask.unique().tolist() == pytest.approx([0.0, 256 / 192])
    assert float(mask.mean()) == pytest.approx(1, abs=0.02)
    again, other = keep_mask(like, 0.25, ctx, "a"), keep_mask(like, 0.25, ctx, "b")
    assert again is not None and other is not None and torch.equal(mask, again) and not torch.equal(mask, other)
    assert keep_mask(like, 0.25, PassContext(seed=1, microbatch_id=2), "a") is None
    assert keep_mask(like, 0.0, ctx, "a") is None


def test_the_side_tensors_survive_the_network() -> None:
    config = small_config()
    side = collate(make(3, config=config), config).side()
    arrays = side.arrays()
    assert arrays["codes"].dtype == np.uint16
    back = Side.from_arrays(arrays, config)
    for name, value in vars(side).items():
        assert torch.equal(value, getattr(back, name)) and value.dtype == getattr(back, name).dtype, name


@pytest.mark.parametrize("name", ["codes", "n_frames", "speaker", "language"])
def test_side_tensors_that_do_not_fit_are_refused(name: str) -> None:
    config = small_config()
    good = collate(make(3, config=config), config).side().arrays()
    bad: dict[str, list[np.ndarray]] = {  # type: ignore[type-arg]
        "codes": [
            good["codes"][:, :2],
            good["codes"] + CARD,
            good["codes"].astype(np.float32),
            good["codes"][:, :, :0],
            np.zeros((3, CODEBOOKS, config.max_frames + 1), np.uint16),
        ],
        "n_frames": [good["n_frames"] * 0, good["n_frames"] + 100, good["n_frames"][:2], good["n_frames"] * 1.0],
        "speaker": [good["speaker"][:, :1], good["speaker"] * np.nan, good["speaker"].astype(np.int64)],
        "language": [good["language"] + 1, good["language"] - 1, good["language"][:0]],
    }
    for array in bad[name]:
        with pytest.raises(HocketError) as caught:
            Side.from_arrays({**good, name: array}, config)
        assert caught.value.code in (Code.INPUT_INVALID, Code.NOT_FINITE)
    with pytest.raises(HocketError):
        Side.from_arrays({key: value for key, value in good.items() if key != name}, config)


def test_hidden_states_of_another_shape_are_refused() -> None:
    config = small_config()
    stages = build_stages(config, 3)
    side = collate(make(2, config=config), config).side()
    shape = hidden_shape(config, side)
    for wrong in (torch.zeros(shape[0], shape[1] - 1, shape[2]), torch.zeros(shape, dtype=torch.int64), torch.zeros(shape[1:])):
        for call in (stages[1].middle, stages[2].last):
            with pytest.raises(HocketError) as caught:
                call(wrong, side, CALM)
            assert caught.value.code is Code.INPUT_INVALID


def test_damaged_utterances_are_named() -> None:
    config = small_config()
    (good,) = make(1, config=config)
    broken = [
        replace(good, durations=good.durations + 1),
        replace(good, codes=good.codes[:, :-1]),
        replace(good, codes=good.codes + CARD),
        replace(good, phonemes=good.phonemes + config.n_phonemes),
        replace(good, word_starts=good.word_starts[:-1]),
        replace(good, codes=good.codes[:1]),
        replace(good, speaker_embedding=np.zeros(3, np.float32)),
        replace(good, speaker_embedding=np.full(config.speaker_dim, np.nan, np.float32)),
        replace(good, word_starts=good.word_starts + 2),
    ]
    for utterance in broken:
        with pytest.raises(HocketError) as caught:
            collate([utterance], config)
        assert caught.value.code is Code.SHARD_DAMAGED
    with pytest.raises(HocketError) as caught:
        collate([good], config, ["fr-FR"])
    assert caught.value.code is Code.LANGUAGE_REFUSED
    with pytest.raises(HocketError):
        collate([], config)
    two = small_config(n_languages=2)
    assert collate([good], two, ["fr-FR", "en-US"]).language.tolist() == [1]
    embedding = np.arange(config.speaker_dim, dtype=np.float32)
    assert collate([replace(good, speaker_embedding=embedding)], config).speaker[0].tolist() == embedding.tolist()


def test_the_speaker_and_the_language_are_heard() -> None:
    config = small_config(n_languages=2)
    stage = build_stage(config, 0, 1, seed=1)
    batch = collate(make(1, config=config), config)
    with torch.no_grad():
        plain = stage.whole(batch, CALM).ce
        for changed in (replace(batch, speaker=batch.speaker + 1), replace(batch, language=batch.language + 1)):
            assert not torch.equal(stage.whole(changed, CALM).ce, plain)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(lambda row: sum(row) > 0), min_size=1, max_size=3))
def test_expansion_follows_the_durations(rows: list[list[int]]) -> None:
    width, frames = max(map(len, rows)), max(map(sum, rows))
    durations = torch.zeros(len(rows), width, dtype=torch.int64)
    for number, row in enumerate(rows):
        durations[number, : len(row)] = torch.tensor(row)
    index, features = expand(durations, frames)
    for number, row in enumerate(rows):
        owner = np.repeat(np.arange(len(row)), row)
        assert index[number, : sum(row)].tolist() == owner.tolist()
        for frame, phone in enumerate(owner):
            place, d = frame - sum(row[:phone]), row[phone]
            expected = [place / d, (d - 1 - place) / d, math.log(d)]
            assert features[number, frame].tolist() == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_microbatches_are_a_cut_of_the_sorted_list(count: int, parts: int, seed: int) -> None:
    config = small_config()
    utterances = make(count, seed=seed, config=config)
    batches = cut_microbatches(utterances, parts, config)
    assert len(batches) == min(count, parts)
    lengths = [int(n) for batch in batches for n in batch.n_frames]
    assert lengths == sorted(u.n_frames for u in utterances)
    longest = max(lengths)
    if len(batches) > 1:
        assert max(b.frames for b in batches) - min(b.frames for b in batches) <= 2 * longest


def test_own_tensor_copies() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = own_tensor(array)
    array[0, 0] = 9
    assert tensor[0, 0] == 0 and tensor.data_ptr() % 64 == 0
