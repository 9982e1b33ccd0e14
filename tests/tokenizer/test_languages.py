"""Language tags: canonical out, advice for what is no tag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from tokenizer.languages import check_language, language_of_country


@pytest.mark.parametrize(
    ("tag", "canonical"),
    [
        ("en", "en"), ("EN_us", "en-US"), ("en-us", "en-US"), ("eng", "en"), ("ja", "ja"), ("ja_JP", "ja-JP"), ("fr-CA", "fr-CA"),
        ("zh-Hans-CN", "zh-Hans-CN"), ("en-UK", "en-GB"), ("DE", "de"), ("kr", "kr"), ("sv", "sv"), (" pt-br ", "pt-BR"),
    ],
)  # fmt: skip
def test_tags_become_canonical(tag: str, canonical: str) -> None:
    assert check_language(tag) == canonical
    assert check_language(canonical) == canonical


@pytest.mark.parametrize(
    ("tag", "advice"),
    [
        ("JP", "use ja"), ("jp", "use ja"), ("JP-ja", "use ja"), ("CN", "use zh"), ("cz", "use cs"), ("UA", "use uk"),
        ("dk", "use da"),
        ("KR", "use ko for"), ("SV", "sv if you mean"), ("English", "use en"), ("japanese", "use ja"),
    ],
)  # fmt: skip
def test_countries_and_names_are_refused_with_advice(tag: str, advice: str) -> None:
    with pytest.raises(HocketError) as caught:
        check_language(tag)
    assert caught.value.code is Code.LANGUAGE_REFUSED
    assert advice in caught.value.remedy
    assert "\n" not in caught.value.line() and "H202" in caught.value.line()


NO_TAGS = ["", "xx", "und", "mul", "x-foo", "en-u-ca-buddhist", "en-us-", "12", "en US", "klingon!", "qaa-x-y"]


@pytest.mark.parametrize("tag", NO_TAGS)
def test_what_names_no_language_is_refused(tag: str) -> None:
    with pytest.raises(HocketError) as caught:
        check_language(tag)
    assert caught.value.code is Code.LANGUAGE_REFUSED


@given(st.text(max_size=12))
def test_any_text_gives_a_stable_tag_or_a_numbered_error(text: str) -> None:
    try:
        canonical = check_language(text)
    except HocketError as error:
        assert error.code is Code.LANGUAGE_REFUSED
    else:
        assert check_language(canonical) == canonical


def test_a_country_without_entry_has_no_language() -> None:
    assert language_of_country("JP") == "ja"
    assert language_of_country("XX") is None
