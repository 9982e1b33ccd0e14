"""The sign of life: what counts as alive, and what a health check sees of a real process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, HocketError
from common.heartbeat import FILE, Beat, beat_now, check, judge, keep_beating, read_beat

NOW = Beat("boot", 1000.0, 7)


@given(age_s=st.floats(-1e6, 1e6), same_boot=st.booleans(), exists=st.booleans(), fresh_s=st.floats(0, 1e5))
def test_alive_is_who_exists_and_gave_a_fresh_sign_since_the_machine_started(
    age_s: float, same_boot: bool, exists: bool, fresh_s: float
) -> None:
    last = Beat("boot" if same_boot else "earlier boot", NOW.since_boot_s - age_s, 9)
    alive, reason = judge(last, NOW, lambda pid: exists and pid == 9, fresh_s)
    gone = NOW.since_boot_s - last.since_boot_s
    assert alive == (same_boot and exists and 0 <= gone <= fresh_s)
    assert reason


def test_without_a_sign_nothing_is_alive() -> None:
    assert judge(None, NOW, lambda pid: True, 60.0) == (False, "no sign of life yet")


@pytest.mark.parametrize("text", [
    "", "{", "[]", "{}", '{"boot": "b", "since_boot_s": "x", "pid": 1}', '{"boot": "b", "since_boot_s": 1, "pid": 1e999}',
    '{"boot": "' + "x" * 5000 + '", "since_boot_s": 1, "pid": 1}',
])  # fmt: skip
def test_a_damaged_file_is_no_sign(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_beat(tmp_path) is None


def test_a_beating_process_is_alive_until_it_ends(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from common.heartbeat import keep_beating\n"
        "async def main():\n"
        "    beating = asyncio.create_task(keep_beating(Path(sys.argv[1]), every_s=0.05))\n"
        "    while not Path(sys.argv[1], 'heartbeat.json').exists(): await asyncio.sleep(0.01)\n"
        "    print('up', flush=True); await asyncio.to_thread(sys.stdin.read); beating.cancel()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert f"process {process.pid} " in check(tmp_path)
        process.stdin.close()
        assert process.wait() == 0
    with pytest.raises(HocketError) as caught:
        check(tmp_path)
    assert caught.value.code is Code.NOT_ALIVE and f"process {process.pid} has ended" in caught.value.detail


def test_a_full_disk_is_logged_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "state"
    place.write_text("in the way")

    async def scenario() -> None:
        beating = asyncio.create_task(keep_beating(place, every_s=0.01))
        while not caplog.records:
            await asyncio.sleep(0.005)
        place.unlink()
        while read_beat(place) is None:
            await asyncio.sleep(0.005)
        beating.cancel()

    asyncio.run(scenario())
    found = read_beat(place)
    assert found is not None and replace(found, since_boot_s=0) == replace(beat_now(), since_boot_s=0)
    assert found.pid == os.getpid() and "H401" in caplog.text
