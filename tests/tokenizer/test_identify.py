"""A corpus in another language than it is said to be is found out; short prompts and typos are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer.corpus import default_corpus
from tokenizer.fronts.identify import FEWEST_WORDS, LEXICONS, judge_language, likely_language

SPEECH = Path(__file__).resolve().parents[3] / "shared" / "speech"
SAMPLES = {
    "en": "The boat from London was late again, and nobody on the quay knew when the next one would come in.",
    "fr": "Le bateau de Londres était encore en retard, et personne sur le quai ne savait quand viendrait le suivant.",
    "es": "El barco de Londres llegó tarde otra vez, y nadie en el muelle sabía cuándo vendría el siguiente.",
    "it": "Il battello da Londra era di nuovo in ritardo, e nessuno sul molo sapeva quando sarebbe arrivato il prossimo.",
    "de": "Das Schiff aus London hatte wieder Verspätung, und niemand am Kai wusste, wann das nächste kommen würde.",
    "ru": "Корабль из Лондона опять опоздал, и никто на причале не знал, когда придёт следующий.",
}


@pytest.mark.parametrize("language", SAMPLES)
def test_texts_fit_their_own_language_and_no_other(language: str) -> None:
    texts = [SAMPLES[language]] * 5
    for said in SAMPLES:
        verdict = likely_language(texts, said)
        assert verdict.fits == (said == language)
        assert verdict.fits or (verdict.likely == language and language in verdict.reason)


def test_a_region_is_no_other_language() -> None:
    assert likely_language([SAMPLES["fr"]] * 3, "fr-CA").fits


def texts_of(folder: Path) -> list[str]:
    return [line.split("|")[-1] for line in (folder / "metadata.csv").read_text(encoding="utf-8").splitlines() if line]


def test_the_shipped_corpus_is_english() -> None:
    assert likely_language(texts_of(default_corpus()), "en-US").fits
    assert likely_language(texts_of(default_corpus()), "de").likely == "en"


@pytest.mark.skipif(not SPEECH.is_dir(), reason="no recordings beside the checkout")
def test_prompts_of_a_word_or_two_and_typos_are_no_evidence_against_them() -> None:
    english, french = texts_of(SPEECH / "allison-en"), texts_of(SPEECH / "june-fr")
    assert likely_language(english, "en-US").fits and likely_language(french, "fr-CA").fits
    assert likely_language(english, "fr-CA").likely == "en" and likely_language(french, "en-US").likely == "fr"
    assert likely_language([text for text in english if len(text) < 12], "en-US").fits
    assert likely_language([text for text in french if len(text) < 12], "fr").fits


def test_too_little_text_fits_anything() -> None:
    assert likely_language(["Bonjour."], "en").fits
    assert judge_language({"en": 0.0, "fr": 1.0}, FEWEST_WORDS - 1, "en").fits
    assert not judge_language({"en": 0.0, "fr": 1.0}, FEWEST_WORDS, "en").fits


def test_a_language_that_cannot_be_read_is_found_out_too() -> None:
    portuguese = ["Esqueci as minhas chaves na mesa da cozinha.", "Choveu a noite toda e as ruas estavam molhadas."]
    verdict = likely_language(portuguese, "es")
    assert not verdict.fits and verdict.likely is None


@given(st.dictionaries(st.sampled_from(sorted(LEXICONS)), st.floats(0, 1), min_size=1), st.integers(0, 1000))
def test_the_language_whose_lexicon_knows_most_is_never_called_another(rates: dict[str, float], words: int) -> None:
    best = max(rates, key=lambda language: rates[language])
    assert judge_language(rates, words, best).likely is None
    for said in rates:
        verdict = judge_language(rates, words, said)
        assert verdict.likely is None or rates[verdict.likely] > rates[said]
