"""One page that shows a dataset: charts, tables, and clips to listen to. It stands alone and runs no script."""

from __future__ import annotations

import base64
import html
import io
import wave
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenizer.codec import Codec
from tokenizer.dataset_folder import DatasetFolder
from tokenizer.report.pictures import bars, histogram, spectrogram
from tokenizer.report.stats import Stats, title_of
from tokenizer.shards import Utterance

FIRST, WORST, SPEAKERS = 3, 5, 8
MAX_PLAYED_S = 20.0
LISTED = 200  # rows of a table, bars of a chart
LONGEST_TEXT = 2000  # characters
POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 0; overflow-x: auto; } svg { max-width: 100%; height: auto; }
.row { display: flex; flex-wrap: wrap; gap: 1.5rem; }
.clip { background: var(--soft); border-radius: .5rem; padding: .8rem; margin: .8rem 0; }
.clip p { margin: .2rem 0; } audio { width: 100%; max-width: 30rem; } .soft { opacity: .7; }
"""


@dataclass(frozen=True)
class Played:
    """A clip to listen to, and why it was picked."""

    row: Utterance
    why: str


def pick(rows: Iterable[tuple[Utterance, bool]], stats: Stats) -> list[Played]:
    """Clips worth a listen: the first ones, those that align worst, the loudest, one of each of some speakers."""
    worst = {name: place for place, (_, name, _) in enumerate(stats.worst_first()[:WORST], start=1)}
    chosen: list[Played] = []
    speakers: set[str] = set()
    for number, (row, _) in enumerate(rows):
        if row.id in worst:
            chosen.append(Played(row, f"aligns worst (place {worst[row.id]})"))
        elif stats.loudest is not None and row.id == stats.loudest[1]:
            chosen.append(Played(row, f"the loudest ({stats.loudest[0]:.1f} dB)"))
        elif number < FIRST:
            chosen.append(Played(row, "one of the first"))
        elif row.speaker not in speakers and len(speakers) < SPEAKERS:
            chosen.append(Played(row, f"the first of {row.speaker}"))
        else:
            continue
        speakers.add(row.speaker)
    return chosen


def render_page(dataset: DatasetFolder, stats: Stats, played: Sequence[Played], codec: Codec | None) -> str:
    """The page as text; every word of the dataset is escaped, as strangers wrote it.

    Args:
        codec: decodes the clips; None: the page has no sound.
    """
    manifest = dataset.manifest
    facts = stats.as_json(manifest.phonemes)
    counted = list(facts["phonemes"].items())[:LISTED]
    charts = [
        ("Durations", histogram(stats.seconds, "seconds")),
        ("Alignment scores", histogram(stats.scores, "mean log probability of a frame")) if stats.scores else None,
        ("Phonemes a second", histogram(stats.rates, "phonemes a second")) if stats.rates else None,
        ("Loudness", histogram(stats.rms_db, "dB of full scale, root mean square")) if stats.rms_db else None,
        ("Peaks", histogram(stats.peak_db, "dB of full scale")) if stats.peak_db else None,
    ]
    parts = [
        f"<h1>{_text(manifest.name)}</h1>",
        f"<p class=soft>{stats_line(stats)}. Signed by {_text(dataset.signer[:16])}….</p>",
        _table(("what", "value"), _about(dataset, stats)),
        "<h2>Charts</h2><div class=row>",
        *(f"<figure><figcaption>{name}</figcaption>{svg}</figure>" for name, svg in filter(None, charts)),
        "</div>",
    ]
    if counted:
        chart = bars([symbol for symbol, _ in counted], [count for _, count in counted], "occurrences")
        parts.append(f"<figure><figcaption>Phonemes</figcaption>{chart}</figure>")
    for title, shares in (("Speakers", stats.speakers), ("Languages", stats.languages)):
        longest = sorted(shares.items(), key=lambda item: (-item[1].seconds, item[0]))
        rows = [(name, str(share.clips), f"{share.seconds / 3600:.2f}") for name, share in longest[:LISTED]]
        parts += [f"<h2>{title}</h2>", _table((title[:-1], "clips", "hours"), rows, numbers=(1, 2))]
        if len(longest) > LISTED:
            parts.append(f"<p class=soft>and {len(longest) - LISTED} more</p>")
    parts += ["<h2>Refused clips</h2>", _refused(stats)]
    parts += ["<h2>Clips</h2>", "<p class=soft>Decoded from the codes of the dataset: what a model hears.</p>"]
    parts += [_clip(dataset, one, codec) for one in played]
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{_text(manifest.name)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def stats_line(stats: Stats) -> str:
    """One line on a dataset."""
    hours, refused = sum(stats.seconds) / 3600, sum(stats.refused.values())
    return f"{len(stats.seconds)} clips, {hours:.2f} hours, {stats.held} held out, {refused} refused"


def _text(value: object) -> str:
    text = str(value)
    return html.escape(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…", quote=True)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    def cell(tag: str, place: int, value: str) -> str:
        return f"<{tag}{' class=n' if place in numbers else ''}>{_text(value)}</{tag}>"

    lines = ["".join(cell("td", place, value) for place, value in enumerate(row)) for row in rows]
    head = "".join(cell("th", place, value) for place, value in enumerate(heads))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def _about(dataset: DatasetFolder, stats: Stats) -> list[tuple[str, str]]:
    manifest, codec = dataset.manifest, dataset.manifest.codec
    dropped = ", ".join(f"{sign!r} {count}x" for sign, count in sorted(manifest.dropped_characters.items())[:40])
    rare = stats.as_json(manifest.phonemes)["rare_phonemes"]
    name = codec.get("name", codec.get("kind"))
    full = f"{stats.clipped} of {len(stats.peak_db)}" if stats.peak_db else "not recorded"
    return [
        ("codec", f"{name}: {codec['n_codebooks']} books of {codec['codebook_size']}, {dataset.frame_rate:g} frames a second"),
        ("languages", ", ".join(manifest.languages)),
        ("licences", ", ".join(manifest.licences)),
        ("phonemes", f"{len(manifest.phonemes) - 1} in the inventory"),
        ("occur fewer than five times", " ".join(rare) or "none"),
        ("characters left out of texts", dropped or "none"),
        ("rows without a text", str(stats.untranscribed)),
        ("recordings with samples at full scale", full),
    ]  # fmt: skip


def _refused(stats: Stats) -> str:
    if not stats.refused:
        return "<p>None.</p>"
    counts = _table(("reason", "clips"), [(title_of(code), str(n)) for code, n in stats.refused.most_common()], numbers=(1,))
    rows = [(name, f"H{code}", reason) for name, code, reason in stats.refusals]
    more = sum(stats.refused.values()) - len(rows)
    rest = f"<p class=soft>and {more} more, see refused.txt</p>" if more else ""
    return f"{counts}<details><summary>Which ones</summary>{_table(('clip', 'error', 'why'), rows)}{rest}</details>"


def _clip(dataset: DatasetFolder, one: Played, codec: Codec | None) -> str:
    row, rate = one.row, dataset.frame_rate
    symbols = [dataset.manifest.phonemes[int(number)] for number in row.phonemes]
    head = f"<p><strong>{_text(row.id)}</strong> <span class=soft>{_text(one.why)} · {_text(row.speaker)} · {_text(row.language)}"
    score = f" · score {row.align_score:.2f}" if row.text else ""
    lines = [f"{head} · {row.n_frames / rate:.2f} s{score}</span></p>"]
    lines.append(f"<p>{_text(row.text)}</p>")
    if row.spoken != row.text:
        lines.append(f"<p class=soft>spoken: {_text(row.spoken)}</p>")
    if codec is not None:
        frames = min(row.n_frames, round(MAX_PLAYED_S * rate))
        samples = codec.decode(row.codes[:, :frames])
        ends = np.cumsum(row.durations) / rate
        inside = int(np.searchsorted(ends, frames / rate, side="right"))
        picture = spectrogram(samples, codec.sample_rate, ends[:inside], symbols[:inside]) if inside else ""
        if picture:
            lines.append(f'<figure><img alt="spectrogram of {_text(row.id)}" src="{picture}"></figure>')
        sound = _wav(samples, codec.sample_rate)
        lines.append(f'<audio controls preload="none" aria-label="{_text(row.id)}" src="{sound}"></audio>')
    lines.append(f"<p class=soft>{_text(' '.join(symbols))}</p>")
    return f"<div class=clip>{''.join(lines)}</div>"


def _wav(samples: NDArray[np.float32], sample_rate: int) -> str:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return "data:audio/wav;base64," + base64.b64encode(out.getvalue()).decode()
