"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes says something about the machine and its load, nothing about the code.
settings.register_profile("hocket", deadline=None, print_blob=True)
settings.load_profile("hocket")
