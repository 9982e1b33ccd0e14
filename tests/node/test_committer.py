"""Commits reach the coordinator in order, what it draws is opened, and a witness comes to what the prover came to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from common.errors import Code, HocketError
from node.committer import Committer
from node.session import Session, now_ms
from node.stage_service import Serving
from node.submission import Submission
from protocol.calibration import shipped_calibration
from protocol.commitments import tensors_digest
from protocol.generated import hocket_pb2 as pb
from protocol.generated import hocket_pb2_grpc as rpc
from protocol.identity import MemberKey, member_id
from protocol.messages import make_signed, open_signed
from protocol.opening_checks import pass_misfit, step_misfit
from protocol.openings import read_pass, read_request, read_step
from protocol.tensor_files import read_tensors, write_tensors
from protocol.ticket import Ticket
from tts.referee import Referee

COORDINATOR = MemberKey.from_seed(b"c" * 32)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Auditor(rpc.CoordinatorServicer):
    """Takes commits, openings and updates; `draw` says what is to be opened of a commit, `refusals` come first.

    An opening is answered once `answers` is set.
    """

    def __init__(self, run: str, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.draw: Callable[[pb.StepCommit], pb.CommitReply] = lambda commit: pb.CommitReply()
        self.draw_last = False
        self.refusals: list[tuple[grpc.StatusCode, str]] = []
        self.commits: list[pb.StepCommit] = []
        self.updates: list[tuple[pb.UpdateHead, Path]] = []
        self.openings: list[tuple[pb.OpeningHead, dict[str, np.ndarray]]] = []
        self.paths: list[Path] = []
        self.came = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    def _open(self, signed: pb.Signed, method: str) -> tuple[pb.SignedHeader, bytes]:
        return open_signed(
            signed, method=method, run_id=self.run, receiver=COORDINATOR.member_id, now_ms=now_ms(), nonces=None
        )

    def _sign(self, header: pb.SignedHeader, reply: Any) -> pb.Signed:
        return make_signed(
            COORDINATOR, method=header.method, payload=reply, run_id=self.run, receiver=member_id(header.public_key),
            now_ms=now_ms(), nonce=header.nonce,
        )  # fmt: skip

    async def Commit(self, request: pb.Signed, context: Any) -> pb.Signed:
        if self.refusals:
            await context.abort(*self.refusals.pop(0))
        header, payload = self._open(request, "commit")
        commit = pb.StepCommit.FromString(payload)
        self.commits.append(commit)
        return self._sign(header, self.draw(commit))

    async def _file(self, chunks: AsyncIterator[pb.UpdateChunk], method: str) -> tuple[pb.SignedHeader, bytes, Path]:
        path = self.folder / f"{method}-{len(self.openings) + len(self.updates)}"
        header, payload = pb.SignedHeader(), b""
        with path.open("wb") as stream:
            async for chunk in chunks:
                if chunk.WhichOneof("part") == "head":
                    header, payload = self._open(chunk.head, method)
                stream.write(chunk.data)
        return header, payload, path

    async def SubmitOpening(self, request_iterator: AsyncIterator[pb.UpdateChunk], context: Any) -> pb.Signed:
        header, payload, path = await self._file(request_iterator, "submit_opening")
        head = pb.OpeningHead.FromString(payload)
        self.openings.append((head, read_tensors(path)))
        self.paths.append(path)
        self.came.set()
        await self.answers.wait()
        return self._sign(header, pb.UpdateReceipt(round=head.round, stage=head.stage, sha256=head.sha256, accepted=True))

    async def SubmitUpdate(self, request_iterator: AsyncIterator[pb.UpdateChunk], context: Any) -> pb.Signed:
        header, payload, path = await self._file(request_iterator, "submit_update")
        head = pb.UpdateHead.FromString(payload)
        self.updates.append((head, path))
        receipt = pb.UpdateReceipt(
            round=head.round, stage=head.stage, sha256=head.sha256, accepted=True, open_step=self.draw_last
        )
        return self._sign(header, receipt)

    async def opened(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.openings) < count:
                self.came.clear()
                await self.came.wait()


class Audited:
    """One node of a chain with a committer that talks to an auditor."""

    def __init__(self, harness: ModuleType, node: Any, auditor: Auditor, port: int, folder: Path) -> None:
        self.node, self.auditor, self.fetched = node, auditor, {}  # type: ignore[var-annotated]
        ticket = Ticket(harness.RUN, (f"127.0.0.1:{port}",), COORDINATOR.public, b"", ())
        self.session = Session(ticket, node.key)
        self.committer = Committer(self.session, self._fetch, folder, node.event, lambda: None)
        self.submission = Submission(self.session, self.committer, folder / "update.safetensors", node.event)

    async def _fetch(self, cid: str, providers: Any) -> dict[str, np.ndarray]:
        return self.fetched[cid]  # type: ignore[no-any-return]

    async def submit(self) -> bool:
        self.node.replica.drain()
        return await self.submission.send(Serving(self.node.context, self.node.replica, None), lambda: True)


Body = Callable[[Any, Audited], Awaitable[None]]


def audited(harness: ModuleType, folder: Path, body: Body, *, stage: int = 1, leases: int = 3, **changes: Any) -> None:
    """Run `body` with a chain of two stages whose node of `stage` commits."""
    chain = harness.Chain(2, leases=harness.Leases(leases), **changes)

    async def run(chain: Any) -> None:
        auditor = Auditor(harness.RUN, folder)
        server = grpc.aio.server()
        rpc.add_CoordinatorServicer_to_server(auditor, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        one = Audited(harness, chain.nodes[stage], auditor, port, folder)
        try:
            await one.committer.open(one.node.replica, b"")
            await body(chain, one)
            assert one.committer.failures() == []
        finally:
            await one.committer.end(3.0)
            await one.session.close()
            await server.stop(None)

    harness.run_chain(chain, run)


@pytest.mark.parametrize(("stage", "wire"), [(0, "bf16"), (1, "int8")])
def test_what_is_drawn_is_opened_and_is_what_was_committed(harness: ModuleType, tmp_path: Path, stage: int, wire: str) -> None:
    async def body(chain: Any, one: Audited) -> None:
        auditor, local = one.auditor, one.node.local
        base = {name: value.copy() for name, value in local.base_arrays().items()}
        auditor.draw = lambda commit: pb.CommitReply(
            open_step=commit.step >= 2,
            open_microbatches=[record.id for record in commit.records[1:2] if commit.step == 1],
        )
        auditor.draw_last = True
        await chain.work()
        assert await one.submit()
        await auditor.opened(4)
        commits = {commit.step: commit for commit in auditor.commits}
        assert [commit.step for commit in auditor.commits] == [0, 1, 2, 3]
        head, update = auditor.updates[0]
        assert (head.chain_link, head.chain_step) == (commits[3].link, 3)
        assert tensors_digest(read_tensors(update)) == commits[3].update_digest
        kinds = [(head.kind, head.step) for head, _ in auditor.openings]
        assert kinds == [(pb.PASS_INPUT, 1), (pb.PASS_OUTPUT, 1), (pb.STEP, 2), (pb.STEP, 3)]
        # What has just been sent is not sent again for a view that was made before it came; what was not is.
        tasks = [pb.OpeningTask(kind=pb.STEP, round=1, step=3), pb.OpeningTask(kind=pb.REQUEST, round=1, microbatch_id=1)]
        one.committer.asked(pb.RunView(openings=tasks))
        await auditor.opened(5)
        assert auditor.openings[4][0].kind == pb.REQUEST
        record = commits[1].records[1]
        inner = {"input": True, "gradient_in": stage == 0, "output": False, "gradient_out": False}
        outer = {"input": False, "gradient_in": False, "output": True, "gradient_out": stage == 1}
        for (head, tensors), groups in zip(auditor.openings[:2], (inner, outer), strict=True):
            assert head.microbatch_id == record.id
            assert pass_misfit(read_pass(tensors), record, groups) == ""
        for head, tensors in auditor.openings[2:4]:
            opened = read_step(tensors)
            assert step_misfit(opened, base, commits[head.step - 1], commits[head.step], is_last=stage == 1) == ""
            settings = one.node.context.settings
            assert (opened.about.clip_norm, opened.about.weight_decay) == (settings.clip_norm, settings.weight_decay)

    audited(harness, tmp_path, body, stage=stage, wire=wire)


@pytest.mark.parametrize(("stage", "wire"), [(0, "int8"), (1, "bf16"), (1, "fp32")])
def test_the_referee_agrees_with_honest_work(harness: ModuleType, tmp_path: Path, stage: int, wire: str) -> None:
    async def body(chain: Any, one: Audited) -> None:
        auditor, settings = one.auditor, one.node.context.settings
        write_tensors(tmp_path / "base", one.node.local.base_arrays())
        auditor.draw = lambda commit: pb.CommitReply(
            open_step=commit.step == 2, open_microbatches=[record.id for record in commit.records[:1] if commit.step == 1]
        )
        await chain.work()
        await auditor.opened(3)
        commits = [commit.SerializeToString().hex() for commit in auditor.commits]
        common = {"stage": stage, "base": str(tmp_path / "base"), "wire": wire, "seed": settings.seed}
        member = one.node.key.member_id
        referee = Referee(chain.config, 2, shipped_calibration())
        found = referee.judge(
            {
                **common, "id": "p", "kind": "pass", "microbatch_id": auditor.openings[0][0].microbatch_id,
                "input": str(auditor.paths[0]), "outputs": {member: str(auditor.paths[1])}, "prover": member,
                "commit": commits[1], "challenge": "ab" * 32,
            }
        )  # fmt: skip
        assert found["verdicts"][member]["ok"] is True, found
        step = {
            **common, "id": "s", "kind": "step", "opening": str(auditor.paths[2]), "weight_decay": settings.weight_decay,
            "clip_norm": settings.clip_norm, "commit": commits[2], "previous": commits[1],
        }  # fmt: skip
        found = referee.judge(step)
        assert found["ok"] is True, found
        # The same file under the commits of another step is not what was committed to.
        found = referee.judge({**step, "commit": commits[1], "previous": commits[0]})
        assert found["fault"] == "opening", found

    audited(harness, tmp_path, body, stage=stage, leases=2, wire=wire)


@pytest.mark.parametrize(("stage", "wire"), [(0, "fp32"), (1, "bf16")])
def test_a_witness_comes_to_what_the_prover_came_to(harness: ModuleType, tmp_path: Path, stage: int, wire: str) -> None:
    async def body(chain: Any, one: Audited) -> None:
        auditor = one.auditor
        auditor.draw = lambda commit: pb.CommitReply(open_microbatches=[one.id for one in commit.records if commit.step == 1])
        await chain.work()
        count = len(auditor.commits[1].records)
        await auditor.opened(2 * count)
        context = one.node.context
        wanted = {}
        view = pb.RunView()
        for head, tensors in auditor.openings:
            name = f"audit-{head.microbatch_id}"
            if head.kind == pb.PASS_INPUT:
                one.fetched[name] = tensors
                task = pb.WitnessTask(audit_id=name, round=context.round, stage=stage, base_cid=context.base_cid, input_cid=name)
                task.microbatch_id = head.microbatch_id
                view.witness.append(task)
            else:
                wanted[name] = read_pass(tensors)
        # Of another round and another microbatch than they say: nothing is answered to these.
        view.witness.append(pb.WitnessTask(audit_id="other round", round=9, stage=stage, base_cid=context.base_cid))
        wrong = pb.WitnessTask(audit_id="wrong", round=context.round, stage=stage, base_cid=context.base_cid, microbatch_id=77)
        wrong.input_cid = view.witness[0].input_cid
        view.witness.insert(0, wrong)
        for _ in range(3):
            one.committer.asked(view)  # the view is told again and again
        await auditor.opened(3 * count)
        answers = auditor.openings[2 * count :]
        assert sorted(head.audit_id for head, _ in answers) == sorted(wanted)
        for head, tensors in answers:
            opened, prover = read_pass(tensors), wanted[head.audit_id]
            assert head.kind == pb.WITNESS and opened.about.member_id == one.node.key.member_id
            # The same machine: the same bits, although the stage has been trained since.
            names = ("hidden",) if stage == 0 else ("ce", "count")
            for name in names:
                assert opened.output.arrays[name].tobytes() == prover.output.arrays[name].tobytes()
            if stage == 1:
                assert opened.gradient_out.arrays["grad"].tobytes() == prover.gradient_out.arrays["grad"].tobytes()
        faults = [event["fault"] for event in one.node.named("witnessed")]
        assert sum(bool(fault) for fault in faults) == 1

    audited(harness, tmp_path, body, stage=stage, leases=2, wire=wire)


def test_signed_messages_are_opened_where_two_ends_disagree(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any, one: Audited) -> None:
        await chain.work()
        await one.committer.settled(lambda: True)
        record = one.auditor.commits[1].records[0]
        task = pb.OpeningTask(kind=pb.REQUEST, round=1, step=1, microbatch_id=record.id, audit_id="a")
        gone = pb.OpeningTask(kind=pb.STEP, round=1, step=1, audit_id="b")
        one.committer.asked(pb.RunView(openings=[task, gone]))
        await one.auditor.opened(1)
        (head, tensors) = one.auditor.openings[0]
        assert (head.kind, head.microbatch_id, head.audit_id, head.step) == (pb.REQUEST, record.id, "a", 1)
        _, request, answer = read_request(tensors)
        header, payload = open_signed(
            pb.Signed.FromString(request), method="train_step", run_id=harness.RUN, receiver=one.node.key.member_id,
            now_ms=now_ms(), nonces=None,
        )  # fmt: skip
        assert member_id(header.public_key) == record.sender == chain.nodes[0].key.member_id
        assert pb.TrainStepRequest.FromString(payload).microbatch_id == record.id and answer == b""

    audited(harness, tmp_path, body)


def test_a_request_is_opened_while_the_newest_commit_is_still_being_made(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any, one: Audited) -> None:
        await chain.work()
        await one.committer.settled(lambda: True)
        record, recorder = one.auditor.commits[1].records[0], one.node.replica.recorder
        recorder.stepped([], 0, 0.1, 1.0, one.node.local.copied_state())
        assert not recorder.last().commit.done()
        one.committer.asked(
            pb.RunView(openings=[pb.OpeningTask(kind=pb.REQUEST, round=1, step=1, microbatch_id=record.id, audit_id="a")])
        )
        await one.auditor.opened(1)
        (head, tensors) = one.auditor.openings[0]
        assert (head.kind, head.step, head.part, head.audit_id) == (pb.REQUEST, 1, 0, "a")
        assert read_request(tensors)[1]

    audited(harness, tmp_path, body, leases=1)


def test_a_commit_that_is_refused_ends_the_recording_and_not_the_training(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any, one: Audited) -> None:
        one.auditor.refusals = [(grpc.StatusCode.FAILED_PRECONDITION, HocketError(Code.COMMIT_REFUSED, "no").line())]
        await chain.work()
        assert one.node.replica.totals.inner_steps == 6
        assert await one.submit()
        head, _ = one.auditor.updates[0]
        assert head.chain_link == b"" and len(head.microbatches) == 24
        (event,) = one.node.named("commit_refused")
        assert f"H{Code.COMMIT_REFUSED}" in event["reason"] and not one.auditor.commits

    audited(harness, tmp_path, body, leases=6)


def test_a_coordinator_that_is_away_gets_every_commit_once_it_is_back(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any, one: Audited) -> None:
        one.auditor.refusals = [(grpc.StatusCode.UNAVAILABLE, "starting")] * 2
        await chain.work()
        assert await one.submit()
        assert [commit.step for commit in one.auditor.commits] == [0, 1, 2, 3]
        assert one.auditor.updates[0][0].chain_step == 3

    audited(harness, tmp_path, body)


def test_a_stage_that_is_built_anew_begins_another_chain(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any, one: Audited) -> None:
        await chain.work()
        await one.committer.settled(lambda: True)
        saved = await one.committer.saved_link()
        assert saved == one.auditor.commits[-1].link
        await one.committer.open(one.node.replica, saved)
        last = await one.committer.settled(lambda: True)
        first = one.auditor.commits[-2]
        assert last is not None and (last.step, last.part, last.previous) == (0, 1, saved)
        assert (last.update_digest, last.moments_digest) == (first.update_digest, first.moments_digest)

    audited(harness, tmp_path, body, leases=1)


def test_a_chain_that_is_begun_again_later_has_a_number_of_its_own(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any, one: Audited) -> None:
        await one.committer.settled(lambda: True)
        first = one.node.context
        for context in (replace(first, round=first.round + 1), first):  # an older view came after a newer one
            one.node.replica.context = context
            await one.committer.open(one.node.replica, b"")
            last = await one.committer.settled(lambda: True)
        assert last is not None and (last.round, last.generation, last.part) == (first.round, first.generation, 1)

    audited(harness, tmp_path, body, leases=0)


def test_what_is_drawn_is_waited_for_before_a_good_bye(harness: ModuleType, tmp_path: Path) -> None:
    async def body(chain: Any, one: Audited) -> None:
        auditor = one.auditor
        auditor.draw = lambda commit: pb.CommitReply(open_step=commit.step == 1)
        auditor.answers.clear()
        await chain.work()
        await one.committer.settled(lambda: True)
        assert one.committer.owes
        waiting = asyncio.create_task(one.committer.delivered(60.0))
        await auditor.opened(1)
        assert one.committer.owes and not waiting.done()
        auditor.answers.set()
        await waiting
        assert not one.committer.owes and [head.kind for head, _ in auditor.openings] == [pb.STEP]

    audited(harness, tmp_path, body, leases=1)
