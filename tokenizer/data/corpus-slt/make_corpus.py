"""Remake the shipped corpus: sentences of the grammar below, spoken by flite's voice `slt`, as Ogg Opus.

    python make_corpus.py [FOLDER]          # needs the program `flite` 2.2 and the package `soundfile`

The sentences are a function of `SEED`; flite has no randomness, so the same flite gives the same samples. Written are
`metadata.csv` (id|text|normalised text), `wavs/ID.ogg` (16 kHz, mono), `heldout.txt` (ids that are never trained on) and
`phones.tsv` (id, phone, end time in seconds): flite's own phone times, a truth to test an aligner against and nothing else.
"""

from __future__ import annotations

import csv
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import soundfile

SEED = 20
TRAINING_SENTENCES = 700
HELD_OUT_SENTENCES = 100
WORDS = (4, 14)
COMPRESSION_LEVEL = 0.93  # of libsndfile's Opus encoder: about 25 kbit/s, wide band

# A slot {name} is filled by one line of the list of that name. Where a slot stands after "a", "an" is put as needed.
GRAMMAR: dict[str, list[str]] = {
    "sentence": [
        "{who} {did} {a_thing} {where} .",
        "{who} {did} {a_thing} {when} .",
        "{who} {did} the {plural} , and {he} {did} the {thing} .",
        "{time_clause} , {who} {did} {a_thing} .",
        "{time_clause} , {who} {went} {to_place} .",
        "{who} {went} {to_place} {when} .",
        "{who} {went} {to_place} with {whom} .",
        "did {who} {do} the {thing} {when} ?",
        "did you see the {adjective} {thing} {where} ?",
        "where did {who} {do} the {adjective} {thing} ?",
        "why did {who} {do} the {plural} ?",
        "how many {plural} did {who} {do} {when} ?",
        "can you {do} the {plural} {where} ?",
        "{name} , could you {do} the {thing} , please ?",
        "please {do} the {adjective} {thing} before {o_clock} .",
        "do not {do} the {plural} {where} .",
        "there is {a_thing} {where} .",
        "there are {number} {adjective} {plural} {where} .",
        "there were only {number} {plural} left {where} .",
        "{who} {cooked} some {food_adjective} {food} for {meal} .",
        "would you like some {food_adjective} {food} , or some {food} ?",
        "we had {food} and {food} for {meal} on {day} .",
        "the {food} tastes {taste} , but the {food} is too {food_adjective} .",
        "the {animal} {ran} {through} .",
        "{number} {animals} {ran} {through} {when} .",
        "{who} {fed} the {animal_adjective} {animals} {where} .",
        "is that {animal_adjective} {animal} yours , {name} ?",
        "the {weather} will {weather_do} {future} .",
        "it was {weather_adjective} {when} , so {we} {stayed} .",
        "if it rains {future} , {we} will {do} the {plural} .",
        "if the {weather} does not stop , {we} will stay {where} .",
        "the {vehicle} to {city} leaves at {o_clock} .",
        "the {vehicle} from {city} was {number} minutes late .",
        "which {vehicle} goes to {city} {future} ?",
        "{who} {travel} from {city} to {city} by {by} .",
        "i think that {who} {did} {a_thing} {when} .",
        "{we} know that the {thing} is {where} .",
        "nobody knows who {did} the {adjective} {thing} .",
        "this {thing} is {more} than that {thing} .",
        "{whose} {thing} is {adjective} , but mine is {adjective} .",
        "my favorite color is {color} , not {color} .",
        "{who} {played} {music} {when} .",
        "{who} would rather {play} than {do} the {plural} .",
        "have you ever been to {city} ?",
        "thank you for the {adjective} {thing} , {name} .",
        "{name} and {name} are {doing} the {plural} {where} .",
        "{who} is {doing} {a_thing} for {whom} .",
        "{who} was {doing} the {plural} {when} .",
        "as soon as the {weather} stops , {we} will go {to_place} .",
        "either {name} or {name} must {do} the {thing} {future} .",
        "turn {side} after the {building} , then walk {through} .",
        "the {building} is {side_of} of the {building} .",
        "{who} {felt} {feeling} , because the {thing} was {adjective} .",
        "what a {adjective} {thing} !",
        "good {greeting} , {name} , how was the {event} ?",
        "the {event} begins at {o_clock} , and it ends at {o_clock} .",
    ],
    "who": [
        "{name}", "the {person_adjective} {job}", "my {relative}", "our {relative}", "{name}", "the {job}",
        "her {relative}",
    ],
    "whom": ["{name}", "my {relative}", "his {relative}", "the {job}", "them", "her", "us"],
    "whose": ["{name} 's", "your {relative} 's", "the {job} 's"],
    "he": ["then", "also"],
    "we": ["we", "they", "you"],
    "name": ["Anna", "Peter", "Laura", "Thomas", "Emma", "David", "Helen", "Martin", "Julia", "Robert"],
    "job": [
        "farmer", "teacher", "doctor", "driver", "baker", "nurse", "sailor", "painter", "engineer", "student", "gardener",
        "waiter", "captain", "artist", "lawyer", "singer",
    ],
    "relative": [
        "brother", "sister", "mother", "father", "uncle", "aunt", "cousin", "neighbor", "friend", "daughter", "grandfather",
    ],
    "person_adjective": [
        "young", "old", "tall", "busy", "friendly", "quiet", "tired", "clever", "careful", "patient", "famous",
    ],
    "thing": [
        "basket", "box", "letter", "lamp", "umbrella", "camera", "suitcase", "blanket", "mirror", "hammer", "clock", "ladder",
        "candle", "ticket", "bottle", "newspaper", "envelope", "key", "picture", "chair", "pillow", "bucket", "map", "coat",
        "book", "jacket", "guitar", "bicycle", "carpet", "kettle",
    ],
    "plural": [
        "baskets", "boxes", "letters", "lamps", "cameras", "blankets", "mirrors", "candles", "tickets", "bottles", "keys",
        "pictures",
        "chairs", "buckets", "maps", "books", "shoes", "gloves", "flowers", "drawings", "plates", "cups", "spoons",
        "stones", "papers",
    ],
    "a_thing": [
        "a {thing}", "the {thing}", "a {adjective} {thing}", "the {adjective} {thing}", "a {color} {thing}", "this {thing}",
    ],
    "adjective": [
        "heavy", "broken", "small", "large", "new", "cheap", "expensive", "wooden", "empty", "beautiful", "dusty",
        "strange", "simple",
        "huge", "dirty", "clean", "ugly", "useful", "round", "light", "{color}",
    ],
    "color": ["red", "blue", "green", "yellow", "white", "black", "brown", "orange", "purple", "gray"],
    "more": [
        "heavier", "smaller", "larger", "cheaper", "newer", "older", "cleaner", "lighter", "more expensive",
        "more beautiful",
    ],
    "did": [
        "carried", "found", "lost", "bought", "sold", "cleaned", "painted", "moved", "borrowed", "dropped", "brought", "kept",
        "took", "wanted", "forgot", "noticed", "dropped", "showed us", "gave me",
    ],
    "do": [
        "carry", "find", "buy", "sell", "clean", "paint", "move", "borrow", "bring", "keep", "take", "choose", "count",
        "hide", "check",
    ],
    "doing": [
        "carrying", "looking for", "buying", "selling", "cleaning", "painting", "moving", "bringing", "choosing",
        "counting", "hiding",
    ],
    "went": ["went", "walked", "drove", "came back", "hurried", "returned", "ran"],
    "to_place": ["to the {building}", "to the {outside}", "to the {adjective} {building}", "to {city}"],
    "building": [
        "kitchen", "library", "station", "market", "school", "hospital", "museum", "office", "church", "bakery", "airport",
        "hotel",
        "theater", "bank",
    ],
    "garden": ["garden", "village", "forest", "park", "harbor"],
    "outside": ["garden", "village", "forest", "river", "lake", "beach", "harbor", "park", "farm", "mountains"],
    "where": [
        "in the {building}", "in the {garden}", "under the table", "behind the door", "beside the window", "near the bridge",
        "on the shelf", "across the street", "next to the {building}", "in front of the {building}", "on the floor", "upstairs",
        "at home", "between the {plural}", "inside the {building}",
    ],
    "through": [
        "across the field", "over the hill", "through the {outside}", "along the river", "around the {building}",
        "past the {building}",
        "down the stairs", "toward the bridge", "into the {outside}", "up the road",
    ],
    "when": [
        "yesterday", "this morning", "last {day}", "last week", "last night", "in the {season}", "on {day}", "after {meal}",
        "at noon",
        "before {meal}", "two days ago", "at {o_clock}", "in the afternoon",
    ],
    "future": ["tomorrow", "tonight", "next {day}", "next week", "on {day}", "soon", "this evening", "before {meal}"],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "season": ["spring", "summer", "autumn", "winter"],
    "o_clock": ["{hour} o'clock", "half past {hour}", "{hour} thirty", "noon", "midnight", "{hour} fifteen"],
    "hour": ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"],
    "number": ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty", "thirty"],
    "time_clause": [
        "when the {weather} stopped", "after {meal}", "before the {vehicle} left", "while it was {weather_adjective}",
        "because the {building} was closed", "although it was {late}", "on {day}", "in the {season}", "every {day}",
        "as usual", "to our surprise", "a moment later",
    ],
    "late": ["late", "early", "dark", "{weather_adjective}"],
    "cooked": ["cooked", "made", "prepared", "ordered", "tasted", "shared", "bought"],
    "food": [
        "soup", "bread", "cheese", "rice", "fish", "salad", "cake", "butter", "honey", "chicken", "chocolate", "coffee",
        "tea", "milk",
        "fruit", "sugar",
    ],
    "food_adjective": ["hot", "cold", "fresh", "sweet", "warm", "strong", "plain"],
    "taste": ["delicious", "wonderful", "terrible", "very good", "rather strange"],
    "meal": ["breakfast", "lunch", "dinner", "supper"],
    "animal": ["dog", "cat", "horse", "rabbit", "bird", "fox", "cow", "goat", "mouse", "duck"],
    "animals": ["dogs", "cats", "horses", "rabbits", "birds", "cows", "goats", "ducks", "sheep"],
    "animal_adjective": ["hungry", "lazy", "noisy", "gentle", "brave", "{color}", "little"],
    "ran": ["ran", "jumped", "walked slowly", "followed us", "disappeared", "hurried"],
    "fed": ["fed", "followed", "watched", "called", "helped"],
    "weather": ["rain", "snow", "storm", "fog", "thunder"],
    "weather_do": ["stop", "begin", "continue", "return", "get worse", "reach {city}"],
    "weather_adjective": ["cloudy", "sunny", "foggy", "windy", "very cold", "warm and dry", "wet"],
    "stayed": ["stayed at home", "went swimming", "lit a fire", "closed the windows", "walked back", "took the {vehicle}"],
    "vehicle": ["train", "bus", "boat", "ferry", "plane"],
    "by": ["train", "bus", "boat", "car", "bicycle"],
    "city": ["London", "Paris", "Berlin", "Boston", "Chicago", "Denver", "Rome", "Vienna", "Lisbon"],
    "travel": ["traveled", "went", "drove all the way", "wanted to go"],
    "played": ["played", "listened to", "sang", "practiced"],
    "play": ["play chess", "play football", "learn German", "watch a movie", "write a poem", "dance", "sleep", "go fishing"],
    "music": ["an old song", "a slow waltz", "jazz", "some music", "the same tune", "a cheerful song"],
    "side": ["left", "right"],
    "side_of": ["north", "south", "east", "west"],
    "felt": ["felt", "was", "looked", "seemed"],
    "feeling": ["happy", "sad", "angry", "tired", "nervous", "surprised", "proud", "lonely"],
    "greeting": ["morning", "afternoon", "evening"],
    "event": ["concert", "meeting", "party", "game", "wedding", "lesson", "journey", "holiday"],
}  # fmt: skip

CRC_TABLE = []
for _byte in range(256):
    _register = _byte << 24
    for _ in range(8):
        _register = (_register << 1) ^ (0x04C11DB7 if _register & 0x80000000 else 0)
    CRC_TABLE.append(_register & 0xFFFFFFFF)

CONSONANT_SOUND = {"useful"}


class Grammar:
    """Draws sentences; of two random lines of a list it takes the one used less, so that all words come up."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._used: Counter[tuple[str, str]] = Counter()

    def _draw(self, name: str) -> str:
        lines = GRAMMAR[name]
        first, second = (lines[int(self._random.random() * len(lines))] for _ in range(2))
        line = first if self._used[name, first] <= self._used[name, second] else second
        self._used[name, line] += 1
        return line

    def _fill(self, name: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda slot: self._fill(slot.group(1)), self._draw(name))

    def sentence(self) -> str:
        words = self._fill("sentence").split()
        for place, word in enumerate(words[:-1]):
            following = words[place + 1]
            if word == "a" and following[0].lower() in "aeiou" and following not in CONSONANT_SOUND:
                words[place] = "an"
            elif word == "i":
                words[place] = "I"
        text = re.sub(r" (?=[,.?!]|'s\b)", "", " ".join(words))
        return text[0].upper() + text[1:]


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def fits(text: str) -> bool:
    """Has a length in bounds, names no thing twice, and no time twice."""
    words = words_of(text)
    content = [word for word in words if len(word) > 3]
    signs = ("yesterday", "last ", "tomorrow", " ago", "this morning", "o'clock", " past ", " on ")
    times = sum(text.count(sign) for sign in signs)
    return WORDS[0] <= len(words) <= WORDS[1] and len(set(content)) == len(content) and times <= 1 + text.startswith("The ")


def sentences() -> tuple[list[str], list[str]]:
    """Training sentences, and held-out ones whose every word occurs at least twice in training."""
    grammar = Grammar(SEED)
    training: dict[str, None] = {}
    while len(training) < TRAINING_SENTENCES:
        text = grammar.sentence()
        if fits(text):
            training.setdefault(text)
    counts = Counter(word for text in training for word in words_of(text))
    held_out: dict[str, None] = {}
    while len(held_out) < HELD_OUT_SENTENCES:
        text = grammar.sentence()
        if fits(text) and text not in training and all(counts[word] >= 2 for word in words_of(text)):
            held_out.setdefault(text)
    return list(training), list(held_out)


def speak(text: str, wav: Path) -> list[tuple[str, str]]:
    """Write `text`, spoken, to `wav`; the phones and their end times in seconds."""
    command = ["flite", "-voice", "slt", "-psdur", "-t", text, "-o", str(wav)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [(phone, end) for phone, end in (entry.rsplit(":", 1) for entry in printed.split())]


def ogg_checksum(page: bytes | bytearray) -> int:
    """CRC-32 of an Ogg page (RFC 3533): polynomial 04c11db7, most significant bit first, start value 0."""
    register = 0
    for byte in page:
        register = (register << 8) & 0xFFFFFFFF ^ CRC_TABLE[register >> 24 ^ byte]
    return register


def with_serial(ogg: bytes, serial: int) -> bytes:
    """The same Ogg stream under another serial number: the encoder draws one at random, and files shall be the same."""
    pages, start = [], 0
    while start < len(ogg):
        segments = ogg[start + 26]
        size = 27 + segments + sum(ogg[start + 27 : start + 27 + segments])
        page = bytearray(ogg[start : start + size])
        page[14:18], page[22:26] = serial.to_bytes(4, "little"), bytes(4)
        page[22:26] = ogg_checksum(page).to_bytes(4, "little")
        pages.append(bytes(page))
        start += size
    return b"".join(pages)


def main(folder: Path) -> None:
    training, held_out = sentences()
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    names = [f"slt-{number:04d}" for number in range(1, len(training) + len(held_out) + 1)]
    with (
        tempfile.TemporaryDirectory() as scratch,
        (folder / "metadata.csv").open("w", encoding="utf-8", newline="") as metadata,
        (folder / "phones.tsv").open("w", encoding="utf-8", newline="") as truth,
    ):
        rows = csv.writer(metadata, delimiter="|", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
        for number, (name, text) in enumerate(zip(names, training + held_out, strict=True), start=1):
            wav = Path(scratch) / "speech.wav"
            phones = speak(text, wav)
            samples, rate = soundfile.read(wav, dtype="float32")
            target = folder / "wavs" / f"{name}.ogg"
            soundfile.write(target, samples, rate, format="OGG", subtype="OPUS", compression_level=COMPRESSION_LEVEL)
            target.write_bytes(with_serial(target.read_bytes(), number))
            rows.writerow([name, text, text])
            truth.writelines(f"{name}\t{phone}\t{end}\n" for phone, end in phones)
    (folder / "heldout.txt").write_text("".join(f"{name}\n" for name in names[len(training) :]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
