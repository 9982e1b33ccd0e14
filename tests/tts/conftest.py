from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Results are compared bit by bit: the number of threads must not vary between two computations."""
    torch.set_num_threads(1)
