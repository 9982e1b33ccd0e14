"""Long texts are cut at sentences and nothing of them is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Good morning. How are you?", ["Good morning.", "How are you?"]),
        ("Dr. Smith lives here. He is in.", ["Dr. Smith lives here.", "He is in."]),
        ("J. S. Bach wrote it.", ["J. S. Bach wrote it."]),
        ("It costs 3.50 dollars. Pay now!", ["It costs 3.50 dollars.", "Pay now!"]),
        ("He said \"Stop.\" Then he left.", ['He said "Stop."', "Then he left."]),
        ("Das ist z.B. Herr Maier. Gut.", ["Das ist z.B. Herr Maier.", "Gut."]),
        ("今日は晴れ。明日は雨。", ["今日は晴れ。", "明日は雨。"]),
        ("A title\n\nThe text begins here.", ["A title", "The text begins here."]),
        ("one line\nof two", ["one line\nof two"]),
        ("  ", []),
    ],
)
def test_sentences_of_a_text(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_long_sentences_are_cut_at_clauses_then_between_words_then_anywhere() -> None:
    assert split_sentences("one two three, four five six, seven", 16) == ["one two three,", "four five six,", "seven"]
    assert split_sentences("one two three four", 9) == ["one two", "three", "four"]
    assert split_sentences("abcdefgh", 3) == ["abc", "def", "gh"]


@given(st.text(alphabet="ab .,!?;\n。、\"Dr1", max_size=80), st.integers(1, 20))
def test_nothing_is_lost_and_no_sentence_is_too_long(text: str, limit: int) -> None:
    sentences = split_sentences(text, limit)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(0 < len(sentence) <= limit and sentence == sentence.strip() for sentence in sentences)
