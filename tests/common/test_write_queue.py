"""The decisions of the background writer, as a state machine: whatever happens in whatever order, nothing firm is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.write_queue import Answer, Keep, Save, WriteQueue

LIMIT_BYTES = 10
KEEP_RANKED = 2
PATHS = ("a", "b", "c", "d", "e")


class Writing(RuleBasedStateMachine):
    """Callers, one writer and a disk, against a record of what was promised."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WriteQueue(LIMIT_BYTES, keep_ranked=KEEP_RANKED)
        self.saves: dict[int, Save] = {}
        self.filling: set[int] = set()
        self.ready: set[int] = set()
        self.writing: int | None = None
        self.renamed: int | None = None
        self.cancelled = False  # the path of what is being written was forgotten
        self.disk: dict[str, int] = {}
        self.promised: dict[str, int] = {}  # path -> newest firm save that was filled, and neither failed nor was forgotten
        self.missed: dict[str, int] = {}  # path -> how often in a row a whole file of it was not put in place

    def held(self) -> set[int]:
        return self.filling | self.ready | ({self.writing} if self.writing is not None else set())

    @rule(
        path=st.sampled_from(PATHS),
        size=st.integers(0, LIMIT_BYTES + 1),
        keep=st.sampled_from(Keep),
        score=st.integers(0, 4),
    )
    def offer(self, path: str, size: int, keep: Keep, score: int) -> None:
        save = Save(path, size, keep, float(score) if keep is Keep.RANKED else None)
        protected = {number for number in self.ready if self.queue.protected(number)}
        before = self.queue.held_bytes, self.queue.waiting()
        same = {number for number in self.ready if self.saves[number].path == path}
        offer = self.queue.offer(save)
        if offer.answer is not Answer.TAKEN:
            assert (self.queue.held_bytes, self.queue.waiting()) == before, "a save that is not taken changes nothing"
            assert offer.freed == ()
        if offer.answer is Answer.WAIT and not any(self.saves[number].path == path for number in self.filling):
            firm = (protected - same) | self.filling | ({self.writing} if self.writing is not None else set())
            assert sum(self.saves[number].size_bytes for number in firm) + size > LIMIT_BYTES, "waits though room can be made"
        if offer.answer is Answer.OUTRANKED:
            better = [one for other, one in self.queue.ranked_on_disk.items() if other != path and one <= score]
            assert keep is Keep.RANKED and len(better) >= KEEP_RANKED
        if offer.answer is Answer.TOO_LARGE:
            assert size > LIMIT_BYTES
        if offer.answer is not Answer.TAKEN:
            return
        freed = set(offer.freed)
        assert freed <= self.ready and same <= freed
        assert not (freed - same) & protected, "dropped to make room, though it is protected"
        self.ready -= freed
        self.saves[offer.number] = save
        self.filling.add(offer.number)

    @precondition(lambda self: self.filling)
    @rule(which=st.data())
    def fill(self, which: st.DataObject) -> None:
        self.now_ready(which.draw(st.sampled_from(sorted(self.filling))))

    def now_ready(self, number: int) -> None:
        self.filling.discard(number)
        self.ready.add(number)
        self.queue.ready(number)
        save = self.saves[number]
        stands_in = self.disk.get(save.path, 0) < self.promised.get(save.path, 0)  # for a promised one that is not on disk
        if save.keep is Keep.PINNED or stands_in:
            self.promised[save.path] = number
        elif save.keep is Keep.RANKED:
            self.promised.pop(save.path, None)  # kept, it is there already; from now on the path stays by its rank

    @precondition(lambda self: self.filling)
    @rule(which=st.data())
    def break_off_filling(self, which: st.DataObject) -> None:
        number = which.draw(st.sampled_from(sorted(self.filling)))
        self.filling.discard(number)
        self.queue.abandon(number)
        # What it replaced is gone with it: the caller was told by its own failure.
        if self.promised.get(self.saves[number].path, 0) < number:
            self.promised.pop(self.saves[number].path, None)

    @precondition(lambda self: self.writing is None)
    @rule()
    def begin(self) -> None:
        waiting = [number for number in self.queue.waiting() if number in self.ready]
        begun = self.queue.begin()
        assert (begun is None) == (not waiting)
        if begun is not None:
            number, save = begun
            assert number == waiting[0] and save == self.saves[number]
            self.ready.discard(number)
            self.writing, self.cancelled = number, False

    @precondition(lambda self: self.writing is not None and self.renamed is None)
    @rule()
    def write(self) -> None:
        number = self.writing
        assert number is not None
        path = self.saves[number].path
        newer = any(self.saves[other].path == path and other > number for other in self.ready)
        placing = self.queue.written(number)
        if self.cancelled:
            assert not placing.replace
        elif not newer:
            assert placing.replace, "the newest of its path is put in place"
        if placing.replace:
            assert self.disk.get(path, 0) < number, "an older file over a newer one"
            self.disk[path] = number
            self.renamed = number
            self.missed[path] = 0
        else:
            if not self.cancelled:
                self.missed[path] = self.missed.get(path, 0) + 1
                assert self.missed[path] <= 1, "a path that missed its turn misses it again"
            self.writing = None

    @precondition(lambda self: self.renamed is not None)
    @rule()
    def place(self) -> None:
        number = self.renamed
        assert number is not None
        for gone in self.queue.placed(number):
            removed = self.disk.pop(gone, None)
            assert removed is not None
            if self.promised.get(gone, removed + 1) <= removed:  # a newer one that was promised still comes
                assert self.saves[self.promised.pop(gone)].keep is Keep.RANKED
        self.writing = self.renamed = None

    @precondition(lambda self: self.writing is not None and self.renamed is None)
    @rule()
    def fail(self) -> None:
        number = self.writing
        assert number is not None
        self.queue.failed(number)
        path = self.saves[number].path
        if self.promised.get(path) == number:
            del self.promised[path]
        self.writing = None

    @rule(path=st.sampled_from(PATHS))
    def forget(self, path: str) -> None:
        freed = set(self.queue.forget(path))
        assert freed == {number for number in self.ready if self.saves[number].path == path}
        self.ready -= freed
        if self.writing is not None and self.saves[self.writing].path == path:
            self.cancelled = True
        self.disk.pop(path, None)
        self.promised.pop(path, None)
        self.missed.pop(path, None)

    @invariant()
    def bounded(self) -> None:
        assert self.queue.held_bytes == sum(self.saves[number].size_bytes for number in self.held()) <= LIMIT_BYTES
        assert len(self.queue.ranked_on_disk) <= KEEP_RANKED
        assert self.queue.idle == (not self.held())

    @invariant()
    def ranked_are_on_disk(self) -> None:
        renamed = self.saves[self.renamed].path if self.renamed is not None else None
        assert set(self.queue.ranked_on_disk) - {renamed} <= set(self.disk)

    def teardown(self) -> None:
        """Everything that was promised is on disk once the writer has drained."""
        for number in sorted(self.filling):
            self.now_ready(number)
        while self.writing is not None or self.ready:
            if self.renamed is not None:
                self.place()
            elif self.writing is not None:
                self.write()
            else:
                self.begin()
        assert self.queue.idle
        for path, number in self.promised.items():
            assert self.disk.get(path, 0) >= number, f"{path}: save {number} was promised, {self.disk.get(path)} is there"


Writing.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWriting = Writing.TestCase


def take(queue: WriteQueue, path: str, size: int, keep: Keep = Keep.PLAIN, score: float | None = None) -> int:
    offer = queue.offer(Save(path, size, keep, score))
    assert offer.answer is Answer.TAKEN, offer.reason
    queue.ready(offer.number)
    return offer.number


def write(queue: WriteQueue) -> tuple[str, ...]:
    begun = queue.begin()
    assert begun is not None and queue.written(begun[0]).replace
    return queue.placed(begun[0])


def test_the_best_ranked_files_stay_and_a_worse_one_is_not_taken() -> None:
    queue = WriteQueue(100, keep_ranked=2, on_disk={"old": 3.0})
    take(queue, "good", 1, Keep.RANKED, 2.0)
    assert write(queue) == ()
    take(queue, "best", 1, Keep.RANKED, 1.0)
    assert write(queue) == ("old",), "removed once two better ones are in place"
    assert queue.offer(Save("worse", 1, Keep.RANKED, 2.0)).answer is Answer.OUTRANKED
    assert queue.ranked_on_disk == {"good": 2.0, "best": 1.0}


def test_pinned_and_ranked_saves_make_the_caller_wait_and_plain_ones_make_room() -> None:
    queue = WriteQueue(10)
    pinned = take(queue, "pinned", 4, Keep.PINNED)
    ranked = take(queue, "ranked", 4, Keep.RANKED, 1.0)
    plain = take(queue, "plain", 2)
    assert queue.offer(Save("new", 3)).answer is Answer.WAIT
    offer = queue.offer(Save("new", 2))
    assert offer.answer is Answer.TAKEN and offer.freed == (plain,)
    assert queue.waiting()[:2] == [pinned, ranked]


def test_what_replaces_a_pinned_save_is_not_dropped_either() -> None:
    queue = WriteQueue(10)
    take(queue, "a", 5, Keep.PINNED)
    take(queue, "a", 5)
    take(queue, "b", 5)
    assert queue.offer(Save("c", 6)).answer is Answer.WAIT, "dropping both of a would lose it"


def test_what_a_file_was_given_up_for_is_not_dropped_either() -> None:
    queue = WriteQueue(10)
    take(queue, "a", 4)
    begun = queue.begin()
    take(queue, "a", 4)
    assert begun is not None and not queue.written(begun[0]).replace
    assert queue.offer(Save("b", 7)).answer is Answer.WAIT


def test_a_caller_faster_than_the_disk_does_not_starve_its_path() -> None:
    queue = WriteQueue(10)
    take(queue, "a", 1)
    placed = 0
    for _ in range(10):
        begun = queue.begin()
        assert begun is not None
        take(queue, "a", 1)  # a newer one comes before each file is whole
        if queue.written(begun[0]).replace:
            queue.placed(begun[0])
            placed += 1
    assert placed == 5


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_a_ranked_save_needs_a_score(score: float | None) -> None:
    with pytest.raises(ValueError, match="score"):
        Save("a", 1, Keep.RANKED, score)
