"""Malformed messages, thrown at the real services: what `hocket fuzz` does."""
