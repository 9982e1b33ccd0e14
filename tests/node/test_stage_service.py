"""The door of a stage: who and what is let in, and the protocol's word for each refusal."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from common.errors import Code, HocketError
from node.session import now_ms
from node.wire import ANSWER_METHOD, REQUEST_METHOD, TRAIN_STEP_PROTOCOL, StepInput, parse_signed, read_answer
from protocol.generated import hocket_pb2 as pb
from protocol.identity import MemberKey
from protocol.messages import make_signed, open_signed
from protocol.roster import RosterView
from protocol.tensors import encode
from swarm.carrier import Message, PeerRefused
from swarm.memory import MemoryCarrier


def step_input(harness: ModuleType, frames: int = 6) -> StepInput:
    config = harness.CONFIG
    generator = np.random.default_rng(frames)
    return StepInput(
        generator.standard_normal((2, frames + config.n_codebooks, config.d_model)).astype(np.float32),
        {
            "codes": generator.integers(0, config.codebook_size, (2, config.n_codebooks, frames)).astype(np.uint16),
            "n_frames": np.array([frames, frames - 2], np.int32),
            "speaker": np.zeros((2, config.speaker_dim), np.float32),
            "language": np.zeros(2, np.int32),
        },
    )


class Caller:
    """A stage-0 member of a two-stage chain that sends what it is told to."""

    def __init__(self, harness: ModuleType, chain: Any) -> None:
        self.harness, self.chain = harness, chain
        self.node, self.target = chain.at(0)[0], chain.at(1)[0]

    def request(self, given: StepInput, **changes: Any) -> tuple[pb.TrainStepRequest, list[Any]]:
        tensors = given.encode("fp32")
        request = pb.TrainStepRequest(
            run_id=self.harness.RUN,
            round=1,
            base_cid=self.harness.BASE,
            stage=1,
            microbatch_id=7,
            attempts=2,
            deadline_s=5.0,
            mode=pb.TRAIN,
            seed=3,
            inner_step_frames=40,
            generation=1,
            receiver_generation=1,
            frames=int(given.side["n_frames"].sum()),
            wire="fp32",
            tensors=[tensor.head for tensor in tensors],
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return request, [tensor.data for tensor in tensors]

    def sign(self, request: pb.TrainStepRequest, **changes: Any) -> pb.Signed:
        fields: dict[str, Any] = {
            "method": REQUEST_METHOD,
            "run_id": self.harness.RUN,
            "receiver": self.target.key.member_id,
            "round": request.round,
            "base_cid": request.base_cid,
            "stage": request.stage,
            "now_ms": now_ms(),
        }
        key = changes.pop("key", self.node.key)
        return make_signed(key, payload=request, **{**fields, **changes})

    async def send(
        self, signed: pb.Signed, body: list[Any], carrier: MemoryCarrier | None = None
    ) -> tuple[pb.TrainStepAnswer, Message]:
        message = await (carrier or self.node.carrier).call(
            self.target.peer_id, TRAIN_STEP_PROTOCOL, Message(signed.SerializeToString(), body), silence_s=2.0, deadline_s=10.0
        )
        header, payload = open_signed(
            parse_signed(message.head),
            method=ANSWER_METHOD,
            run_id=self.harness.RUN,
            receiver=self.node.key.member_id,
            now_ms=now_ms(),
            nonces=None,
            request_nonce=pb.SignedHeader.FromString(signed.header).nonce,
        )
        assert header.public_key == self.target.key.public
        return pb.TrainStepAnswer.FromString(payload), message

    async def ask(self, given: StepInput, **changes: Any) -> pb.TrainStepAnswer:
        request, body = self.request(given, **changes)
        return (await self.send(self.sign(request), body))[0]


def with_caller(harness: ModuleType, body: Callable[[Caller], Any], **changes: Any) -> Any:
    chain = harness.Chain(2, **changes)
    return harness.run_chain(chain, lambda chain: body(Caller(harness, chain)))


def test_an_honest_request_is_answered_with_the_gradient_and_the_path(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        given = step_input(harness)
        request, parts = caller.request(given)
        answer, message = await caller.send(caller.sign(request), parts)
        read = read_answer(answer, message, mode=pb.TRAIN, shape=given.hidden.shape, config=harness.CONFIG, next_stage=1)
        assert read.grad is not None and read.grad.any()
        assert [(entry.stage, entry.peer_id) for entry in read.path] == [(1, caller.target.peer_id)] and read.path[0].pid > 0
        assert list(read.losses.count) == [12, 12]

    with_caller(harness, body)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"round": 2}, pb.WRONG_ROUND),
        ({"base_cid": "another"}, pb.WRONG_BASE),
        ({"receiver_generation": 0}, pb.FENCED),
        ({"receiver_generation": 2}, pb.FENCED),
        ({"generation": 0}, pb.FENCED),
        ({"stage": 2}, pb.BAD_INPUT),
        ({"mode": pb.AUDIT}, pb.BAD_INPUT),
        ({"mode": pb.MODE_UNSPECIFIED}, pb.BAD_INPUT),
        ({"frames": 11}, pb.BAD_INPUT),
        ({"inner_step_frames": 9}, pb.BAD_INPUT),
        ({"attempts": 0}, pb.BAD_INPUT),
        ({"deadline_s": 0.0}, pb.BAD_INPUT),
        ({"deadline_s": float("nan")}, pb.BAD_INPUT),
        ({"deadline_s": 1e9}, pb.BAD_INPUT),
        ({"run_id": "another"}, pb.BAD_INPUT),
    ],
)
def test_a_request_that_does_not_fit_is_refused_by_name_and_leaves_no_trace(
    harness: ModuleType, changes: dict[str, Any], refusal: int
) -> None:
    async def body(caller: Caller) -> None:
        answer = await caller.ask(step_input(harness), **changes)
        assert (pb.Refusal.Name(answer.refusal), bool(answer.detail)) == (pb.Refusal.Name(refusal), True)
        replica = caller.target.replica
        assert replica.ledger.counted() == [] and replica.in_flight == 0
        assert not (await caller.ask(step_input(harness))).refusal

    with_caller(harness, body)


def _wrong_codes(given: StepInput) -> StepInput:
    return StepInput(given.hidden, {**given.side, "codes": np.full_like(given.side["codes"], 16)})


def _wrong_width(given: StepInput) -> StepInput:
    return StepInput(given.hidden[:, :, :-1].copy(), given.side)


def _too_long(given: StepInput) -> StepInput:
    return StepInput(given.hidden, {**given.side, "n_frames": np.array([7, 4], np.int32)})


def _wrong_dtype(given: StepInput) -> StepInput:
    return StepInput(given.hidden.astype(np.int32), given.side)  # type: ignore[arg-type]


@pytest.mark.parametrize("spoil", [_wrong_codes, _wrong_width, _too_long, _wrong_dtype])
def test_tensors_that_do_not_fit_the_model_are_bad_input(harness: ModuleType, spoil: Callable[[StepInput], StepInput]) -> None:
    async def body(caller: Caller) -> None:
        answer = await caller.ask(spoil(step_input(harness)))
        assert answer.refusal == pb.BAD_INPUT
        assert caller.target.replica.ledger.counted() == []

    with_caller(harness, body)


def test_values_that_are_not_finite_and_bytes_that_were_changed_are_bad_input(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        request, parts = caller.request(step_input(harness))
        spoilt = bytearray(parts[0])
        spoilt[:4] = np.float32("nan").tobytes()
        assert (await caller.send(caller.sign(request), [bytes(spoilt), *parts[1:]]))[0].refusal == pb.BAD_INPUT
        head = encode("hidden", np.frombuffer(parts[0], np.float32), "fp32").head
        head.sha256 = hashlib.sha256(bytes(spoilt)).digest()
        head.shape[:] = request.tensors[0].shape
        request.tensors[0].CopyFrom(head)
        assert (await caller.send(caller.sign(request), [bytes(spoilt), *parts[1:]]))[0].refusal == pb.BAD_INPUT

    with_caller(harness, body)


def test_strangers_and_impostors_are_not_served(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        given = step_input(harness)
        request, parts = caller.request(given)
        stranger = MemoryCarrier(caller.chain.network, "peer-unknown")
        # The right member's signature from another peer, and another member's from the right peer.
        assert (await caller.send(caller.sign(request), parts, stranger))[0].refusal == pb.NOT_A_MEMBER
        with pytest.raises(HocketError):  # the answer is made out to the impostor, not to the member
            await caller.send(caller.sign(request, key=MemberKey.generate()), parts)
        assert caller.target.replica.ledger.counted() == []
        await stranger.close()

    with_caller(harness, body)


def test_a_version_named_by_pages_of_text_is_refused_and_not_repeated(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        request, parts = caller.request(step_input(harness), base_cid="a" * 20_000)
        with pytest.raises(PeerRefused) as caught:
            await caller.send(caller.sign(request, base_cid=""), parts)
        assert caught.value.remote_code == Code.INPUT_INVALID

    with_caller(harness, body)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "watch"},
        {"run_id": "another"},
        {"receiver": MemberKey.from_seed(b"z" * 32).member_id},
        {"now_ms": 1_000},
    ],
    ids=["method", "run", "receiver", "time"],
)
def test_a_signature_for_something_else_is_an_error_of_the_call(harness: ModuleType, changes: dict[str, Any]) -> None:
    async def body(caller: Caller) -> None:
        request, parts = caller.request(step_input(harness))
        with pytest.raises(PeerRefused) as caught:
            await caller.send(caller.sign(request, **changes), parts)
        assert caught.value.remote_code == Code.SIGNATURE_INVALID

    with_caller(harness, body)


def test_a_replayed_request_and_a_forged_one_are_errors_of_the_call(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        request, parts = caller.request(step_input(harness))
        signed = caller.sign(request)
        assert not (await caller.send(signed, parts))[0].refusal
        with pytest.raises(PeerRefused):
            await caller.send(signed, parts)
        forged = caller.sign(request)
        forged.payload = request.SerializeToString() + b"\x10\x02"
        with pytest.raises(PeerRefused):
            await caller.send(forged, parts)
        assert len(caller.target.replica.ledger.counted()) == 1

    with_caller(harness, body)


def test_a_crowd_of_strangers_does_not_make_a_members_request_look_received_before(harness: ModuleType) -> None:
    """Each stranger's key is new and its clock ahead: were they remembered, they would push the member's key out."""

    async def body(caller: Caller) -> None:
        request, parts = caller.request(step_input(harness))
        for _ in range(4200):
            signed = caller.sign(request, key=MemberKey.generate(), now_ms=now_ms() + 50_000)
            await caller.target.service.handle(caller.node.peer_id, Message(signed.SerializeToString()))
        assert not (await caller.send(caller.sign(request), parts))[0].refusal

    with_caller(harness, body)


def test_the_same_microbatch_again_gets_the_same_bytes_and_counts_once(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        given = step_input(harness)
        answers = []
        for _ in range(3):
            request, parts = caller.request(given)
            answer, message = await caller.send(caller.sign(request), parts)
            answers.append((answer.SerializeToString(), bytes(message.body_bytes)))
        assert answers[0] == answers[1] == answers[2]
        assert caller.target.replica.ledger.counted() == [(7, 10)] and caller.target.replica.ledger.duplicates == 2

    with_caller(harness, body)


def test_the_same_microbatch_twice_at_once_is_computed_once(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        given = step_input(harness)
        first, second = await asyncio.gather(caller.ask(given), caller.ask(given))
        assert first.tensors[0].sha256 == second.tensors[0].sha256
        assert caller.target.replica.ledger.counted() == [(7, 10)] and caller.target.replica.totals.frames == 10

    with_caller(harness, body)


def test_a_caller_that_hangs_up_takes_its_microbatch_along(harness: ModuleType) -> None:
    chain = harness.Chain(3)
    middle, last = chain.at(1)[0], chain.at(2)[0]

    async def body(chain: Any) -> None:
        caller = Caller(harness, chain)
        chain.network.freeze(last.peer_id)
        asking = asyncio.create_task(caller.ask(step_input(harness), deadline_s=30.0))
        while middle.carrier.traffic.requests[TRAIN_STEP_PROTOCOL] == 0:
            await asyncio.sleep(0.01)
        assert middle.replica.in_flight == 1
        asking.cancel()
        assert await middle.replica.idle(5.0)
        assert middle.replica.ledger.counted() == [] and middle.replica.account.credit == 0
        chain.network.thaw(last.peer_id)
        assert not (await caller.ask(step_input(harness))).refusal

    harness.run_chain(chain, body)


def test_busy_is_said_when_the_step_stays_full(harness: ModuleType) -> None:
    chain = harness.Chain(3)
    middle, last = chain.at(1)[0], chain.at(2)[0]

    async def body(chain: Any) -> None:
        caller = Caller(harness, chain)
        chain.network.freeze(last.peer_id)
        asking = asyncio.create_task(caller.ask(step_input(harness), deadline_s=30.0, inner_step_frames=10))
        while middle.replica.in_flight == 0:
            await asyncio.sleep(0.01)
        refused = await caller.ask(step_input(harness, 8), microbatch_id=8, deadline_s=0.6)
        assert refused.refusal == pb.BUSY and "full" in refused.detail
        assert middle.replica.ledger.dropped == 0
        chain.network.thaw(last.peer_id)
        assert not (await asking).refusal
        assert not (await caller.ask(step_input(harness, 8), microbatch_id=8)).refusal

    harness.run_chain(chain, body)


def test_a_new_round_breaks_off_the_one_before_and_fences_it(harness: ModuleType) -> None:
    chain = harness.Chain(3)
    middle, last = chain.at(1)[0], chain.at(2)[0]

    async def body(chain: Any) -> None:
        caller = Caller(harness, chain)
        chain.network.freeze(last.peer_id)
        asking = asyncio.create_task(caller.ask(step_input(harness), deadline_s=30.0))
        while middle.replica.in_flight == 0:
            await asyncio.sleep(0.01)
        before = middle.replica
        chain.open_round(2, "next-base")
        assert (await asking).refusal == pb.DRAINING
        assert await before.idle(5.0) and before.ledger.counted() == []
        assert (await caller.ask(step_input(harness))).refusal == pb.WRONG_ROUND
        chain.network.thaw(last.peer_id)
        assert not (await caller.ask(step_input(harness), round=2, base_cid="next-base")).refusal

    harness.run_chain(chain, body)


def test_a_member_that_left_the_roster_is_not_served_any_more(harness: ModuleType) -> None:
    async def body(caller: Caller) -> None:
        node, roster = caller.target, pb.Roster()
        roster.CopyFrom(caller.chain.roster)
        del roster.entries[0]
        service = node.service
        serving = service._serving
        serving.follow(replace(serving.context, roster=RosterView(roster)))
        assert (await caller.ask(step_input(harness))).refusal == pb.NOT_A_MEMBER

    with_caller(harness, body)
