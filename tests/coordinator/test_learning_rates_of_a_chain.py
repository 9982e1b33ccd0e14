"""What an update may have moved follows from the steps that led to it, whatever else its member has committed to in the round."""

from collections.abc import Sequence

from coordinator.update_proof import rates_of
from protocol.commitments import ChainStart, link_of
from protocol.generated import hocket_pb2 as pb

NOTHING = bytes(32)


def chain(generation: int, rates: Sequence[float], previous: bytes = b"", stage: int = 1) -> list[pb.StepCommit]:
    start = ChainStart("run", 2, stage, "member", generation, "bafybase", previous)
    made = [pb.StepCommit(generation=generation, previous=previous, update_digest=NOTHING, moments_digest=NOTHING)]
    made[0].link = link_of(made[0], start)
    for step, rate in enumerate(rates, 1):
        made.append(pb.StepCommit(
            generation=generation, step=step, previous=made[-1].link, update_digest=NOTHING, moments_digest=NOTHING, lr=rate,
        ))  # fmt: skip
        made[-1].link = link_of(made[-1], start)
    return made


def test_steps_of_another_stage_do_not_count_for_a_replica_that_was_moved_and_took_none_since() -> None:
    before, since = chain(1, [0.25, 0.5]), chain(2, [], stage=0)
    assert rates_of([*before, *since], since[-1].link) == []


def test_steps_before_and_after_a_resumption_count_but_not_those_that_it_undid() -> None:
    first = chain(1, [0.25, 0.5, 1.0])
    again = chain(2, [2.0], previous=first[2].link)
    assert sorted(rates_of([*first, *again], again[-1].link)) == [0.25, 0.5, 2.0]


def test_a_chain_that_names_itself_ends() -> None:
    loop = pb.StepCommit(step=1, previous=b"a", link=b"a", lr=0.5)
    assert rates_of([loop], b"a") == [0.5]
    assert rates_of([loop], b"unknown") == []
