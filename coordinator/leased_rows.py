"""Whether a commit of stage 0 is about rows that its member was given. Pure: from the round's leases to a reason.

A replica of stage 0 signs, with each microbatch that it counts, of which leased rows it is a part. So its own word says what its
batch must have been, and a batch that the dataset does not have there (`leased_batches`) is proof without the coordinator's word;
that the rows are those of its lease is compared here, and a commit that names others is refused.

A lease stands for the whole round, whatever became of it: given back, overdue, leased again to somebody else, or of a process
of the member that is gone. Whoever has worked on it in spite of that has done honest work.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.records import Lease
from protocol.generated import hocket_pb2 as pb


def rows_of(lease: Lease) -> pb.LeasedRows:
    """What the holder of a lease commits to of it."""
    return pb.LeasedRows(
        epoch=lease.range.epoch, start=lease.range.start, stop=lease.range.stop,
        first_microbatch_id=lease.first_microbatch_id, microbatches=lease.issued,
    )  # fmt: skip


def rows_fault(commit: pb.StepCommit, member: str, leases: Iterable[Lease]) -> str:
    """Why the microbatches that a commit counts are not of leases of its member; empty: they are, or it is of a later stage.

    Args:
        leases: of the commit's round, all of them.
    """
    if commit.stage != 0:
        return ""
    own = {lease.first_microbatch_id: rows_of(lease) for lease in leases if lease.member == member}
    for record in commit.records:
        if not record.frames:
            continue
        if not record.HasField("leased"):
            return f"microbatch {record.id} does not say of which rows it is"
        rows = own.get(record.leased.first_microbatch_id)
        if rows is None or not rows.first_microbatch_id <= record.id < rows.first_microbatch_id + rows.microbatches:
            return f"microbatch {record.id} is of no lease of yours"
        if record.leased != rows:
            return f"microbatch {record.id} names other rows than those that were leased for it"
    return ""
