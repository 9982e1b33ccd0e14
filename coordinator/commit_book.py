"""What the replicas of a round have committed: in memory by member and generation, and on disk as they signed it.

One file a member and round: the signed messages one after another, each after its length. A commit is answered once it is on
disk; after a restart the book is read back, and what was cut by a kill, which nobody was told of, is dropped.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from common.files import disk_error, disk_errors, sync_directory
from coordinator.chains import Chain, Key, key_of
from protocol.commitments import ChainStart
from protocol.generated import hocket_pb2 as pb
from protocol.identity import member_id

logger = logging.getLogger(__name__)

_LENGTH_BYTES = 4

Opened = tuple[pb.SignedHeader, pb.StepCommit]


def opened(signed: pb.Signed) -> Opened:
    """Header and commit of a message whose signature was checked when it came; DecodeError if it is no such message."""
    return pb.SignedHeader.FromString(signed.header), pb.StepCommit.FromString(signed.payload)


def start_of(header: pb.SignedHeader, commit: pb.StepCommit) -> ChainStart:
    """What a commit's chain belongs to, as its signed header says."""
    return ChainStart(
        header.run_id, commit.round, commit.stage, member_id(header.public_key), commit.generation, header.base_cid,
        commit.previous if commit.step == 0 else b"", commit.part,
    )  # fmt: skip


class CommitBook:
    """The commits of the newest rounds.

    Args:
        folder: files lie in `round-<r>/<member>.commits` below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chains: dict[tuple[int, str], dict[Key, Chain]] = {}

    def load(self) -> None:
        """Read back what an earlier process kept; a message that was cut is taken off its file. STATE_UNREADABLE, DISK_FULL."""
        for path in sorted(self._folder.glob("round-*/*.commits")):
            whole = 0
            for signed, end in _messages(path):
                self._add(*opened(signed))
                whole = end
            with disk_errors(path):
                if path.stat().st_size > whole:
                    logger.warning("%s ends with a message that was cut; it is dropped", path.name)
                    os.truncate(path, whole)

    def chains(self, round: int, member: str) -> dict[Key, Chain]:
        """The chains of a member in a round, by generation and part."""
        return self._chains.get((round, member), {})

    def commit(self, round: int, member: str, link: bytes) -> pb.StepCommit | None:
        """The commit of a member that made a link; None: it is not known, or not any more."""
        chains = self.chains(round, member).values()
        return next((one for chain in chains for one in chain.commits if one.link == link), None)

    def record(self, round: int, member: str, link: bytes, microbatch: int) -> pb.MicrobatchRecord | None:
        """What such a commit says of a microbatch that it counted."""
        commit = self.commit(round, member, link)
        records = commit.records if commit is not None else []
        return next((one for one in records if one.id == microbatch and one.frames), None)

    def records(self, round: int, member: str, microbatch: int) -> list[pb.MicrobatchRecord]:
        """All that a member committed to about a microbatch, counted or not."""
        commits = (one for chain in self.chains(round, member).values() for one in chain.commits)
        return [record for one in commits for record in one.records if record.id == microbatch]

    def resting_on(self, round: int, member: str, generation: int) -> set[str]:
        """The links, in hex, of all that the newest chain of a generation rests on: its own, and those that it goes on from."""
        chains = self.chains(round, member)
        parts = [part for known, part in chains if known == generation]
        before = {one.link: one.previous for chain in chains.values() for one in chain.commits}
        link = chains[generation, max(parts)].last.link if parts else b""
        found: set[str] = set()
        while link in before and link.hex() not in found:
            found.add(link.hex())
            link = before[link]
        return found

    def moments(self, rounds: Iterable[int], member: str, stage: int) -> frozenset[bytes]:
        """The digests of the optimizer's moments that a member has committed to in some rounds, of one stage."""
        chains = (chain for round in rounds for chain in self.chains(round, member).values() if chain.start.stage == stage)
        return frozenset(one.moments_digest for chain in chains for one in chain.commits)

    def members(self, round: int) -> list[str]:
        """Who committed anything in a round."""
        return sorted(member for at, member in self._chains if at == round)

    def take(self, signed: pb.Signed, header: pb.SignedHeader, commit: pb.StepCommit) -> None:
        """Keep a commit that `chains.judge` found new; on return it is on disk. DISK_FULL, STATE_UNREADABLE."""
        path = self._path(commit.round, member_id(header.public_key))
        data = signed.SerializeToString()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = not path.exists()
            with path.open("ab", buffering=0) as stream:
                end = stream.tell()
                try:
                    # Unbuffered, and in one call: whole, short, or an error.
                    if stream.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data) != _LENGTH_BYTES + len(data):
                        raise OSError(28, "No space left on device")
                    os.fsync(stream.fileno())
                except OSError:
                    os.ftruncate(stream.fileno(), end)
                    raise
            if fresh:
                sync_directory(path.parent)
                sync_directory(self._folder)
        except OSError as error:
            raise disk_error(error, path) from error
        self._add(header, commit)

    def _add(self, header: pb.SignedHeader, commit: pb.StepCommit) -> None:
        member = member_id(header.public_key)
        chains = self._chains.setdefault((commit.round, member), {})
        chain = chains.setdefault(key_of(commit), Chain(start_of(header, commit)))
        chain.commits.append(commit)
        chain.identifiers |= {one.id for one in commit.records if one.frames}

    def signed(self, round: int, member: str, wanted: Callable[[pb.StepCommit], bool]) -> list[bytes]:
        """The signed messages of a member's commits that are wanted, in their order: evidence. STATE_UNREADABLE."""
        path = self._path(round, member)
        return [one.SerializeToString() for one, _ in _messages(path) if wanted(opened(one)[1])]

    def forget(self, before: int) -> None:
        """Drop what was committed in the rounds before one."""
        for old in {at for at, _ in self._chains if at < before}:
            with disk_errors(self._folder):
                shutil.rmtree(self._folder / f"round-{old}", ignore_errors=True)
            for key in [key for key in self._chains if key[0] == old]:
                del self._chains[key]

    def _path(self, round: int, member: str) -> Path:
        return self._folder / f"round-{round}" / f"{member}.commits"


def _messages(path: Path) -> Iterator[tuple[pb.Signed, int]]:
    """The whole messages of a file, each with the position of its end."""
    try:
        with path.open("rb") as stream:
            end = 0
            while len(head := stream.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                size = int.from_bytes(head, "little")
                data = stream.read(size)
                if len(data) != size:
                    return
                try:
                    signed = pb.Signed.FromString(data)
                    opened(signed)
                except DecodeError:
                    return
                end += _LENGTH_BYTES + size
                yield signed, end
    except FileNotFoundError:
        return
    except OSError as error:
        raise disk_error(error, path) from error
