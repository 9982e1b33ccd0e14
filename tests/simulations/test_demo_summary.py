"""What a demo says of itself, and when it calls itself a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.run_config import RunConfig
from simulations.demo import DEMO, shortcomings, summary, unintelligible
from simulations.simulate import run_file


def report(**changes: Any) -> dict[str, Any]:
    stage = {"rule": "mean", "f": 0, "n": 2, "tolerates": 0, "accepted": 2, "refused": []}
    rounds = [
        {"round": number, "loss": loss, "heldout_loss": loss + 0.1, "frames": 1000, "seconds": 2.0, "stages": [stage] * 3}
        for number, loss in ((1, 5.0), (2, 4.4))
    ]
    hops = [{"stage": stage_number, "peer_id": "p", "pid": 40 + stage_number} for stage_number in range(3)]
    return {
        "run_id": "demo-0",
        "seconds": 400.0,
        "rounds": rounds,
        "frames_per_second": {"median": 500.0, "slowest": 400.0, "fastest": 600.0},
        "recoveries": [
            {"process": "worker-2", "pid": 77, "stage": 1, "round": 3, "seconds": 1.25, "rerouted_microbatches": 2},
        ],
        "bytes_sent": {"activations": 2**21, "updates": 2**20},
        "acked_updates": 12,
        "acked_updates_lost": 0,
        "duplicate_microbatches": 0,
        "dropped_microbatches": 1,
        "missed_plan_steps": [],
        "paths": {"round": 3, "pids": [40, 41, 42], "microbatches": [{"id": 9, "frames": 300, "seconds": 0.5, "path": hops}]},
        "memory_pss_bytes": {"coordinator": {"own": 2**27, "total": 2**28}, "worker-0": {"own": 2**28, "total": 2**29}},
        "speech": {
            "cid": "bafyfinal",
            "round": 8,
            "signer": "coordinatorkey",
            "fetch_s": 1.5,
            "loss_right_text": 3.2,
            "loss_shuffled_text": [4.0, 4.1, 4.05],
            "reads_its_text": True,
            "text": "the cat sat",
            "speech_s": 2.5,
            "rates": {"0.8": 2.0, "1.0": 2.5, "1.4": 3.5},
        },
        "watch": [{"round": 6}, {"round": 8}],
        "alarms": [{"round": 6, "kind": "speaker_behind", "group": "speaker x", "reason": "after round 6: x is behind"}],
        "evaluation": {
            kind: {"wer": wer, "n": 100} for kind, wer in (("synthesis", 0.18), ("codec", 0.13), ("recordings", 0.11))
        },
        **changes,
    }


def test_the_summary_says_everything_that_is_asked_of_it() -> None:
    text = "\n".join(summary(report(), Path("demo-out")))
    for part in (
        "round 1: loss 5.000", "round 2: loss 4.400", "held out 4.500", "500 frames/s", "worker-2 (pid 77, stage 1) in round 3",
        "needed 1.25 s", "3.200 with the right text", "4.000, 4.100, 4.050", "activations 2.0 MiB", "lost 0", "bafyfinal",
        "9: 40>41>42", "512 MiB", "128 MiB", "the cat sat", "sample.wav",
        "Alarm: after round 6: x is behind", "Previews of rounds 6, 8",
        "2.00 s at rate 0.8", "3.50 s at rate 1.4", "synthesis 0.180, codec 0.130, recordings 0.110 (100 sentences)",
    ):  # fmt: skip
        assert part in text, part


def test_a_stage_that_never_resumed_is_said_so() -> None:
    recovery = {"process": "w", "pid": 1, "stage": 1, "round": 2, "seconds": None, "rerouted_microbatches": 0}
    assert "never resumed" in "\n".join(summary(report(recoveries=[recovery]), Path("x")))


def test_a_good_run_has_no_shortcomings_and_each_fault_is_named() -> None:
    assert shortcomings(report()) == []
    flat = report()
    flat["rounds"][-1]["loss"] = 4.6
    assert "did not fall" in shortcomings(flat)[0]
    assert "shuffled" in shortcomings(report(speech={**report()["speech"], "reads_its_text": False}))[0]
    assert "in no manifest" in shortcomings(report(acked_updates_lost=1))[0]
    assert "not carried out" in shortcomings(report(missed_plan_steps=["kill"]))[0]
    hurried = report(speech={**report()["speech"], "rates": {"0.8": 2.2, "1.0": 2.5}})
    assert "at rate 0.8 the sentence takes 2.20 s" in shortcomings(hurried)[0]


def test_a_voice_that_nobody_understands_is_named() -> None:
    evaluation = report()["evaluation"]
    assert unintelligible(evaluation) == []
    assert "at most 0.2 is wanted" in unintelligible({**evaluation, "synthesis": {"wer": 0.21, "n": 100}})[0]
    (beyond,) = unintelligible({**evaluation, "codec": {"wer": 0.07, "n": 100}})
    assert "the codec's own 0.070" in beyond


def test_where_nobody_could_listen_the_summary_says_why() -> None:
    deaf = {"not_measured": "H999 faster_whisper cannot be imported"}
    assert unintelligible(deaf) == []
    assert "not measured: H999" in "\n".join(summary(report(evaluation=deaf), Path("x")))


def test_the_demos_run_file_is_one_that_the_coordinator_reads() -> None:
    config = RunConfig.parse(run_file(DEMO, Path("/data/x")))
    assert (config.model.stages, config.rounds.replicas_wanted) == (3, 2) and config.rounds.count >= 5
    assert config.data.manifest == "/data/x" and config.checkpoint.keep > config.rounds.count
