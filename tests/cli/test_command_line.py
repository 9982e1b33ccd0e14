"""The command line from outside: real processes, exit codes, one line for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.options import byte_count, new_folder, replace_own_output
from common.errors import Code, HocketError
from tokenizer.phoneme_lines import parse_phonemes


def hocket(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-c", code] if code is not None else [sys.executable, "-m", "cli.main"]
    return subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "120"})


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, cli.main; bad = {'torch', 'hivemind', 'grpc', 'numpy', 'rich.live'} & set(sys.modules); print(sorted(bad))"
    )
    assert hocket(code=code).stdout.strip() == "[]"
    answer = hocket("--help")
    assert answer.returncode == 0
    for name in (
        "demo",
        "coordinator",
        "worker",
        "ticket",
        "status",
        "simulate",
        "tokenize",
        "phonemes",
        "codec",
        "say",
        "bench",
    ):
        assert name in answer.stdout


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert hocket("--version").stdout.strip() == f"hocket {version('hocket')}"


@pytest.mark.parametrize(
    ("arguments", "number", "exit_code"),
    [
        (["ticket", "show", "hocket1:nonsense"], "H104", 2),
        (["worker", "nonsense"], "H104", 2),
        (["worker", "hocket1:x", "--fault", "nonsense"], "H106", 2),
        (["worker", "hocket1:x", "--memory-limit", "much"], "H105", 2),
        (["simulate", "--out", "{new}", "--plan", "{none}"], "H106", 2),
        (["simulate", "--out", "{full}"], "H408", 2),
        (["demo", "--out", "{full}"], "H408", 2),
    ],
)
def test_a_mistake_is_one_line_with_number_and_remedy(tmp_path: Path, arguments: list[str], number: str, exit_code: int) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep me")
    places = {"new": str(tmp_path / "new"), "none": str(tmp_path / "none.toml"), "full": str(full)}
    answer = hocket(*(argument.format(**places) for argument in arguments))
    assert answer.returncode == exit_code, answer.stderr
    (line,) = answer.stderr.splitlines()
    assert line.startswith(number) and "Remedy: " in line
    assert (full / "mine.txt").read_text() == "keep me"


@pytest.mark.parametrize("wrapped", ["error", "ExceptionGroup('several', [ValueError('x'), ExceptionGroup('inner', [error])])"])
def test_a_numbered_error_inside_a_group_of_tasks_is_found(wrapped: str) -> None:
    code = (
        "import cli.main as m\nfrom common.errors import Code, HocketError\nerror = HocketError(Code.PORT_TAKEN, 'port 1')\n"
        f"def fail() -> None:\n    raise {wrapped}\nm.app.command('fail')(fail)\nm.main()"
    )
    answer = hocket("fail", code=code)
    assert answer.returncode == 4 and answer.stderr.startswith("H405") and answer.stderr.count("\n") == 1


def test_a_fault_of_ours_is_one_line_and_its_traceback_is_kept() -> None:
    code = "import cli.main as m\ndef fail() -> None:\n    raise KeyError('surprise')\nm.app.command('fail')(fail)\nm.main()"
    answer = hocket("fail", code=code)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert "a fault of ours" in line and "surprise" in line
    log = Path(line.split("with the file ")[1].split(": ")[0])
    assert "Traceback" in log.read_text() and "in fail" in log.read_text()
    log.unlink()
    assert "Traceback" in hocket("--debug", "fail", code=code).stderr


def test_a_fault_of_ours_in_a_group_is_not_taken_for_a_mistake() -> None:
    code = "import cli.main as m\ndef fail() -> None:\n    raise ExceptionGroup('', [OSError()])\nm.app.command()(fail); m.main()"
    answer = hocket("fail", code=code)
    assert answer.returncode == 1 and "a fault of ours" in answer.stderr
    Path(answer.stderr.split("with the file ")[1].split(": ")[0]).unlink()


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("700M", 700 * 2**20), ("1.5 GiB", 3 * 2**29), ("12kb", 12 * 2**10), ("17", 17)]
)
def test_byte_counts(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5.2", "1T", "M", "1 M B"])
def test_what_is_no_byte_count(text: str) -> None:
    with pytest.raises(HocketError) as caught:
        byte_count(text)
    assert caught.value.code is Code.OPTION_INVALID


def test_only_our_own_output_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    replace_own_output(out)
    (out / "report.json").write_text("{}")
    replace_own_output(out)
    assert [path.name for path in out.iterdir()] == [".hocket-output"]
    with pytest.raises(HocketError, match="H408"):
        new_folder(out)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(HocketError, match="H408"):
        new_folder(file)


def test_phonemes_as_json() -> None:
    pytest.importorskip("tokenizer.phonemes")
    answer = hocket("phonemes", "It costs 12 pounds, doesn't it?", "--language", "en", "--json")
    assert answer.returncode == 0, answer.stderr
    facts = json.loads(answer.stdout)
    assert "twelve" in facts["spoken"] and facts["phonemes"][0] == facts["phonemes"][-1] == "_"
    assert len(facts["word_starts"]) == len(facts["phonemes"])


def test_phonemes_of_standard_input_can_be_said_again_and_list_what_is_left_out() -> None:
    command = [sys.executable, "-m", "cli.main", "phonemes", "-", "--language", "fr-CA"]
    answer = subprocess.run(command, input="Le 1er mai ☎\n\nà 9h\n", capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    first, phonemes, dropped, second, _ = answer.stdout.splitlines()
    assert (first, second, dropped) == ("Le premier mai", "à neuf heures", "left out: ☎")
    assert phonemes.startswith("_ / l ə / p ʁ ə m j e / m ɛ") and len(parse_phonemes(phonemes).phonemes) > 8


def test_a_loose_language_tag_is_refused_with_advice() -> None:
    pytest.importorskip("tokenizer.phonemes")
    answer = hocket("phonemes", "konnichiwa", "--language", "JP")
    assert answer.returncode == 3 and answer.stderr.startswith("H202") and "ja" in answer.stderr
