"""Attacks on a run, each a small class. `catalogue` has them all by name."""
