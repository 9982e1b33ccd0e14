"""A stage service under fire: a real one, with its engine and its weights, over the carrier in memory.

An honest replica of the stage before sends its microbatches one after the other; between them come malformed requests of three
senders: a stranger, another replica of the stage before (which is on the roster, so that only what it sends can be refused), and
the honest replica's own messages replayed. The update of the round must be that of a round in which nobody else sent anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from common.errors import Code, HocketError
from node.context import RoundContext
from node.engine import Engine
from node.local_sgd import LocalStage
from node.replica import Replica
from node.session import now_ms
from node.stage_service import Serving, StageService
from node.wire import REQUEST_METHOD, TRAIN_STEP_PROTOCOL, StepInput, parse_signed
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import make_signed
from protocol.roster import RosterView
from simulations.hostile.bulk import small_config, step_input, step_request
from simulations.hostile.call_storm import in_turn
from simulations.hostile.mutations import blind, structured
from simulations.hostile.raw import RawMemory, half_open, odd_frames, throw
from simulations.hostile.tally import Tally, faults_in_logs, own_bytes
from swarm.carrier import Message, PeerAddress, PeerRefused
from swarm.memory import MemoryNetwork
from tts.stages import build_stage

RUN, BASE = "fuzzed", "base"
HONEST_MICROBATCHES = 16
AT_ONCE = 16
HALF_OPEN = 100
GROWTH_LIMIT_BYTES = 96 << 20
_ODD_FIELDS: dict[str, tuple[Any, ...]] = {
    "run_id": ("", "other", "../x"), "round": (0, 2, 2**64 - 1), "base_cid": ("", "other", "a" * 20_000),
    "stage": (0, 2, 2**32 - 1), "generation": (0, 2, 2**64 - 1), "receiver_generation": (0, 2, 2**64 - 1),
    "mode": (0, 3, 77), "attempts": (0,), "deadline_s": (0.0, -1.0, float("nan"), float("inf"), 1e308),
    "frames": (0, 1, 11, 2**64 - 1), "inner_step_frames": (0, 1, 9),
}  # fmt: skip


@dataclass
class _Sender:
    """Somebody who calls the service."""

    key: MemberKey
    carrier: RawMemory


@dataclass
class _Scene:
    """The service, and who calls it."""

    network: MemoryNetwork = field(default_factory=MemoryNetwork)

    def __post_init__(self) -> None:
        self.config = small_config()
        self.key = MemberKey.from_seed(b"s" * 32)
        self.target = RawMemory(self.network, "stage-1")
        self.honest = _Sender(MemberKey.from_seed(b"h" * 32), RawMemory(self.network, "stage-0"))
        self.insider = _Sender(MemberKey.from_seed(b"i" * 32), RawMemory(self.network, "stage-0-too"))
        self.stranger = _Sender(MemberKey.from_seed(b"x" * 32), RawMemory(self.network, "nobody"))
        self.engine = Engine("fuzzed-stage")
        self.local = LocalStage(build_stage(self.config, 1, 2, seed=3), ordered=True, weight_decay=0.01, clip_norm=1.0)
        entries = [
            pb.RosterEntry(member_id=who.member_id, peer_id=peer, stage=stage, role=pb.REPLICA, generation=1)
            for who, peer, stage in (
                (self.honest.key, "stage-0", 0), (self.insider.key, "stage-0-too", 0), (self.key, "stage-1", 1)
            )
        ]  # fmt: skip
        settings = pb.RoundSettings(
            frames_per_inner_step=40, microbatches_per_inner_step=4, target_frames=1000, inner_lr_peak=4e-3, total_frames=10_000,
            seed=3, wire="fp32", silence_s=5.0, step_deadline_s=30.0, attempts=2, weight_decay=0.01, clip_norm=1.0,
            accumulation="ordered", lr_floor=0.03,
        )  # fmt: skip
        roster = RosterView(pb.Roster(run_id=RUN, round=1, entries=entries))
        context = RoundContext(RUN, 1, BASE, self.key.member_id, "stage-1", 1, 2, 1, roster, settings, self.config)
        self.replica = Replica(self.local, self.engine, context, lambda name, **fields: None)
        self.service = StageService(self.target, self.key, RUN)
        self.context = context

    async def start(self) -> None:
        await self.service.start()
        self.service.serve(Serving(self.context, self.replica, None))

    def signed(self, key: MemberKey, request: pb.TrainStepRequest | bytes, **changes: Any) -> pb.Signed:
        fields: dict[str, Any] = {
            "method": REQUEST_METHOD, "run_id": RUN, "receiver": self.key.member_id, "round": 1, "base_cid": BASE, "stage": 1,
            "now_ms": now_ms(),
        }  # fmt: skip
        return make_signed(key, payload=request, **{**fields, **changes})

    async def call(self, sender: _Sender, head: bytes, body: list[Any]) -> Message:
        return await sender.carrier.call("stage-1", TRAIN_STEP_PROTOCOL, Message(head, body), silence_s=5.0, deadline_s=30.0)

    async def honest_microbatch(self, number: int) -> tuple[bytes, bytes]:
        """Have one microbatch trained; its message's head, and a digest of the answer."""
        request, body = step_request(self.config, number, run_id=RUN, base_cid=BASE)
        signed = self.signed(self.honest.key, request)
        answer = await self.call(self.honest, signed.SerializeToString(), body)
        said = pb.TrainStepAnswer.FromString(parse_signed(answer.head).payload)
        if said.refusal:
            raise HocketError(Code.PEER_REFUSED, f"an honest request: {pb.Refusal.Name(said.refusal)} {said.detail}")
        return signed.SerializeToString(), hashlib.sha256(answer.body_bytes).digest()

    async def update(self) -> bytes:
        """End the round; a digest of the update, and of what was counted."""
        self.replica.drain()
        await self.replica.idle(10.0)
        update = await self.replica.close()
        return hashlib.sha256(tensors_digest(update) + repr(self.replica.ledger.counted()).encode()).digest()

    async def close(self) -> None:
        for carrier in (self.target, self.honest.carrier, self.insider.carrier, self.stranger.carrier):
            await carrier.close()
        self.engine.close()


def odd_input(draw: random.Random, given: StepInput) -> tuple[str, StepInput]:
    """An input whose heads fit its bytes and whose content does not fit the model."""
    name = draw.choice(("hidden", "codes", "n_frames", "speaker", "language"))
    arrays = {"hidden": given.hidden, **given.side}
    array = arrays[name].copy()
    way = draw.choice(("value", "dtype", "shape", "missing", "cut", "longer"))
    if way == "value":
        flat = array.reshape(-1)
        if array.dtype == np.float32:
            # Infinite as a scale or a sum, though each value is not.
            flat[:] = draw.choice((3e38, -3e38)) if name == "hidden" else float("inf")
        else:
            flat[draw.randrange(flat.size)] = draw.choice((np.iinfo(array.dtype).max, np.iinfo(array.dtype).min or 60_000))
    elif way == "dtype":
        array = array.astype(draw.choice([kind for kind in (np.uint8, np.int64, np.bool_) if np.dtype(kind) != array.dtype]))
        array = array if name in ("hidden", "speaker") or array.dtype == np.bool_ else array.reshape(-1)[:-1]
    elif way == "shape":
        array = draw.choice((array[None], array.reshape(-1)[:0], np.concatenate([array, array])))
    elif way == "cut":
        array = array[:1]
    elif way == "longer":
        array = np.concatenate([array, array[:1]])
    arrays[name] = array
    if way == "missing":
        arrays[name] = np.zeros((0,), array.dtype)
    hidden = arrays.pop("hidden")
    return f"{name}: {way}", StepInput(hidden, arrays)


def odd_request(draw: random.Random, scene: _Scene, number: int) -> tuple[str, bytes, list[Any]]:
    """A request of a replica that is on the roster; it must be refused for what it says. Kind, head, body."""
    request, body = step_request(scene.config, number, run_id=RUN, base_cid=BASE)
    key, changes = scene.insider.key, dict[str, Any]()
    way = draw.randrange(6)
    if way == 0:
        name = draw.choice(sorted(_ODD_FIELDS))
        setattr(request, name, draw.choice(_ODD_FIELDS[name]))
        kind = f"request.{name}"
    elif way == 1:
        index = draw.randrange(len(request.tensors))
        kind, head = structured(draw, request.tensors[index])
        request.tensors[index].CopyFrom(head)
    elif way == 2:
        _, spoilt = blind(draw, b"".join(bytes(part) for part in body))
        kind, body = "another body", [spoilt]
    elif way == 3:
        del request.tensors[:]
        with suppress(HocketError, ValueError):
            kind, given = odd_input(draw, step_input(scene.config, number))
            tensors = given.encode("fp32")
            request.tensors.extend(tensor.head for tensor in tensors)
            return kind, scene.signed(key, request).SerializeToString(), [tensor.data for tensor in tensors]
        kind = "no tensors"
    elif way == 4:
        changes = draw.choice((
            {"method": "watch"}, {"run_id": "other"}, {"receiver": key.member_id}, {"now_ms": now_ms() - 10**6}, {"round": 9},
            {"base_cid": "x"}, {"stage": 7},
        ))  # fmt: skip
        kind = f"header.{next(iter(changes))}"
    else:
        kind, payload = blind(draw, request.SerializeToString())
        # Only what can be read no more: a request that differs in a word that binds nothing would be a good one.
        with suppress(DecodeError):
            pb.TrainStepRequest.FromString(payload)
            payload = b"\xff" * 9
        return f"payload: {kind}", scene.signed(key, payload).SerializeToString(), body
    return kind, scene.signed(key, request, **changes).SerializeToString(), body


@dataclass
class _Storm:
    scene: _Scene
    tally: Tally
    seed: int
    heard: list[tuple[bytes, list[Any]]] = field(default_factory=list)  # honest messages, for replays

    async def one(self, number: int) -> None:
        """Send malformed message `number` and note what became of it."""
        draw, scene = random.Random(f"{self.seed}/stage/{number}"), self.scene
        who = draw.random()
        if who < 0.5:
            kind, head, body = odd_request(draw, scene, number + 1000)
            await self._call(scene.insider, f"insider: {kind}", head, body)
        elif who < 0.6 and self.heard:
            head, body = draw.choice(self.heard)
            sender = draw.choice((scene.honest, scene.insider, scene.stranger))
            await self._call(sender, "a message replayed", head, body)
        elif who < 0.75:
            request, body = step_request(scene.config, number + 1000, run_id=RUN, base_cid=BASE)
            signed = scene.signed(scene.stranger.key, request)
            kind, data = "as it should be", signed.SerializeToString()
            if draw.random() < 0.7:
                kind, data = blind(draw, data)
            await self._call(scene.stranger, f"stranger: {kind}", data, body)
        else:
            request, body = step_request(scene.config, number + 1000, run_id=RUN, base_cid=BASE)
            signed = scene.signed(scene.stranger.key, request)
            kind, data = odd_frames(draw, Message(signed.SerializeToString(), body))
            stream = await scene.stranger.carrier.raw(PeerAddress("stage-1"), TRAIN_STEP_PROTOCOL)
            self.tally.sent(kind, await throw(stream, data, pieces=draw.choice((1, 1, 50)), within_s=0.05))

    async def _call(self, sender: _Sender, kind: str, head: bytes, body: list[Any]) -> None:
        try:
            answer = await self.scene.call(sender, head, body)
        except PeerRefused as refused:
            self.tally.sent(kind, f"H{refused.remote_code}")
            if not refused.remote_code:
                self.tally.fault(f"{kind}: {refused.remote_detail}")
            return
        except HocketError as error:
            self.tally.sent(kind, f"H{int(error.code)} here")
            if error.code is not Code.MESSAGE_TOO_LARGE:
                self.tally.fault(f"{kind}: {error.line()}")
            return
        said = pb.TrainStepAnswer.FromString(parse_signed(answer.head).payload)
        self.tally.sent(kind, pb.Refusal.Name(said.refusal) if said.refusal else "answered")
        if not said.refusal:
            self.tally.fault(f"{kind}: was computed with")


async def _quiet() -> tuple[list[bytes], bytes]:
    """Digests of the answers and of the update of a round in which only the honest replica sends."""
    scene = _Scene()
    await scene.start()
    try:
        answers = [(await scene.honest_microbatch(number))[1] for number in range(HONEST_MICROBATCHES)]
        return answers, await scene.update()
    finally:
        await scene.close()


async def fuzz_stage(messages: int, seed: int) -> Tally:
    """Throw malformed requests at a stage service while it trains."""
    tally = Tally("stage service", limit_bytes=GROWTH_LIMIT_BYTES)
    began = time.monotonic()
    expected = await _quiet()
    before = own_bytes()
    scene = _Scene()
    await scene.start()
    storm = _Storm(scene, tally, seed)
    with faults_in_logs(tally):
        try:
            async with half_open(scene.stranger.carrier, [(PeerAddress("stage-1"), TRAIN_STEP_PROTOCOL)], HALF_OPEN):
                answers, sent = [], 0
                for number in range(HONEST_MICROBATCHES):
                    until = messages * (number + 1) // HONEST_MICROBATCHES
                    storming = asyncio.create_task(in_turn(range(sent, until), AT_ONCE, storm.one))
                    # It shares its thread with the storm: how long it takes here says nothing, what comes of it does.
                    head, digest = await scene.honest_microbatch(number)
                    answers.append(digest)
                    storm.heard.append((head, step_request(scene.config, number, run_id=RUN, base_cid=BASE)[1]))
                    await storming
                    sent = until
                tally.identical = (answers, await scene.update()) == expected
                tally.grew(before)
        finally:
            await scene.close()
    tally.seconds = time.monotonic() - began
    return tally
