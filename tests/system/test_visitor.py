"""From a corpus to speech: what a stranger with a ticket and a CID fetches, verifies and lets speak, in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import soundfile

from common.errors import Code, HocketError
from protocol.content import cid_of
from protocol.identity import MemberKey, member_id
from protocol.ticket import Ticket
from simulations.finish import Order, write_order
from simulations.progress import Quiet
from simulations.simulate import FinishedRun, SimulationSettings, run_module, run_simulation, run_to_the_end
from tokenizer.corpus import default_corpus

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

CLIPS = 14
HELD_OUT = 5


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A few clips of the shipped corpus, some of them held out."""
    source, folder = default_corpus(), tmp_path / "corpus"
    (folder / "wavs").mkdir(parents=True)
    lines = (source / "metadata.csv").read_text(encoding="utf-8").splitlines()[:CLIPS]
    names = [line.split("|")[0] for line in lines]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "heldout.txt").write_text("\n".join(names[-HELD_OUT:]) + "\n", encoding="utf-8")
    for name in names:
        shutil.copy(source / "wavs" / f"{name}.ogg", folder / "wavs")
    return folder


async def say_by_cid(cid: str, ticket: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "say", "Good morning.", "--checkpoint", cid, "--ticket", ticket]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    run = partial(subprocess.run, [*command, "--out", str(folder / "said.wav")], env=environment, capture_output=True, text=True)
    return await asyncio.to_thread(run)


def test_a_version_is_fetched_by_its_cid_verified_and_speaks(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    seen: dict[str, Any] = {}

    async def visit(order: Order, name: str) -> dict[str, Any]:
        path = out / f"{name}.json"
        write_order(path, order)
        outcome: dict[str, Any] = json.loads(await run_module("simulations.finish", [str(path)], out / f"{name}.log"))
        return outcome

    async def after(run: FinishedRun) -> None:
        cid = run.status["version"]["cid"]
        order = Order(ticket=run.ticket, cid=cid, out=str(out), threads=1, losses={"training": [run.report["rounds"][0]["loss"]]})
        seen["outcome"] = await visit(order, "visit")
        # Another coordinator's ticket: the same peers answer, but the version is not signed by whom the ticket names.
        other = dataclasses.replace(Ticket.decode(run.ticket), coordinator_key=MemberKey.generate().public).encode()
        with pytest.raises(HocketError) as caught:
            await visit(dataclasses.replace(order, ticket=other, out=str(tmp_path / "other")), "other")
        assert caught.value.code is Code.MANIFEST_INVALID and "it is signed by" in caught.value.detail
        nobody = cid_of(b"a block that nobody has")
        with pytest.raises(HocketError) as caught:
            await visit(dataclasses.replace(order, cid=nobody, out=str(tmp_path / "nobody")), "nobody")
        assert caught.value.code is Code.BLOCK_NOT_FOUND
        # The command line does the same: with the ticket once, then from its cache without any peer.
        for ticket in (run.ticket, dataclasses.replace(Ticket.decode(run.ticket), bootstrap_multiaddrs=()).encode()):
            said = await say_by_cid(cid, ticket, tmp_path)
            assert said.returncode == 0, said.stderr
            assert soundfile.info(tmp_path / "said.wav").duration > 0.1
            (tmp_path / "said.wav").unlink()
        assert not (tmp_path / "other" / "checkpoint").exists() and not (tmp_path / "nobody" / "checkpoint").exists()

    settings = SimulationSettings(
        stages=2, replicas=1, rounds=1, inner_steps=2, frames_per_inner_step=600, corpus=corpus, time_limit_s=200.0
    )
    report = run_to_the_end(run_simulation(settings, out, Quiet(), after=after))
    outcome = seen["outcome"]
    assert (outcome["cid"], outcome["round"], outcome["version"]) == (report["final_version"]["cid"], 1, 1)
    assert outcome["signer"] == member_id(Ticket.decode((out / "coordinator" / "ticket.txt").read_text().strip()).coordinator_key)
    assert outcome["heldout_utterances"] == HELD_OUT and len(outcome["loss_shuffled_text"]) == 3
    # The held-out loss that the workers measured through the chain is the one of the merged model in one process.
    assert outcome["loss_right_text"] == pytest.approx(report["rounds"][0]["heldout_loss"], rel=1e-4)
    sound = soundfile.info(out / "sample.wav")
    assert sound.samplerate == 16000 and sound.duration == pytest.approx(outcome["speech_s"], abs=0.05) and sound.duration > 0.5
    assert {"config.json", "model.safetensors", "codec"} <= {path.name for path in (out / "checkpoint").iterdir()}
    assert (out / "spectrogram.png").is_file() and (out / "loss.png").is_file()
