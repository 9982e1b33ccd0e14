"""Texts of other languages: what is said, that every sound has its symbol, and that an id never changes its meaning."""

from __future__ import annotations

import functools
import json
import random
import sqlite3
from pathlib import Path

import pytest

from common.errors import Code, HocketError
from tokenizer.fronts.choice import symbols_of
from tokenizer.fronts.lexicon import language_folder
from tokenizer.fronts.symbols import SYMBOLS
from tokenizer.languages import supported_languages
from tokenizer.phonemes import END, ENGLISH_SYMBOLS, PAUSE, Phonemizer, inventory_for

TABLE = json.loads((Path(__file__).parent / "golden_symbols.json").read_text(encoding="utf-8"))
WRITTEN = ("de", "es", "fr", "it", "ru")


@functools.lru_cache(maxsize=8)
def reader(language: str) -> Phonemizer:
    return Phonemizer(language)


def test_the_table_only_grows() -> None:
    assert SYMBOLS[: len(TABLE)] == TABLE, "append, never insert: an id is part of every dataset made so far"
    assert len(set(SYMBOLS)) == len(SYMBOLS) and SYMBOLS[:75] == ENGLISH_SYMBOLS


def test_an_inventory_is_a_beginning_of_the_table() -> None:
    assert inventory_for(["en-US"]).symbols == ENGLISH_SYMBOLS
    for language in supported_languages():
        inventory = inventory_for([language])
        assert inventory.symbols == SYMBOLS[: len(inventory)] and set(symbols_of(language)) <= set(inventory.symbols)
    both = inventory_for(["en", "fr-CA"])
    assert both.symbols == inventory_for(["fr"]).symbols


SPOKEN = {
    "fr": {
        "Composez le 1.": "Composez le un",
        "à 9h": "à neuf heures",
        "au XXe siècle": "au vingtième siècle",
        "-5 °C": "moins cinq degrés Celsius",
        "Louis XIV": "Louis quatorze",
        "n° 12, p. ex.": "numéro douze par exemple",
        "Il a 1 234 euros.": "Il a mille deux cent trente quatre euros",
        "Le 1er janvier": "Le premier janvier",
        "le 3 mars 2024": "le trois mars deux mille vingt quatre",
        "le 21/05/2023": "le vingt et un mai deux mille vingt trois",
        "50 %": "cinquante pour cent",
        "25,50 €": "vingt cinq euros cinquante",
        "2,5 km": "deux virgule cinq kilomètres",
        "à 14 h 30": "à quatorze heures trente",
        "M. Dupont et Mme Durand": "monsieur Dupont et madame Durand",
        "la 2e fois": "la deuxième fois",
        "Appuyez sur #": "Appuyez sur dièse",
    },
    "de": {
        "Drücken Sie die 1.": "Drücken Sie die eins",
        "Seit 1985": "Seit neunzehnhundertfünfundachtzig",
        "Der 1. Mai": "Der erste Mai",
        "Hauptstr. 12": "Hauptstraße zwölf",
        "1 €": "ein Euro",
        "Tel. 0301": "Telefon null drei null eins",
        "Ludwig XIV.": "Ludwig der Vierzehnte",
        "3 1/2 Stunden": "drei einhalb Stunden",
        "100 km/h": "einhundert Kilometer pro Stunde",
        "1.234 Menschen": "eintausendzweihundertvierunddreißig Menschen",
        "am 3. März 2024": "am dritten März zweitausendvierundzwanzig",
        "am 21.05.2023": "am einundzwanzigsten Mai zweitausenddreiundzwanzig",
        "50 %": "fünfzig Prozent",
        "25,50 €": "fünfundzwanzig Euro fünfzig",
        "2,5 km": "zwei Komma fünf Kilometer",
        "um 14:30 Uhr": "um vierzehn Uhr dreißig",
        "Dr. Müller": "Doktor Müller",
        "z. B. heute": "zum Beispiel heute",
        "der 2. Versuch": "der zweite Versuch",
        "-5 Grad": "minus fünf Grad",
    },
    "es": {
        "Pulse 1.": "Pulse uno",
        "1.234 personas": "mil doscientas treinta y cuatro personas",
        "1 €": "un euro",
        "21 años": "veintiún años",
        "1.000.000 €": "un millón de euros",
        "el siglo XX": "el siglo veinte",
        "10 km/h": "diez kilómetros por hora",
        "el 3 de marzo de 2024": "el tres de marzo de dos mil veinticuatro",
        "el 21/05/2023": "el veintiuno de mayo de dos mil veintitrés",
        "50 %": "cincuenta por ciento",
        "25,50 €": "veinticinco euros con cincuenta",
        "2,5 km": "dos coma cinco kilómetros",
        "a las 14:30": "a las catorce y treinta",
        "el Sr. García": "el señor García",
        "el 1º": "el primero",
        "la 2ª vez": "la segunda vez",
        "-5 grados": "menos cinco grados",
    },
    "it": {
        "Prema 1.": "Prema uno",
        "1 €": "un euro",
        "nel XX secolo": "nel ventesimo secolo",
        "10 km/h": "dieci chilometri all'ora",
        "1.234 persone": "milleduecentotrentaquattro persone",
        "il 3 marzo 2024": "il tre marzo duemilaventiquattro",
        "il 1 maggio": "il primo maggio",
        "50 %": "cinquanta per cento",
        "25,50 €": "venticinque euro e cinquanta",
        "2,5 km": "due virgola cinque chilometri",
        "alle 14:30": "alle quattordici e trenta",
        "il Sig. Rossi": "il signor Rossi",
        "la 2ª volta": "la seconda volta",
        "-5 gradi": "meno cinque gradi",
        "5 kg": "cinque chili",
    },
    "ru": {
        "Нажмите 1.": "Нажмите один",
        "3 марта": "третьего марта",
        "12.04.1961": "двенадцатого апреля тысяча девятьсот шестьдесят первого года",
        "3 марта 2024 года": "третьего марта две тысячи двадцать четвёртого года",
        "в 2024 году": "в две тысячи двадцать четвёртом году",
        "2 книги, 1 книга, 21 год": "две книги одна книга двадцать один год",
        "-5 °C": "минус пять градусов Цельсия",
        "50 %": "пятьдесят процентов",
        "21 %": "двадцать один процент",
        "100 ₽": "сто рублей",
        "2 ₽": "два рубля",
        "5 км": "пять километров",
        "2-й раз": "второй раз",
        "в 14:30": "в четырнадцать тридцать",
        "и т.д.": "и так далее",
        "-5 градусов": "минус пять градусов",
        "25,50 €": "двадцать пять евро пятьдесят евроцентов",
    },
}


@pytest.mark.parametrize(("language", "text"), [(language, text) for language, table in SPOKEN.items() for text in table])
def test_what_is_written_is_spoken(language: str, text: str) -> None:
    assert reader(language).phonemize(text).spoken == SPOKEN[language][text]


CLAUSES = {
    "fr": "Oui, bien sûr. Merci!",
    "de": "Ja, gern. Danke!",
    "es": "Sí, claro. ¡Gracias!",
    "it": "Sì, certo. Grazie!",
    "ru": "Да, конечно. Спасибо!",
}


@pytest.mark.parametrize("language", WRITTEN)
def test_words_start_where_they_start_and_pauses_stand_between(language: str) -> None:
    text = CLAUSES[language]
    read = reader(language).phonemize(text)
    assert sum(read.word_starts) == len(read.spoken.split())
    assert read.phonemes[0] == read.phonemes[-1] == END and read.phonemes.count(PAUSE) == 2
    assert not any(start for symbol, start in zip(read.phonemes, read.word_starts, strict=True) if symbol in (END, PAUSE))


@pytest.mark.parametrize("language", WRITTEN)
def test_words_of_the_lexicon_and_made_up_ones_have_symbols_of_the_table(language: str) -> None:
    stored = sqlite3.connect(f"file:{language_folder(language) / 'lexicon.db'}?mode=ro", uri=True)
    words = [word for (word,) in stored.execute("SELECT DISTINCT word FROM word_phonemes") if word.isalpha()]
    stored.close()
    draw = random.Random(7)
    chosen = draw.sample(words, 1500)
    letters = sorted({letter for word in chosen for letter in word})
    chosen += ["".join(draw.choices(letters, k=draw.randint(2, 12))) for _ in range(500)]
    read, allowed, refused = reader(language), set(symbols_of(language)), 0
    for word in chosen:
        try:
            assert set(read.phonemize(word).phonemes) <= allowed
        except HocketError as error:
            assert error.code in (Code.NO_PHONEMES, Code.SCRIPT_MISMATCH)
            refused += 1
    assert refused < 0.02 * len(chosen)


@pytest.mark.parametrize("language", WRITTEN)
def test_another_script_is_refused(language: str) -> None:
    with pytest.raises(HocketError) as caught:
        reader(language).phonemize("こんにちは" if language == "ru" else "Привет")
    assert caught.value.code is Code.SCRIPT_MISMATCH


def test_german_diphthongs_are_one_symbol() -> None:
    for word, symbol in {"eins": "aɪ", "Haus": "aʊ", "heute": "ɔʏ", "Zeit": "aɪ"}.items():
        assert any(symbol in made for made in reader("de").phonemize(word).phonemes)


def test_regions_are_read_by_their_language_and_kept() -> None:
    assert reader("fr-CA").language == "fr-CA"
    assert reader("fr-CA").phonemize("Bonjour.") == reader("fr").phonemize("Bonjour.")


def test_japanese_is_read_where_its_extra_is_installed() -> None:
    pytest.importorskip("pyopenjtalk", reason="the extra ja is not installed")
    read = reader("ja").phonemize("今日は3月です。1を押して。")
    assert read.spoken.split()[0] == "キョー" and "サンガツ" in read.spoken and "イチ" in read.spoken
    assert set(read.phonemes) <= set(symbols_of("ja")) and read.phonemes.count(PAUSE) == 1
    assert len(read.phonemes) > 20, "kanji and both kana are read, not dropped"
