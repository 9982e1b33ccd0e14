"""A lie that its own signed bytes prove leaves no trace: the version is the one that there would be without its member."""

from __future__ import annotations

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from audited_members import LR, Replica, opened_round, stream
from door_in_process import Aborted, Context, House, within
from scripted_run import MEMORY

from common.errors import Code
from coordinator.rounds import Phase
from protocol.generated import hocket_pb2 as pb
from protocol.messages import make_signed
from protocol.openings import opening_tensors
from protocol.tensor_files import file_parts
from protocol.tensors import digest_of, encode

AUDIT = "rate = 0.0"
OPERATORS = ("a", "b", "c", "d", "e", "f", "g", "h")


def moved(member: Replica) -> dict[str, np.ndarray]:
    """An update that an optimizer could have made, another for each member."""
    draw = np.random.default_rng(member.number)
    return {name: draw.uniform(-LR, LR, zero.shape).astype(np.float32) for name, zero in member.zeros.items()}


async def end_of_round(house: House, replicas: list[Replica]) -> list[str]:
    """What the stages of the next version are, by digest."""
    for _ in range(40):
        house.clock.now += 0.05
        await house.pieces.driver.step()
        if house.state.version == 1:
            manifest = house.pieces.core.manifest
            assert manifest is not None
            return [one.sha256 for one in manifest.stages]
        for one in replicas:
            await one.watch()
    raise AssertionError(f"{house.state.phase}: {house.pieces.core.reason}")


async def train(member: Replica, update: dict[str, np.ndarray]) -> None:
    """Commit to an update in one step."""
    await member.commit(member.next_commit([]))
    await member.commit(member.next_commit([], update))


async def send_and_deny(liar: Replica, receiver: Replica) -> None:
    """Commit to another output than the one that was signed for the receiver, who is asked for the request and shows it."""
    house, place = liar.house, {"round": liar.view.round, "stage": receiver.stage}
    heads = [encode("hidden", liar.passed(0)["output"]["hidden"], "fp32").head]
    request = make_signed(
        liar.key, method="train_step", payload=pb.TrainStepRequest(**place, microbatch_id=0, tensors=heads),
        run_id=house.state.run_id, receiver=receiver.id, now_ms=int(house.clock.now * 1000), **place,
    )  # fmt: skip
    gradient = hashlib.sha256(b"gradient").digest()
    denied = liar.record(0, output=hashlib.sha256(b"another").digest(), gradient_in=gradient)
    await liar.commit(liar.next_commit([denied], moved(liar)))
    assert (await liar.submit(moved(liar))).accepted, "there is no sign of it yet"
    came = receiver.record(0, sender=liar.id, input=digest_of(heads), gradient_out=gradient)
    await receiver.commit(receiver.next_commit([came], moved(receiver)))
    shown = {"request": np.frombuffer(request.SerializeToString(), np.uint8)}
    about = receiver.about(0, receiver.commits[-1].step)
    assert (await receiver.open(pb.REQUEST, 0, step=about.step, tensors=opening_tensors(about, {}, shown))).accepted
    await house.pieces.auditing.loop.step()


async def lie_of(member: Replica, lie: str, neighbour: Replica) -> None:
    """What the liar does instead of handing in its update; it is shut out for each.

    Args:
        neighbour: a replica of the next stage.
    """
    good = moved(member)
    first = next(iter(good))
    sent = {
        "NOT_FINITE": {**good, first: good[first] * np.float32("nan")}, "NORM": {**good, first: good[first] + np.float32(1e6)},
        "ZERO": {**good, **member.zeros}, "SHAPE": {**good, first: good[first].T.copy()},
        "CHAIN": {name: np.roll(value, 1) for name, value in good.items()},
    }.get(lie, good)  # fmt: skip
    await train(member, good if lie == "CHAIN" else sent)
    if lie == "EQUIVOCATION":
        await send_and_deny(member, neighbour)
        return
    if lie == "FORK":
        other = pb.StepCommit()
        other.CopyFrom(member.commits[-1])
        other.update_digest = hashlib.sha256(b"another").digest()
        member.link(other)
        with pytest.raises(Aborted) as refused:
            await member.commit(other)
        assert refused.value.error.code is Code.QUARANTINED
        return
    house = member.house
    changes: dict[str, Any] = {"base_cid": house.state.dataset["cid"]} if lie == "STALE_BASE" else {}
    receipt = await member.submit(sent, **changes)
    assert not receipt.accepted and receipt.reason


LIES = ("NOT_FINITE", "NORM", "ZERO", "SHAPE", "CHAIN", "STALE_BASE", "FORK", "EQUIVOCATION")


async def replay(house: House, member: Replica) -> None:
    """Somebody sends again, byte by byte, what a member has handed in."""
    assert member.handed_in is not None
    data = b"".join(bytes(part) for part in file_parts(moved(member)))
    error = await house.refused(house.door.SubmitUpdate(stream(member.handed_in, data), Context()))
    assert error.code is Code.SIGNATURE_INVALID and "received before" in error.detail


def stages_of(lie: str) -> list[str]:
    """The stages after a round of four replicas a stage, of which one of the first stage does what `lie` says."""
    found: list[str] = []

    async def body(house: House) -> None:
        replicas = await opened_round(house, OPERATORS)
        liar, neighbour = replicas[3:5]
        assert 0 in await liar.lease()
        honest = [one for one in replicas if one is not liar]
        for one in honest:
            await train(one, moved(one))
        if lie == "honest":
            await train(liar, moved(liar))
        house.pieces.core.emit("phase", phase=Phase.CLOSING.value, reason="for the test")
        if lie in LIES:
            await lie_of(liar, lie, neighbour)
            assert house.state.audit.quarantined[liar.id]["kind"] == lie
        for one in replicas if lie == "honest" else honest:
            assert (await one.submit(moved(one))).accepted
            if lie == "REPLAY":
                await replay(house, one)
                assert not house.state.audit.quarantined, "nobody has signed anything false"
        found.extend(await end_of_round(house, honest))
        assert set(house.state.audit.quarantined) <= {liar.id}

    with TemporaryDirectory(dir=MEMORY) as folder:
        within(Path(folder), body, audit=AUDIT, replicas=4)
    return found


def test_a_proved_lie_leaves_the_version_as_it_is_without_its_member() -> None:
    without = stages_of("nothing")
    honest = stages_of("honest")
    assert honest[0] != without[0] and honest[1] == without[1], "an update that counts would show"
    for lie in (*LIES, "REPLAY"):
        assert stages_of(lie) == without, lie
