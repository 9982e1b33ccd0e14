"""Remake the synthetic part of the codec's training data: sentences of a small grammar, read by voices of `flite`.

    python make_voices.py --out DIR [--seconds slt=1600 --seconds rms=480 --seconds kal16=480] [--seed 1]

writes DIR/VOICE/NNNN.wav (16 kHz mono) and DIR/VOICE/text.csv (`name|text`) until each voice has its seconds. Needs `flite`.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import wave
from pathlib import Path

PEOPLE = [
    "my brother",
    "the old farmer",
    "a young teacher",
    "the doctor",
    "our neighbour",
    "every child",
    "the captain",
    "her uncle Frank",
    "the tall judge",
    "a quiet student",
    "the baker",
    "Mister Jones",
    "the whole village",
    "a clever engineer",
    "the pilot",
    "George",
    "the girl in yellow",
    "my aunt Julia",
    "the museum guide",
    "nobody",
    "a famous author",
    "the shepherd",
    "three sailors",
    "the new nurse",
    "Thomas",
    "the choir",
]
DEEDS = [
    "found",
    "sold",
    "painted",
    "repaired",
    "forgot",
    "carried",
    "borrowed",
    "washed",
    "described",
    "measured",
    "hid",
    "admired",
    "opened",
    "brought",
    "chose",
    "weighed",
    "noticed",
    "pushed",
    "photographed",
    "lifted",
    "showed us",
    "dropped",
    "kept",
    "wanted",
    "missed",
    "examined",
    "shook",
    "bought",
]
THINGS = [
    "a wooden boat",
    "the garden gate",
    "two heavy boxes",
    "a bag of oranges",
    "the broken clock",
    "a pair of gloves",
    "an ancient map",
    "the kitchen table",
    "a bright lantern",
    "the last page",
    "some fresh bread",
    "a jar of honey",
    "the church bell",
    "five silver coins",
    "a thick blanket",
    "the engine",
    "a loaf of rye",
    "the wrong key",
    "a cheap violin",
    "four young horses",
    "the yellow envelope",
    "an iron bridge",
    "a fishing rod",
    "the measuring tape",
    "a bowl of soup",
    "her grey jacket",
    "the telescope",
    "a thousand feathers",
    "an awful picture",
    "the treasure",
]
PLACES = [
    "behind the station",
    "near the river",
    "in the valley",
    "under the stairs",
    "at the market",
    "on the third floor",
    "beside a small lake",
    "above the harbour",
    "across the road",
    "outside the theatre",
    "in front of the bakery",
    "along the northern coast",
    "between two hills",
    "inside the cave",
    "by the fireplace",
    "at the edge of the forest",
    "on the way to school",
    "in a narrow street",
    "over the fence",
    "beyond the railway",
]
TIMES = [
    "yesterday",
    "this morning",
    "on Thursday",
    "before sunrise",
    "last February",
    "after the storm",
    "at half past six",
    "during the holidays",
    "every winter",
    "in the evening",
    "at noon",
    "two years ago",
    "late in July",
    "once again",
    "while we waited",
    "shortly after lunch",
    "on a cold day",
    "around midnight",
]
WEATHER = [
    "the wind",
    "a thick fog",
    "the rain",
    "the first snow",
    "thunder",
    "a warm breeze",
    "the morning frost",
    "the tide",
    "heavy hail",
    "the dust",
]
MOVES = [
    "came down from the mountains",
    "covered the fields",
    "woke the dogs",
    "turned the sky purple",
    "stopped all the traffic",
    "lasted for eleven hours",
    "moved slowly towards the east",
    "froze the water in the pipes",
    "shook the windows",
    "smelled of salt and seaweed",
]
QUALITIES = [
    "smooth",
    "strange",
    "useful",
    "much too large",
    "rather cheap",
    "beautiful",
    "as cold as ice",
    "hardly visible",
    "perfectly safe",
    "unusually quiet",
    "worth a visit",
    "difficult to explain",
    "thinner than paper",
    "full of holes",
    "easy to choose",
    "shiny and round",
]
NOUNS = [
    "judgement",
    "weather",
    "cheese",
    "leather",
    "pleasure",
    "orchard",
    "youth",
    "voice",
    "thought",
    "machine",
    "ocean",
    "joy",
    "power",
    "language",
    "village",
    "bridge",
    "whistle",
    "knowledge",
    "square",
    "hour",
    "shadow",
    "mouth",
    "basket",
    "choice",
    "noise",
    "zebra",
    "vision",
    "jewel",
    "throat",
    "feather",
    "cushion",
    "engine",
]
ADVICE = [
    "please close",
    "do not touch",
    "never lend",
    "try to find",
    "remember to water",
    "go and fetch",
    "always check",
    "read the note about",
    "think twice about",
    "just ignore",
]
QUESTIONS = ["why would", "how could", "when did", "where will", "did", "should", "could", "does it matter that"]
NUMBERS = [
    "three",
    "seven",
    "twelve",
    "fifteen",
    "nineteen",
    "twenty four",
    "thirty",
    "forty one",
    "fifty six",
    "sixty",
    "seventy eight",
    "eighty five",
    "ninety nine",
    "two hundred",
    "six thousand",
]


def sentence(draw: random.Random) -> str:
    """One sentence of the grammar, of 5 to 25 words."""

    def pick(words: list[str]) -> str:
        return draw.choice(words)

    kind = draw.randrange(10)
    if kind == 0:
        text = f"{pick(PEOPLE)} {pick(DEEDS)} {pick(THINGS)} {pick(PLACES)}"
    elif kind == 1:
        text = f"{pick(TIMES)}, {pick(PEOPLE)} {pick(DEEDS)} {pick(THINGS)}"
    elif kind == 2:
        text = f"{pick(WEATHER)} {pick(MOVES)} {pick(TIMES)}"
    elif kind == 3:
        text = f"{pick(QUESTIONS)} {pick(PEOPLE)} need {pick(THINGS)} {pick(PLACES)}?"
    elif kind == 4:
        text = f"the {pick(NOUNS)} was {pick(QUALITIES)}, but the {pick(NOUNS)} seemed {pick(QUALITIES)}"
    elif kind == 5:
        text = f"{pick(ADVICE)} {pick(THINGS)} {pick(PLACES)}, because {pick(WEATHER)} {pick(MOVES)}"
    elif kind == 6:
        text = f"{pick(NUMBERS)} times {pick(NUMBERS)} is more than {pick(NUMBERS)}, said {pick(PEOPLE)}"
    elif kind == 7:
        text = f"{pick(PEOPLE)} and {pick(PEOPLE)} {pick(DEEDS)} {pick(THINGS)} {pick(TIMES)}"
        text += f" and {pick(DEEDS)} {pick(THINGS)} {pick(PLACES)}"
    elif kind == 8:
        text = f"there is a {pick(NOUNS)} {pick(PLACES)} that is {pick(QUALITIES)}"
    else:
        text = f"without {pick(NOUNS)} or {pick(NOUNS)}, {pick(PEOPLE)} {pick(DEEDS)} only {pick(NUMBERS)} of them"
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", action="append", metavar="VOICE=SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for pair in options.seconds or ["slt=1600", "rms=480", "kal16=480"]:
        voice, _, wanted = pair.partition("=")
        folder = options.out / voice
        folder.mkdir(parents=True, exist_ok=True)
        draw = random.Random(f"{options.seed} {voice}")
        lines: list[str] = []
        seconds = 0.0
        while seconds < float(wanted):
            text, path = sentence(draw), folder / f"{len(lines):04d}.wav"
            subprocess.run(["flite", "-voice", voice, "-o", str(path), "-t", text], check=True)
            with wave.open(str(path)) as recording:
                seconds += recording.getnframes() / recording.getframerate()
            lines.append(f"{path.stem}|{text}\n")
        (folder / "text.csv").write_text("".join(lines), encoding="utf-8")
        print(f"{voice}: {len(lines)} sentences, {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    main()
