"""The directory: where peers announce themselves and find others, and where the coordinator says that it has moved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from protocol.generated import hocket_pb2 as pb
from swarm.records import check_announcement, wall_clock_ms
from swarm.whereabouts import Whereabouts, check_whereabouts, entry_name


class Directory(ABC):
    """Where peers announce themselves and find others."""

    @abstractmethod
    async def announce(self, record: pb.Signed, run_id: str, stage: int, peer_id: str, expires_ms: int) -> None:
        """Publish a record of ours; to be renewed before it expires.

        Raises:
            HocketError: SIGNATURE_INVALID for a record that nobody would take; PEER_SILENT if the directory does not answer.
        """

    @abstractmethod
    async def find(self, run_id: str, stage: int) -> list[pb.PeerRecord]:
        """The records of a stage that hold now: verified, not expired, ordered by peer id.

        Raises:
            HocketError: PEER_SILENT if the directory does not answer.
        """

    @abstractmethod
    async def announce_coordinator(self, record: pb.Signed, run_id: str) -> None:
        """Publish where the coordinator is; to be renewed before it expires.

        Raises:
            HocketError: SIGNATURE_INVALID for a record that nobody would take; PEER_SILENT if the directory does not answer.
        """

    @abstractmethod
    async def find_coordinator(self, run_id: str) -> list[Whereabouts]:
        """What signers say about where the coordinator of a run is: verified, not expired, one of each signer.

        `newest_of` tells whom to believe.

        Raises:
            HocketError: PEER_SILENT if the directory does not answer.
        """


class MemoryDirectory(Directory):
    """A directory inside one process, with the same checks.

    Args:
        now_ms: the clock, milliseconds since the epoch.
    """

    def __init__(self, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._now_ms = now_ms
        self._records: dict[tuple[str, int], dict[str, pb.Signed]] = {}
        self._coordinators: dict[str, dict[str, pb.Signed]] = {}

    async def announce(self, record: pb.Signed, run_id: str, stage: int, peer_id: str, expires_ms: int) -> None:
        check_announcement(record, run_id, stage, peer_id, expires_ms, self._now_ms())
        self._records.setdefault((run_id, stage), {})[peer_id] = record

    async def find(self, run_id: str, stage: int) -> list[pb.PeerRecord]:
        now_ms = self._now_ms()
        found = []
        for peer_id, signed in sorted(self._records.get((run_id, stage), {}).items()):
            record = pb.PeerRecord.FromString(signed.payload)  # checked when it was announced
            if record.expires_ms > now_ms:
                found.append(record)
            else:
                del self._records[run_id, stage][peer_id]
        return found

    async def announce_coordinator(self, record: pb.Signed, run_id: str) -> None:
        found = check_whereabouts(record, run_id=run_id, now_ms=self._now_ms())
        entries = self._coordinators.setdefault(run_id, {})
        held = entries.get(entry_name(found))
        if held is None or pb.CoordinatorRecord.FromString(held.payload).expires_ms < found.expires_ms:
            entries[entry_name(found)] = record

    async def find_coordinator(self, run_id: str) -> list[Whereabouts]:
        now_ms = self._now_ms()
        found = []
        for signed in self._coordinators.get(run_id, {}).values():
            if pb.CoordinatorRecord.FromString(signed.payload).expires_ms > now_ms:
                found.append(check_whereabouts(signed, run_id=run_id, now_ms=now_ms))
        return found
