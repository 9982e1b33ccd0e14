"""Whether neighbours in the pipeline committed to the same bytes. Pure: from the records of both to what must be asked.

A replica and the one after it each record what passed between them for a microbatch they counted. Retries make honest records
differ: a microbatch may be sent twice, to two replicas, with other bytes each time. But an answer's gradient shows which request
it answers: where the producer recorded the very gradient that the consumer recorded as returned, both mean the same exchange, and
what was sent must be what came. If it is not, one of the two has signed something false; the signed request, which the consumer
keeps, tells which.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.generated import hocket_pb2 as pb


@dataclass(frozen=True)
class Recorded:
    """A record, and the link of the commit that it stands in."""

    member: str
    link: bytes
    record: pb.MicrobatchRecord


@dataclass(frozen=True)
class Conflict:
    """Two records of one exchange that differ in the bytes that were sent forward."""

    producer: Recorded
    consumer: Recorded


@dataclass
class Records:
    """The records of one round, by stage and microbatch."""

    by_place: dict[tuple[int, int], list[Recorded]] = field(default_factory=dict)

    def add(self, stage: int, member: str, commit: pb.StepCommit) -> list[Conflict]:
        """Take the records of a commit in; what they contradict of those that are there."""
        found = []
        for record in commit.records:
            one = Recorded(member, commit.link, record)
            self.by_place.setdefault((stage, record.id), []).append(one)
            found += [Conflict(one, other) for other in self._at(stage + 1, record.id) if _conflicts(one, other)]
            found += [Conflict(other, one) for other in self._at(stage - 1, record.id) if _conflicts(other, one)]
        return found

    def _at(self, stage: int, identifier: int) -> list[Recorded]:
        return self.by_place.get((stage, identifier), [])


def _conflicts(producer: Recorded, consumer: Recorded) -> bool:
    ours, theirs = producer.record, consumer.record
    counted = bool(ours.frames and theirs.frames)
    same = counted and theirs.sender == producer.member and bool(ours.gradient_in) and ours.gradient_in == theirs.gradient_out
    return same and ours.output != theirs.input
