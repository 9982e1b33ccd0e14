"""A worker that attacks: `python -m simulations.attacking --attack NAME --state-dir DIR`, the ticket on its standard input.

It is the real worker with some of its pieces replaced, in this process alone: that is what an attacker has. Everything that it
does not attack it does as an honest worker, so that it is found out by what it does and by nothing else. What it did is in
`attack.jsonl` in its state directory.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import node.commitments
import node.feeder
import node.follower
import node.station
import node.witness
import swarm.block_swarm
from common.ending import leave_memory_to_the_system
from common.errors import HocketError
from common.log import EventLog, set_up_logging
from node.local_sgd import Kept, LocalStage
from node.session import Session, file_digest
from node.worker import run_worker
from protocol.generated import hocket_pb2 as pb
from protocol.tensor_files import read_tensors, write_tensors
from protocol.ticket import WAITS_FOR_TICKET, Ticket
from simulations.attack_report import ATTACK_LOG
from simulations.attacks.base import Attack, UpdateAttack, to_rows, to_tensors
from simulations.attacks.catalogue import attack_named
from simulations.attacks.forged_work import Copycat
from simulations.attacks.impossible import FreeRide, Huge, NotFinite
from simulations.attacks.on_data import DataAttack
from simulations.attacks.on_passes import FalsePass
from simulations.attacks.on_submission import Replayed, Sent, SubmissionAttack, changed_head
from simulations.attacks.on_verification import Equivocation, FalseBlocks, LyingWitness
from tts.batch import Side, TextBatch

AT_THE_END = (FreeRide, Huge, NotFinite)
"""Attacks on the values of the file alone: weights like these could not be trained on."""


class Attacker:
    """What an attacker knows while it works.

    Args:
        attack: that it makes. first_round: in which it begins. log: of what it did. folder: for its false files.
    """

    def __init__(self, attack: Attack, first_round: int, log: EventLog, folder: Path) -> None:
        self.attack = attack
        self.first_round = first_round
        self.folder = folder
        self.round = 0
        self._log = log
        self._told: set[tuple[int, str]] = set()

    def see(self, view: pb.RunView) -> None:
        """The run has gone on."""
        self.round = view.round

    @property
    def active(self) -> bool:
        return self.round >= self.first_round

    def draw(self, *what: int) -> np.random.Generator:
        """Randomness of its own, a function of the round and of what it is for."""
        return np.random.Generator(np.random.Philox(key=[self.round, hash(what) & 0xFFFFFFFF]))

    def did(self, what: str, round: int | None = None) -> None:
        """Note that something was attacked, once a round."""
        at = self.round if round is None else round
        if (at, what) not in self._told:
            self._told.add((at, what))
            self._log.write("attacked", round=at, attack=self.attack.name, what=what)


class FalseStage(LocalStage):
    """A stage whose weights move as its owner likes, and whose passes return what its owner likes.

    What it commits to is what it has, so that its chain is without a contradiction.
    """

    def __init__(self, attacker: Attacker, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attacker = attacker
        self._public: dict[str, np.ndarray] = {}

    def adopt(self, weights: Mapping[str, np.ndarray]) -> None:
        base = {name: value.numpy().copy() for name, value in self._base.items()} if self.weights_number else {}
        super().adopt(weights)
        if base:  # what the round before has come to, as everybody can know it
            self._public = {name: base[name] - weights[name] for name in base}

    def step(self, frames: int, lr: float) -> float:
        attacker = self._attacker
        before = self.weights()
        norm = super().step(frames, lr)
        if isinstance(attacker.attack, UpdateAttack) and attacker.active:
            after = self.weights()
            moved = {name: before[name] - after[name] for name in before}
            own = to_rows([moved])
            known = to_rows([self._public]) if isinstance(attacker.attack, Copycat) and self._public else own
            forged = to_tensors(attacker.attack.forge(known, own, attacker.draw(self.steps_taken))[0], before)
            self._move(before, forged)
            attacker.did("inner step")
        return norm

    def _move(self, before: Mapping[str, np.ndarray], by: Mapping[str, np.ndarray]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy((before[name] - by[name]).astype(np.float32)))

    def forward(self, microbatch_id: int, batch: TextBatch | None, hidden: np.ndarray | None, side: Side, seed: int) -> Kept:
        kept = super().forward(microbatch_id, batch, hidden, side, seed)
        attack = self._attacker.attack
        if isinstance(attack, FalsePass) and attack.where == "hidden" and self._attacker.active and kept.hidden is not None:
            kept.hidden = attack.false(kept.hidden, self._attacker.draw(microbatch_id))
            self._attacker.did("hidden states")
        return kept

    def backward(self, kept: Kept, grad: np.ndarray | None, *, counts: bool) -> np.ndarray | None:
        last = kept.hidden is None
        back = super().backward(kept, grad, counts=counts)
        attack = self._attacker.attack
        if isinstance(attack, FalsePass) and (attack.where == "gradient" or last) and self._attacker.active and back is not None:
            self._attacker.did("gradient")
            return attack.false(back, self._attacker.draw(kept.microbatch_id))
        return back


class FalseSession(Session):
    """A session whose updates, heads and answers are its owner's."""

    def __init__(self, attacker: Attacker, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attacker = attacker
        self._past: dict[int, Sent] = {}
        self._false: dict[int, tuple[pb.UpdateHead, Path]] = {}
        self._signed: pb.Signed | None = None
        self._tries: dict[int, int] = {}

    async def watch_views(
        self, report: Callable[[], pb.MemberReport], on_view: Callable[[pb.RunView], None], **options: Any
    ) -> None:
        def seen(view: pb.RunView) -> None:
            self._attacker.see(view)
            on_view(view)

        await super().watch_views(report, seen, **options)

    async def submit(self, head: pb.UpdateHead, path: Path) -> pb.UpdateReceipt:
        attacker = self._attacker
        if head.round not in self._false:
            honest = Sent(changed_head(head), read_tensors(path))
            self._false[head.round] = self._made(honest, path)
            self._past[head.round] = honest
        false_head, false_path = self._false[head.round]
        if isinstance(attacker.attack, Replayed) and head.round >= attacker.first_round:
            self._tries[head.round] = self._tries.get(head.round, 0) + 1
            if self._tries[head.round] > attacker.attack.tries:
                return pb.UpdateReceipt(
                    round=head.round, stage=head.stage, sha256=head.sha256, accepted=False, reason="the attacker rests"
                )
        return await super().submit(false_head, false_path)

    def _made(self, honest: Sent, path: Path) -> tuple[pb.UpdateHead, Path]:
        attacker, attack, head = self._attacker, self._attacker.attack, honest.head
        if head.round < attacker.first_round:
            return head, path
        sent = honest
        if isinstance(attack, SubmissionAttack):
            sent = attack.change(honest, [self._past[number] for number in sorted(self._past)])
        elif isinstance(attack, AT_THE_END):
            own = to_rows([honest.tensors])
            sent = Sent(head, to_tensors(attack.forge(own, own, attacker.draw(head.stage))[0], honest.tensors))
        if sent is honest:
            return head, path
        attacker.did("submission", head.round)
        false_path = attacker.folder / f"false-{head.round}.safetensors"
        write_tensors(false_path, sent.tensors)
        size_bytes, sha256 = file_digest(false_path)
        false_head = changed_head(sent.head)
        false_head.size_bytes, false_head.sha256 = size_bytes, sha256
        return false_head, false_path

    def _sign(self, method: str, payload: Any, nonce: bytes, **fields: int | str) -> pb.Signed:
        signed = super()._sign(method, payload, nonce, **fields)
        if method != "submit_update" or not isinstance(self._attacker.attack, Replayed):
            return signed
        if self._signed is None:
            self._signed = signed
        elif self._attacker.active:
            self._attacker.did("signed head")
            return self._signed
        return signed


def false_reader(attacker: Attacker, attack: DataAttack, reader: type[Any]) -> type[Any]:
    """A class of readers whose utterances are poisoned."""

    class FalseReader(reader):
        async def utterances(self, *arguments: Any, **options: Any) -> Any:
            honest = await super().utterances(*arguments, **options)
            if not attacker.active:
                return honest
            attacker.did("data")
            size = 1 + max(int(one.codes.max()) for one in honest)
            return attack.poison(honest, size)

    return FalseReader


def replace_piece(owner: object, name: str, piece: object) -> None:
    """Put another piece in the place of the worker's own, in this process."""
    setattr(owner, name, piece)


def install(attacker: Attacker) -> None:
    """Put the attacker's pieces in the place of the worker's own, for as long as this process lives."""
    attack = attacker.attack
    replace_piece(node.follower, "Session", partial(FalseSession, attacker))
    if isinstance(attack, FalsePass | UpdateAttack) and not isinstance(attack, AT_THE_END):
        replace_piece(node.station, "LocalStage", partial(FalseStage, attacker))
    if isinstance(attack, DataAttack):
        replace_piece(node.follower, "DatasetReader", false_reader(attacker, attack, node.follower.DatasetReader))
    if isinstance(attack, Equivocation):
        honest_record = node.commitments.PassTrace.record

        def record(trace: node.commitments.PassTrace) -> pb.MicrobatchRecord:
            if not attacker.active:
                return honest_record(trace)
            attacker.did("commit")
            return attack.record(honest_record(trace))

        replace_piece(node.commitments.PassTrace, "record", record)
    if isinstance(attack, LyingWitness):
        honest_answer = node.witness.witness_tensors

        def answer(*arguments: Any) -> dict[str, np.ndarray]:
            attacker.did("witness")
            return attack.answer(honest_answer(*arguments))

        replace_piece(node.witness, "witness_tensors", answer)
    if isinstance(attack, FalseBlocks):
        install_false_blocks(attacker, attack)


def install_false_blocks(attacker: Attacker, attack: FalseBlocks) -> None:
    """Serve false bytes to others; what this process reads itself stays true."""
    honest_serve = swarm.block_swarm.serve_blocks

    async def serve(carrier: Any, store: Any, incoming: Any = None) -> None:
        class FalseStore:
            """A store as others see it."""

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def get(self, cid: str) -> bytes:
                if not attacker.active:
                    return bytes(store.get(cid))
                attacker.did("block")
                return attack.served(store.get(cid))

        await honest_serve(carrier, FalseStore(), incoming)  # type: ignore[arg-type]

    replace_piece(swarm.block_swarm, "serve_blocks", serve)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.attacking", description="A worker that attacks its run.")
    parser.add_argument("--attack", required=True, help="name in simulations.attacks.catalogue")
    parser.add_argument("--parameters", default="{}", help="of the attack, a JSON object")
    parser.add_argument("--from-round", type=int, default=1, help="in which it begins")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--operator", default="")
    parser.add_argument("--listen", action="append", default=[])
    options = parser.parse_args(arguments)
    set_up_logging("INFO")
    try:
        attack = attack_named(options.attack, json.loads(options.parameters))
    except ValueError as error:
        parser.error(str(error))
    options.state_dir.mkdir(parents=True, exist_ok=True)
    attacker = Attacker(attack, options.from_round, EventLog(options.state_dir / ATTACK_LOG), options.state_dir)
    install(attacker)
    logging.getLogger(__name__).info(WAITS_FOR_TICKET)
    try:
        ticket = Ticket.decode(sys.stdin.readline().strip())
        return run_worker(
            ticket, options.state_dir, threads=options.threads, listen=options.listen, operator=options.operator
        )
    except HocketError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    finally:
        leave_memory_to_the_system()


if __name__ == "__main__":
    raise SystemExit(main())
