"""Looking at a dataset: what is wrong is named, what is there is counted, and nothing of it is trusted."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_up_dataset import made_up_row, write_dataset
from typer.testing import CliRunner

from cli.main import app
from common.errors import Code, HocketError
from protocol.content import cid_of
from tokenizer.codec import load_codec
from tokenizer.dataset_folder import open_dataset
from tokenizer.report.page import pick, render_page
from tokenizer.report.stats import collect_stats
from tokenizer.report.verify import verify_dataset

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    training = [[made_up_row(number) for number in range(8)], [made_up_row(number) for number in range(8, 12)]]
    write_dataset(tmp_path / "data", training, [[made_up_row(20), made_up_row(21)]])
    return tmp_path / "data"


def faults(folder: Path) -> list[str]:
    return verify_dataset(open_dataset(folder), lambda done, total: None).faults


def test_a_whole_dataset_has_no_faults(folder: Path) -> None:
    steps: list[tuple[int, int]] = []
    found = verify_dataset(open_dataset(folder / "manifest.json"), lambda done, total: steps.append((done, total)))
    assert (found.faults, found.shards, found.rows) == ([], 3, 14) and steps == [(1, 3), (2, 3), (3, 3)]
    assert runner.invoke(app, ["dataset", "verify", str(folder)]).exit_code == 0


def test_every_damaged_file_is_named(folder: Path) -> None:
    first, second, third = sorted((folder / "shards").iterdir())
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.unlink()
    third.write_bytes(third.read_bytes() + b"x")
    (folder / "codec" / "model.safetensors").write_bytes(b"other")
    (folder / "audio.jsonl").unlink()
    found = "\n".join(faults(folder))
    for name in (first.stem, second.stem, third.stem, "codec/model.safetensors", "audio.jsonl"):
        assert name in found
    result = runner.invoke(app, ["dataset", "verify", str(folder), "--json"])
    assert isinstance(result.exception, HocketError) and result.exception.code is Code.SHARD_DAMAGED
    assert len(json.loads(result.stdout)["faults"]) == 5


def test_rows_that_contradict_the_manifest_are_named(tmp_path: Path) -> None:
    odd = [made_up_row(1, language="de"), made_up_row(2, speaker="nobody"), made_up_row(3, licence="mine")]
    rows = [*odd, made_up_row(4), made_up_row(4)]
    write_dataset(tmp_path, [rows], [[made_up_row(4), made_up_row(5)]])
    found = "\n".join(faults(tmp_path))
    for part in ("'de'", "'nobody'", "'mine'", "clip-4: is there twice", "clip-4: is held out and trained on"):
        assert part in found


def test_counts_beyond_the_manifest_are_faults(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, [[made_up_row(1)]], [[made_up_row(2)]])
    wrong = manifest.shards[0].model_copy(update={"rows": 2})
    write_dataset(tmp_path, [[made_up_row(1)]], [[made_up_row(2)]], shards=[wrong])
    assert "rows" in faults(tmp_path)[0]
    write_dataset(tmp_path, [[made_up_row(1)]], [[made_up_row(2)]], phonemes=["<pad>", "_", "|"])
    assert any("out of range" in fault for fault in faults(tmp_path))


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    for command in ("show", "verify", "stats"):
        result = runner.invoke(app, ["dataset", command, str(tmp_path)])
        assert isinstance(result.exception, HocketError) and result.exception.code is Code.CORPUS_UNREADABLE
    (tmp_path / "manifest.json").write_text("{}")
    result = runner.invoke(app, ["dataset", "show", str(tmp_path)])
    assert isinstance(result.exception, HocketError) and result.exception.code is Code.MANIFEST_INVALID


def test_show_gives_the_manifest_and_the_first_rows(folder: Path) -> None:
    facts = json.loads(runner.invoke(app, ["dataset", "show", str(folder), "--rows", "2", "--json"]).stdout)
    assert facts["clips"] == 14 and [row["id"] for row in facts["rows"]] == ["clip-0", "clip-1"]
    lines = runner.invoke(app, ["dataset", "show", str(folder), "--rows", "3"]).stdout
    assert "clip-2" in lines and "clip-3" not in lines and "made-up" in lines


def test_stats_are_sums_over_the_rows(folder: Path) -> None:
    rows = [made_up_row(number) for number in [*range(12), 20, 21]]
    facts = json.loads(runner.invoke(app, ["dataset", "stats", str(folder), "--json"]).stdout)
    assert facts["clips"] == 14 and facts["heldout_clips"] == 2 and facts["untranscribed_clips"] == 0
    assert facts["hours"] == pytest.approx(sum(row.n_frames for row in rows) / 50 / 3600)
    assert facts["speakers"]["voice-1"]["clips"] == sum(row.speaker == "voice-1" for row in rows)
    assert facts["languages"]["fr"]["clips"] == sum(row.language == "fr" for row in rows)
    assert sum(facts["phonemes"].values()) == sum(len(row.phonemes) for row in rows)
    assert facts["refused"] == {"H208": 1, "H212": 1} and facts["rms_db"]["median"] == -20.0
    worst = min(rows, key=lambda row: row.align_score)
    assert facts["worst_aligned"][0]["id"] == worst.id and len(facts["worst_aligned"]) == 10
    text = runner.invoke(app, ["dataset", "stats", str(folder)]).stdout
    assert "14 clips" in text and "a recording does not say its text" in text


class Tags(HTMLParser):
    """The tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href") or name.startswith("on")]


def test_the_page_stands_alone_and_escapes_what_strangers_wrote(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script>"onerror="x'
    rows = [made_up_row(1, id=evil, text=evil, spoken=evil, speaker=evil), made_up_row(2)]
    write_dataset(tmp_path, [rows], [[made_up_row(3)]], name=evil, speakers=[evil, "voice-0", "voice-1"])
    (tmp_path / "refused.txt").write_text(f"{evil}: H208 {evil}\n")
    dataset = open_dataset(tmp_path)
    stats = collect_stats(dataset)
    page = render_page(dataset, stats, pick(dataset.rows(), stats), load_codec(tmp_path / "codec"))
    tags = Tags(page)
    assert "script" not in tags.tags and tags.tags.count("audio") == 3 and "svg" in tags.tags
    embedded = [source for source in tags.sources if not source.startswith("#")]  # SVG refers to its own parts
    assert all(source.startswith(("data:audio/wav;base64,", "data:image/png;base64,")) for source in embedded)
    assert "&lt;script&gt;" in page
    assert len(page) < 4_000_000


def test_untranscribed_rows_are_counted_apart(tmp_path: Path) -> None:
    import numpy as np

    row = made_up_row(1)
    bare = replace(
        row,
        text="",
        spoken="",
        phonemes=np.array([1], np.uint16),
        durations=np.array([row.n_frames], np.uint16),
        word_starts=np.zeros(1, np.uint8),
    )
    write_dataset(tmp_path, [[bare, made_up_row(2)]], [[made_up_row(3)]])
    facts = json.loads(runner.invoke(app, ["dataset", "stats", str(tmp_path), "--json"]).stdout)
    assert facts["untranscribed_clips"] == 1 and len(facts["worst_aligned"]) == 2


PEAK = """
import sys
from pathlib import Path
from tokenizer.dataset_folder import open_dataset
from tokenizer.report.verify import verify_dataset
from simulations.usage import peak_bytes

found = verify_dataset(open_dataset(Path(sys.argv[1])), lambda done, total: None)
print(found.rows, len(found.faults), peak_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_verifying_takes_a_shard_at_a_time(tmp_path: Path) -> None:
    peaks = {}
    for shards in (2, 40):
        training = [[made_up_row(1000 * shard + number) for number in range(150)] for shard in range(shards)]
        write_dataset(tmp_path / str(shards), training, [[made_up_row(999)]])
        command = [sys.executable, "-c", PEAK, str(tmp_path / str(shards))]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        rows, wrong, peaks[shards] = (int(number) for number in ran.stdout.split())
        assert (rows, wrong) == (150 * shards + 1, 0)
    assert peaks[40] - peaks[2] < 16 * 2**20


def test_symbols_and_measures_of_strangers_do_not_break_the_page(tmp_path: Path) -> None:
    symbols = ["<pad>", "_", "|", "$\\nonsense{$", "</svg><script>", *[f"{'x' * 500}{number}" for number in range(70)]]
    write_dataset(tmp_path, [[made_up_row(number) for number in range(9)]], [[made_up_row(20)]], phonemes=symbols)
    lines = ['{"id": "clip-7", "peak_db": NaN, "rms_db": 1, "clipped": 0}', "[" * 100_000, "{}", "no JSON"]
    lines += [f'{{"id": "clip-{n}", "peak_db": -1, "rms_db": {-20 + n}, "clipped": 0.1}}' for n in (3, 6, 5)]
    (tmp_path / "audio.jsonl").write_text("\n".join(lines))
    (tmp_path / "refused.txt").write_text(f"x: H{'9' * 5000} y\nz: H208 w\n")
    dataset = open_dataset(tmp_path)
    stats = collect_stats(dataset)
    assert stats.clipped == 3 and stats.loudest == (-14.0, "clip-6") and dict(stats.refused) == {208: 1}
    played = pick(dataset.rows(), stats)
    assert any(one.row.id == "clip-6" for one in played)
    assert "script" not in Tags(render_page(dataset, stats, played[:1], load_codec(tmp_path / "codec"))).tags


def test_what_a_terminal_would_obey_is_not_printed(tmp_path: Path) -> None:
    evil = "\x1b]0;gone\x07\x1b[2J"
    write_dataset(tmp_path, [[made_up_row(1, id=evil, spoken=evil)]], [[made_up_row(2)]], name=evil)
    for command in ("show", "stats"):
        text = runner.invoke(app, ["dataset", command, str(tmp_path)]).stdout
        assert "gone" in text and "\x1b" not in text and "\x07" not in text


def test_all_faults_are_counted_and_some_are_kept(tmp_path: Path) -> None:
    rows = [made_up_row(number, speaker="nobody") for number in range(1100)]
    write_dataset(tmp_path, [rows], [[made_up_row(2000)]], untranscribed_rows=3)
    found = verify_dataset(open_dataset(tmp_path), lambda done, total: None)
    assert found.count == 1101 and len(found.faults) == 1000
    result = runner.invoke(app, ["dataset", "verify", str(tmp_path)])
    assert (
        isinstance(result.exception, HocketError)
        and "1101 faults" in result.exception.detail
        and "and 1081 more" in result.stdout
    )


def test_a_manifest_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="aligners"):
        write_dataset(tmp_path, [[made_up_row(1)]], [[made_up_row(2)]], aligners={"../../secret": cid_of(b"x")})
