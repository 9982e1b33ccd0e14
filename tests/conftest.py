"""Settings for all tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))  # what tests of several rooms share

# How long one example takes says something about the machine and its load, nothing about the code.
settings.register_profile("hocket", deadline=None, print_blob=True)
settings.load_profile("hocket")
