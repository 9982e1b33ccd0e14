"""A cache holds what was used last, and no more bytes than it may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenizer.byte_cache import ByteCache

STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.booleans()), max_size=40)


@given(STEPS, st.integers(0, 100))
def test_a_cache_is_bounded_and_drops_what_was_used_longest_ago(steps: list[tuple[int, int, bool]], most: int) -> None:
    cache: ByteCache[int, int] = ByteCache(most)
    used: dict[int, int] = {}  # key -> size, the one used last at the end
    for key, size, put in steps:
        if put:
            cache.put(key, size, size)
            used.pop(key, None)
            used[key] = size
            while sum(used.values()) > most and len(used) > 1:
                used.pop(next(iter(used)))
        else:
            assert cache.get(key) == used.get(key)
            if key in used:
                used[key] = used.pop(key)
        assert cache.held_bytes == sum(used.values()) and all((one in cache) == (one in used) for one in range(7))
        assert cache.held_bytes <= most or len(used) == 1
