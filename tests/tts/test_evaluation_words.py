"""Error rates: what counts as the same word, the edit distance, and the interval of a rate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts.evaluation.words import (
    Change,
    ErrorRate,
    bootstrap_interval,
    changes,
    character_errors,
    edit_distance,
    normalise,
    total,
    word_errors,
)

words = st.lists(st.sampled_from(["a", "b", "c"]), max_size=8)
rates = st.lists(st.builds(ErrorRate, st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Mr. Brown's dog, isn't it?", "mister browns dog isnt it"),
        ("The train left at 8:05.", "the train left at eight oh five"),
        ("Come at 7:00 or 7:30", "come at seven oclock or seven thirty"),
        ("30 well-known books", "thirty well known books"),
        ("1,250 people, 2,000.5 of them", "one thousand two hundred fifty people two thousand point five of them"),
        ("In 1995 and 2010", "in nineteen ninety five and twenty ten"),
        ("the 21st of May", "the twenty first of may"),
        ("$5, $1, or £2.50", "five dollars one dollar or two point five zero pounds"),
        ("$3 million", "three million dollars"),
        ("100% & more", "one hundred percent and more"),
        ("3.14", "three point one four"),
        ("the 1980s and 90s", "the nineteen eighties and nineties"),
        ("dial 0800", "dial zero eight zero zero"),
        ("Café, naïve", "cafe naive"),
        ("OK!", "okay"),
        ("…", ""),
    ],
)
def test_both_ways_of_writing_are_the_same_words(written: str, said: str) -> None:
    assert normalise(written) == said.split()
    assert normalise(said) == said.split()


@given(st.text(max_size=80))
def test_normalised_words_are_letters_and_stay_as_they_are(text: str) -> None:
    found = normalise(text)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in found)
    assert normalise(" ".join(found)) == found


@given(words, words, words)
def test_the_edit_distance_is_a_metric(a: list[str], b: list[str], c: list[str]) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


@given(words, words, st.sampled_from(["a", "b", "c"]))
def test_one_more_word_is_at_most_one_more_error(a: list[str], b: list[str], word: str) -> None:
    assert abs(edit_distance([*a, word], b) - edit_distance(a, b)) <= 1
    assert edit_distance([*a, word], [*b, word]) == edit_distance(a, b)


@given(words, words)
def test_the_changes_lead_from_one_to_the_other_in_as_few_steps(a: list[str], b: list[str]) -> None:
    way = changes(a, b)
    assert [wanted for _, wanted, _ in way if wanted is not None] == a
    assert [found for _, _, found in way if found is not None] == b
    assert sum(change is not Change.SAME for change, _, _ in way) == edit_distance(a, b)
    assert all((change is Change.SAME) == (wanted == found) for change, wanted, found in way)


def test_of_the_shortest_ways_one_that_keeps_most_is_shown() -> None:
    way = changes(["sat", "on", "the", "mat"], ["sat", "on", "mat", "today"])
    assert [change for change, _, _ in way] == [Change.SAME, Change.SAME, Change.MISSING, Change.SAME, Change.ADDED]


def test_rates_of_known_sentences() -> None:
    wanted, heard = normalise("The cat sat on the mat."), normalise("The cat sat on mat today")
    assert word_errors(wanted, heard) == ErrorRate(2, 6)
    assert character_errors(normalise("abc d"), normalise("abd")) == ErrorRate(2, 5)
    assert total([ErrorRate(2, 6), ErrorRate(0, 4)]).rate == 0.2
    assert total([]).rate == 0.0
    assert word_errors(["a"], ["b", "c", "d"]).rate == 3.0


@settings(max_examples=40)
@given(rates, st.integers(-(2**70), 2**70))
def test_the_interval_is_a_function_of_the_seed_and_lies_among_the_sentences(found: list[ErrorRate], seed: int) -> None:
    interval = bootstrap_interval(found, seed, draws=200)
    assert interval is not None and interval == bootstrap_interval(found, seed, draws=200)
    low, high = interval
    singles = [one.rate for one in found]
    assert min(singles) - 1e-9 <= low <= high <= max(singles) + 1e-9
    wide = bootstrap_interval(found, seed, draws=200, level=0.99)
    assert wide is not None and wide[0] <= low and high <= wide[1]


def test_the_interval_covers_the_rate_and_narrows_with_more_sentences() -> None:
    few = [ErrorRate(number % 3, 9) for number in range(12)]
    (low, high), (lower, higher) = (bootstrap_interval(few * times, 1) or (0, 0) for times in (1, 16))
    assert low < lower < total(few).rate < higher < high
    assert 3 < (high - low) / (higher - lower) < 5, "as one over the square root of their number"
    assert bootstrap_interval([], 0) is None
    assert bootstrap_interval(few, 1) != bootstrap_interval(few, 2)
