from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tts import delay

GOLDEN = json.loads((Path(__file__).parent / "golden" / "delay_layout.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_layout_is_the_golden_one(case: dict) -> None:  # type: ignore[type-arg]
    card = GOLDEN["codebook_size"]
    codes, lengths = torch.tensor(case["codes"]), torch.tensor(case["n_frames"])
    assert delay.inputs(codes, lengths, bos=card + 1, eos=card).tolist() == case["inputs"]
    assert delay.targets(codes, lengths, eos=card).tolist() == case["targets"]


@given(st.data(), st.integers(1, 3), st.integers(1, 5), st.integers(1, 9))
def test_every_code_and_one_eos_a_codebook_are_targets(data: st.DataObject, batch: int, books: int, frames: int) -> None:
    card = 7
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, frames), min_size=batch, max_size=batch)))
    codes = torch.tensor(
        data.draw(st.lists(st.integers(0, card - 1), min_size=batch * books * frames, max_size=batch * books * frames))
    ).view(batch, books, frames)
    target = delay.targets(codes, lengths, eos=card)
    seen = delay.inputs(codes, lengths, bos=card + 1, eos=card)
    assert target.shape == seen.shape == (batch, books, delay.n_steps(frames, books))
    for row in range(batch):
        n = int(lengths[row])
        for book in range(books):
            held = target[row, book][target[row, book] != delay.IGNORED].tolist()
            assert held == [*codes[row, book, :n].tolist(), card]
            # The decoder sees at each step what was to be predicted one step before.
            predicted = target[row, book, :-1]
            known = predicted != delay.IGNORED
            assert torch.equal(seen[row, book, 1:][known], predicted[known])
            assert seen[row, book, : book + 1].tolist() == [card + 1] * (book + 1)
            assert (seen[row, book, book + 1 + n :] == card).all()


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**31))
def test_undelay_is_the_inverse(books: int, frames: int, seed: int) -> None:
    codes = torch.randint(0, 50, (2, books, frames), generator=torch.Generator().manual_seed(seed))
    target = delay.targets(codes, torch.tensor([frames, frames]), eos=50)
    assert torch.equal(delay.undelay(target), codes)


def test_what_lies_beyond_an_utterance_is_not_read() -> None:
    codes = torch.arange(12).view(1, 2, 6)
    other = codes.clone()
    other[:, :, 4:] = 99
    lengths = torch.tensor([4])
    assert torch.equal(delay.targets(codes, lengths, eos=50), delay.targets(other, lengths, eos=50))
    assert torch.equal(delay.inputs(codes, lengths, bos=51, eos=50), delay.inputs(other, lengths, bos=51, eos=50))
