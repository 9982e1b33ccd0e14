"""A page to listen to: each sentence as it was recorded, as the codec gives it back and as the voice says it, side by side.

A folder with `index.html`, the clips and a spectrogram of each. It runs no script and asks nothing of the network.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from common.files import atomic_write
from tts.evaluation.evaluate import NOT_READ, Evaluation
from tts.evaluation.figures import CODEC, KINDS, RECORDINGS, SYNTHESIS, Figures, Heard, by_speaker
from tts.evaluation.heldout import Item
from tts.evaluation.words import Change, changes, normalise

TITLES = {SYNTHESIS: "synthesis", CODEC: "codec", RECORDINGS: "recording"}
LONGEST_TEXT = 2000  # characters
WINDOW_S, HOP_S = 0.032, 0.01
FLOOR_DB = -70.0
POLICY = "default-src 'none'; img-src 'self' file:; media-src 'self' file:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --bad: #d9534f66; --gone: #d9534f; --more: #3d7ea6; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 82rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
.sentence { background: var(--soft); border-radius: .5rem; padding: .8rem; margin: .8rem 0; }
.sentence > p { margin: 0 0 .5rem; overflow-wrap: anywhere; }
.clips { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: .9rem; }
.clips p { margin: .2rem 0; overflow-wrap: anywhere; }
audio { width: 100%; } img { width: 100%; height: 5rem; border-radius: .3rem; image-rendering: auto; }
mark { background: var(--bad); color: inherit; } del { color: var(--gone); } ins { color: var(--more); }
.soft { opacity: .7; } .alarm { border-left: .3rem solid var(--gone); padding-left: .7rem; }
"""


class PageWriter:
    """Collects the clips of an evaluation in a folder, then writes the page.

    Args:
        folder: an empty one. items: the sentences.
    """

    def __init__(self, folder: Path, items: Sequence[Item]) -> None:
        self._folder = folder
        self._numbers = {item.id: number for number, item in enumerate(items, start=1)}

    def keep(self, kind: str, item: Item, samples: NDArray[np.float32], sample_rate: int, heard: Heard) -> None:
        """Write one clip float32 [N] and its picture.

        Raises:
            HocketError: DISK_FULL or STATE_UNREADABLE.
        """
        name = self._name(kind, item)
        sound = io.BytesIO()
        peak = float(np.abs(samples).max(initial=0.0))
        soundfile.write(sound, samples / max(peak, 1.0), sample_rate, format="FLAC", subtype="PCM_16")
        atomic_write(self._folder / "audio" / f"{name}.flac", sound.getvalue())
        atomic_write(self._folder / "pictures" / f"{name}.png", spectrogram_png(samples, sample_rate))

    def finish(self, found: Evaluation, title: str) -> Path:
        """Write the page and return its path."""
        clips = {(kind, clip.id): clip for kind, heard in found.heard.items() for clip in heard}

        def mistakes(item: Item) -> tuple[int, int]:
            clip = clips.get((SYNTHESIS, item.id))
            return (-clip.words.errors if clip is not None and clip.words is not None else 0, self._numbers[item.id])

        parts = [f"<h1>{_text(title)}</h1>", *_warnings(found), _figures(found), *_speakers(found), "<h2>Sentences</h2>"]
        parts.append("<p class=soft>Those of which least was understood come first. Marked: <mark>understood as another "
                     "word</mark>, <del>not understood</del>, <ins>understood, not said</ins>.</p>")  # fmt: skip
        parts += [self._sentence(item, clips) for item in sorted(found.items, key=mistakes)]
        path = self._folder / "index.html"
        atomic_write(path, _page(title, "\n".join(parts)).encode())
        return path

    def _name(self, kind: str, item: Item) -> str:
        return f"{self._numbers[item.id]:04d}-{kind}"  # ids are strangers' words, no names of files

    def _sentence(self, item: Item, clips: Mapping[tuple[str, str], Heard]) -> str:
        columns = []
        for kind in (RECORDINGS, CODEC, SYNTHESIS):
            clip = clips.get((kind, item.id))
            if clip is None:
                continue
            name, label = self._name(kind, item), f"{TITLES[kind]} of {item.id}"
            understood = "" if clip.understood is None else f"<p>{marked(item.text, clip.understood)}</p>"
            score = "" if clip.dnsmos is None else f" · DNSMOS {clip.dnsmos:.2f}"
            columns.append(
                f"<div><p class=soft>{TITLES[kind]} · {clip.seconds:.2f} s{score}</p>"
                f'<img loading="lazy" alt="spectrogram: {_text(label)}" src="pictures/{name}.png">'
                f'<audio controls preload="none" aria-label="{_text(label)}" src="audio/{name}.flac"></audio>{understood}</div>'
            )
        head = f"<p><strong>{_text(item.text)}</strong> <span class=soft>{_text(item.id)} · {_text(item.speaker)}</span></p>"
        return f"<div class=sentence>{head}<div class=clips>{''.join(columns)}</div></div>"


def marked(text: str, understood: str) -> str:
    """What was understood of a text, as HTML, the differences marked."""
    shown = []
    for change, wanted, heard in changes(normalise(text), normalise(understood)):
        if change is Change.SAME:
            shown.append(_text(heard))
        elif change is Change.OTHER:
            shown.append(f'<mark title="{_text(wanted)}">{_text(heard)}</mark>')
        elif change is Change.MISSING:
            shown.append(f"<del>{_text(wanted)}</del>")
        else:
            shown.append(f"<ins>{_text(heard)}</ins>")
    return " ".join(shown)


def spectrogram_png(samples: NDArray[np.float32], sample_rate: int) -> bytes:
    """A spectrogram of samples [N] as PNG, a pixel for each 10 ms and each frequency of a 32 ms Hann window."""
    from matplotlib.image import imsave

    size, hop = round(WINDOW_S * sample_rate), round(HOP_S * sample_rate)
    padded = np.pad(np.asarray(samples, np.float64), (size // 2, size))
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop] * np.hanning(size)
    power = np.abs(np.fft.rfft(windows, axis=1)).T ** 2
    decibels = 10 * np.log10(power / max(float(power.max()), 1e-12) + 1e-12)
    out = io.BytesIO()
    imsave(out, decibels, cmap="magma", origin="lower", vmin=FLOOR_DB, vmax=0.0, format="png")
    return out.getvalue()


def _text(value: object) -> str:
    text = str(value)
    return html.escape(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…", quote=True)


def _warnings(found: Evaluation) -> list[str]:
    parts = [] if found.reads_its_text is not False else [f"<p class=alarm><strong>{NOT_READ.capitalize()}.</strong></p>"]
    parts += [f"<p class=alarm>{_text(alarm.reason)}</p>" for alarm in found.alarms]
    return parts + [f"<p class=soft>{_text(note)}</p>" for note in found.notes]


def _row(name: str, figures: Figures) -> str:
    def cell(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    interval = "–" if figures.interval is None else f"{figures.interval[0]:.1%} – {figures.interval[1]:.1%}"
    cells = (
        name, cell(figures.wer, ".1%"), interval, cell(figures.cer, ".1%"), cell(figures.dnsmos, ".2f"),
        cell(figures.similarity, ".3f"), cell(figures.rate_error, ".2%"), cell(figures.rtf, ".3f"), str(figures.n),
    )  # fmt: skip
    return "<tr>" + "".join(f"<td>{_text(value)}</td>" for value in cells) + "</tr>"


HEADS = ("", "word errors", "95 % interval", "character errors", "DNSMOS", "likeness", "length error", "s a second", "clips")


def _table(rows: Sequence[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in HEADS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _figures(found: Evaluation) -> str:
    return _table([_row(TITLES[kind], figures) for kind in KINDS if (figures := found.figures.get(kind)) is not None])


def _speakers(found: Evaluation) -> list[str]:
    parts = []
    for name, kinds in by_speaker(found.heard, found.how.seed).items():
        rows = [_row(TITLES[kind], figures) for kind in KINDS if (figures := kinds[kind]) is not None]
        parts += [f"<h2>{_text(name)}</h2>", _table(rows)]
    return parts


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )
