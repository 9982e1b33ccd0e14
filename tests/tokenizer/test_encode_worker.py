"""What a worker is told reaches the models that it loads."""

from __future__ import annotations

import pytest

from common.faults import NO_FAULTS
from tokenizer.codec import load_codec
from tokenizer.encode_worker import Worker


@pytest.mark.parametrize("batch_size", [1, 7])
def test_the_batch_size_that_a_person_set_is_the_encoder_s(batch_size: int) -> None:
    pytest.importorskip("resemblyzer", reason="the extra recordings is not installed")
    worker = Worker(load_codec, "cpu", NO_FAULTS, lambda answer: None, batch_size=batch_size)
    assert worker._recording_tools().encoder.batch_size == batch_size


def test_without_one_it_follows_the_free_memory() -> None:
    pytest.importorskip("resemblyzer", reason="the extra recordings is not installed")
    assert Worker(load_codec, "cpu", NO_FAULTS, lambda answer: None)._recording_tools().encoder.batch_size > 7
