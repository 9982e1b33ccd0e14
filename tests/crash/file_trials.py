"""The block store, the background writer and the keys, each killed at every change that it makes to its files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import traceback
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from crash_points import Points, Trial

from common.errors import Code, HocketError
from common.lock import locked
from common.writer import BackgroundWriter, Keep
from coordinator import tls
from protocol.content import iter_blocks, verify_block
from protocol.identity import MemberKey, PeerKey
from swarm.blocks import BlockStore

Told = Callable[[str], None]
MIB = 1 << 20


class FileTrial(Trial):
    """A script that works on the files of one folder and tells what it has achieved; it can be begun again at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "work"
        self._told = folder / "told"
        self._begin()
        names = folder / "names"
        if self._forked(0, names) != 0:
            raise RuntimeError("the undisturbed run failed")
        self.points = names.read_text().splitlines()
        self._expected = self._left()

    def play(self, number: int, draw: random.Random) -> list[str]:
        """What was wrong after a kill at point `number`, or after the work was begun again and finished."""
        self._begin()
        status = self._forked(number)
        if status != -signal.SIGKILL:
            return [f"it ended with {status}"]
        told = self._told.read_text().splitlines()
        faults = self.check(self._folder, told)
        status = self._forked(0)
        if status:
            return [*faults, f"begun again, it ended with {status}"]
        left = self._left()
        if left != self._expected:
            odd = sorted(name for name in left.keys() | self._expected.keys() if left.get(name) != self._expected.get(name))
            faults.append(f"other files than undisturbed: {odd}")
        return faults + self.check(self._folder, self._told.read_text().splitlines())

    @abstractmethod
    def work(self, folder: Path, told: Told, points: Points) -> None:
        """The script."""

    @abstractmethod
    def check(self, folder: Path, told: list[str]) -> list[str]:
        """What is not as it must be, given what was told before the kill."""

    def content(self, path: Path) -> bytes:
        """What of a file is the same in every run."""
        return path.read_bytes()

    def _begin(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._told.write_bytes(b"")

    def _left(self) -> dict[str, bytes]:
        paths = [path for path in self._folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self._folder)): self.content(path) for path in paths}

    def _forked(self, kill_at: int, names: Path | None = None) -> int:
        """Do the work in a process of its own; how it ended."""
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status = 70
        try:
            ledger = os.open(self._told, os.O_WRONLY | os.O_APPEND)

            def told(word: str) -> None:
                os.write(ledger, f"{word}\n".encode())

            with locked(self._folder):
                self.work(self._folder, told, Points(self._folder, at=kill_at, names=names))
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)


class BlockTrial(FileTrial):
    """Blocks are put, by bytes and by file, read, found damaged, put back, exported and removed."""

    FILES = (bytes(range(256)) * 10_000, b"small", os.urandom(3 * MIB + 1))

    def work(self, folder: Path, told: Told, points: Points) -> None:
        store = BlockStore(folder / "blocks")
        roots = []
        for number, data in enumerate(self.FILES):
            source = folder.parent / "source"
            source.write_bytes(data)
            roots.append(store.add_file(source))
            told(f"added {number} {roots[-1]}")
        store.export(roots[0], folder / "out")
        told("exported")
        damaged, _ = next(iter_blocks(self.FILES[2]))
        (folder / "blocks" / damaged[-2:] / damaged).write_bytes(b"other bytes")
        try:
            store.get(damaged)
        except HocketError as error:
            if error.code is not Code.BLOCK_DAMAGED:
                raise
        store.add_bytes(self.FILES[2])
        told("put back")
        told("removing")
        for cid, _ in iter_blocks(self.FILES[1]):
            store.remove(cid)
        told("removed")

    def check(self, folder: Path, told: list[str]) -> list[str]:
        faults = []
        store = BlockStore(folder / "blocks")
        unsure = set()  # what is being damaged by hand, or removed, may be gone; but then the store says so
        if "exported" in told and "put back" not in told:
            unsure.add(2)
        if "removing" in told:
            unsure.add(1)
        for word in told:
            what, _, rest = word.partition(" ")
            number, _, root = rest.partition(" ")
            if what == "added" and int(number) not in unsure and store.read_file(root) != self.FILES[int(number)]:
                faults.append(f"{root} was added, and is other bytes now")
        by_hand, _ = next(iter_blocks(self.FILES[2]))
        for path in (folder / "blocks").glob("*/baf*"):
            try:
                verify_block(path.name, path.read_bytes())
            except HocketError as error:
                if path.name != by_hand:
                    faults.append(error.line())
        if (folder / "out").exists() and (folder / "out").read_bytes() != self.FILES[0]:
            faults.append("half a file was exported")
        return faults


class WriterTrial(FileTrial):
    """Files are saved in the background, replaced, ranked, pinned and forgotten."""

    SIZE = 100_003

    def work(self, folder: Path, told: Told, points: Points) -> None:
        ranked = {path: float(path.name[5:]) for path in folder.glob("rank-*")}
        with BackgroundWriter(MIB, keep_ranked=2, ranked=ranked, faults=points) as writer:
            for turn in range(3):
                writer.save_parts(folder / "model", [bytes([turn]) * self.SIZE])
                writer.drain()
                told(f"model {turn}")
            writer.save_parts(folder / "pinned", [b"p" * self.SIZE], keep=Keep.PINNED)
            writer.drain()
            told("pinned")
            for score in (3.0, 2.0, 4.0, 1.0):
                writer.save_parts(folder / f"rank-{score}", [b"r" * self.SIZE], keep=Keep.RANKED, score=score)
                writer.drain()
                told(f"rank {score}")
            writer.save_parts(folder / "gone", [b"g" * self.SIZE])
            writer.drain()
            writer.forget(folder / "gone")

    def check(self, folder: Path, told: list[str]) -> list[str]:
        faults = []
        for path in folder.glob("[!.]*"):
            data = path.read_bytes()
            if path.name != "lock" and (len(data) != self.SIZE or len(set(data)) != 1):
                faults.append(f"{path.name} is not whole")
        turns = [int(word.split()[1]) for word in told if word.startswith("model ")]
        if turns:
            found = (folder / "model").read_bytes()[0]
            # A script that was begun again has saved older turns again since.
            if found < turns[-1]:
                faults.append(f"model {turns[-1]} was saved, {found} is there")
        if "pinned" in told and not (folder / "pinned").exists():
            faults.append("the pinned file is gone")
        scores = sorted({float(word.split()[1]) for word in told if word.startswith("rank ")})
        best = scores[:2]
        faults += [f"rank-{score} is gone" for score in best if not (folder / f"rank-{score}").exists()]
        return faults


class KeyTrial(FileTrial):
    """The keys of a member, of a peer and of the door, which are made once and are the same ever after."""

    def work(self, folder: Path, told: Told, points: Points) -> None:
        told("member " + MemberKey.load_or_create(folder / "member.key").member_id)
        told("peer " + PeerKey.load_or_create(folder / "peer.key").peer_id)
        told("tls " + tls.load_or_create(folder, "127.0.0.1").sha256.hex())

    def content(self, path: Path) -> bytes:
        return b"" if path.suffix == ".pem" else oct(path.stat().st_mode).encode()

    def check(self, folder: Path, told: list[str]) -> list[str]:
        return [f"{kind} changed: {told}" for kind in ("member", "peer", "tls")
                if len({word for word in told if word.startswith(kind)}) > 1]  # fmt: skip
