"""Compact alignments: one phoneme index a frame, no matrix of phonemes by frames, and sums in float32 whatever computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_up_utterances import small_config
from torch import Tensor

from tts.batch import TextBatch
from tts.dropout import PassContext
from tts.stages import build_stage
from tts.text_front import expand

CONFIG = small_config(max_frames=20_000)


def long_batch(phonemes: int, frames: int) -> TextBatch:
    """One utterance of so many phonemes and frames."""
    draw = np.random.default_rng(phonemes + frames)
    ends = np.sort(draw.choice(np.arange(1, frames), phonemes - 1, replace=False))
    lengths = torch.from_numpy(np.diff(ends, prepend=0, append=frames))
    return TextBatch(
        phonemes=torch.from_numpy(draw.integers(1, CONFIG.n_phonemes, (1, phonemes))),
        word_starts=torch.zeros(1, phonemes, dtype=torch.int64),
        n_phonemes=torch.tensor([phonemes]),
        durations=lengths[None],
        codes=torch.from_numpy(draw.integers(0, CONFIG.codebook_size, (1, CONFIG.n_codebooks, frames))),
        n_frames=torch.tensor([frames]),
        speaker=torch.zeros(1, CONFIG.speaker_dim),
        language=torch.zeros(1, dtype=torch.int64),
    )


def kept_sizes(phonemes: int, frames: int) -> list[int]:
    """Elements of every tensor that stage 0 of three keeps for its backward, which is run."""
    stage = build_stage(CONFIG, 0, 3, seed=1)
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, local = stage.first(long_batch(phonemes, frames), PassContext(3, 0, train=True))
    (hidden.square().sum() + local.objective).backward()
    return sizes


def test_no_tensor_has_a_number_for_every_phoneme_and_frame() -> None:
    phonemes, frames = 400, 4000
    widest = 3 * CONFIG.d_model  # that one frame may take: queries, keys and values
    sizes = kept_sizes(phonemes, frames)
    assert max(sizes) <= (frames + CONFIG.n_codebooks) * widest < phonemes * frames
    more_text, more_time = kept_sizes(2 * phonemes, frames), kept_sizes(phonemes, 2 * frames)
    assert sum(more_text) < 1.2 * sum(sizes), "twice the phonemes cost little: the frames are what is kept"
    assert sum(more_time) < 2.05 * sum(sizes), "and memory is linear in the frames"


def test_an_alignment_is_one_index_a_frame() -> None:
    durations = torch.tensor([[2, 0, 3, 1], [1, 1, 0, 0]])
    index, features = expand(durations, 6)
    assert index.tolist()[0] == [0, 0, 2, 2, 2, 3] and index.tolist()[1][:2] == [0, 1]
    dense = torch.zeros(6, 4)
    dense[torch.arange(6), index[0]] = 1
    assert dense.sum(0).tolist() == durations[0].tolist()
    assert features[0, 2].tolist() == pytest.approx([0.0, 2 / 3, np.log(3)])


def test_a_gather_sums_its_gradients_in_float32_also_where_bfloat16_computes() -> None:
    # A phoneme that lasts 4093 frames adds 4093 gradients up; in bfloat16 a sum stops growing at 256 times its terms.
    frames = 4096
    front = build_stage(small_config(max_frames=20_000, frame_layers=0), 0, 1, seed=1).text
    durations = torch.tensor([1, frames - 3, 1, 1])
    states = torch.randn(1, 4, front.config.text_dim, generator=torch.Generator().manual_seed(1)).requires_grad_()
    taken: dict[str, Tensor] = {}

    def condition() -> Tensor:
        return front.condition(states, durations[None], torch.tensor([frames]), None, PassContext(train=False))

    for name, enabled in (("plain", False), ("bfloat16", True)):
        states.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = condition()
        assert found.dtype == torch.float32
        (found[0, :, 0].sum() + found[0, :, 1].square().sum()).backward()
        assert states.grad is not None and states.grad.dtype == torch.float32
        taken[name] = states.grad[0, 1].clone()
    error = (taken["bfloat16"] - taken["plain"]).norm() / taken["plain"].norm()
    assert error < 0.02, f"relative error {float(error):.3f}"
