"""The log: a durable part, a tail in memory, and the indexes between them."""

from __future__ import annotations

from random import Random

import pytest

from ids import Index, Term
from raft.errors import Compacted, Contradiction, NotInMemory, Unavailable
from raft.log import RaftLog, limited, size_of
from raft.memory import MemoryStorage
from raft.types import ENTRY_OVERHEAD_BYTES, NO_LIMIT, Entry, Snapshot


def entries(*terms: int, first: int = 1, data: bytes = b"") -> list[Entry]:
    """Return entries with these terms from index `first` on; each uses one offset."""
    return [
        Entry(term, index, data=data, base_offset=index - 1, records=1)
        for index, term in enumerate(terms, first)
    ]


def log_of(*terms: int, stable: int = 0, applying_bytes_max: int = NO_LIMIT) -> RaftLog:
    """Return a log whose first `stable` entries are in storage."""
    storage = MemoryStorage()
    storage.append(entries(*terms[:stable]))
    log = RaftLog(storage, applying_bytes_max=applying_bytes_max)
    if terms[stable:]:
        log.append(entries(*terms[stable:], first=stable + 1))
    return log


def write_out(log: RaftLog) -> None:
    """Make the tail durable, as a host does."""
    storage = log.storage
    assert isinstance(storage, MemoryStorage)
    storage.append(log.take_unwritten())
    log.stable_to(index=log.last_index, term=log.last_term)


@pytest.mark.parametrize("stable", range(4))
def test_log_reads_the_same_wherever_the_tail_begins(stable: int) -> None:
    """Storage and tail are one log to every reader."""
    log = log_of(1, 1, 2, stable=stable)
    assert [log.term(index) for index in range(4)] == [0, 1, 1, 2]
    assert [e.index for e in log.slice(1, 4, NO_LIMIT)] == [1, 2, 3]
    assert [e.index for e in log.slice(2, 3, NO_LIMIT)] == [2]
    assert (log.last_index, log.last_term, log.next_offset) == (3, 2, 3)
    with pytest.raises(Unavailable):
        log.term(4)


@pytest.mark.parametrize(
    ("new", "conflict"),
    [
        (entries(1, 1, 2), 0),
        (entries(2, first=3), 0),
        (entries(1, 1, 2, 2), 4),
        (entries(3, 3, first=4), 4),
        (entries(1, 3, 3), 2),
    ],
)
def test_find_conflict_names_the_first_entry_that_differs(new: list[Entry], conflict: int) -> None:
    """§5.3: same index but different terms."""
    assert log_of(1, 1, 2, stable=2).find_conflict(new) == conflict


@pytest.mark.parametrize(
    ("terms", "index", "term", "found"),
    [
        ((1, 1, 4, 4), 4, 4, (4, 4)),
        ((1, 1, 4, 4), 4, 3, (2, 1)),
        ((2, 2, 4), 3, 1, (0, 0)),
        ((1, 2, 3), 9, 3, (9, 0)),
    ],
)
def test_find_conflict_by_term_skips_a_term_at_a_time(
    terms: tuple[int, ...], index: int, term: int, found: tuple[int, int]
) -> None:
    """§5.3: one AppendEntries for each conflicting term, not each entry."""
    assert log_of(*terms).find_conflict_by_term(index=index, term=term) == found


@pytest.mark.parametrize(
    ("term", "index", "newer"),
    [(3, 1, True), (2, 3, True), (2, 4, True), (2, 2, False), (1, 9, False)],
)
def test_is_up_to_date_compares_terms_then_lengths(term: int, index: int, newer: bool) -> None:
    """§5.4.1: the definition of more up-to-date."""
    assert log_of(1, 1, 2).is_up_to_date(index=index, term=term) is newer


class Counting(MemoryStorage):
    """Storage that counts how often a term is looked up."""

    __slots__ = ("looks",)

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.looks = 0

    def term(self, index: Index) -> Term:
        self.looks += 1
        return super().term(index)


@pytest.mark.parametrize("base", [0, 7])
def test_find_conflict_by_term_looks_at_few_entries_of_a_long_log(base: int) -> None:
    """A turn must not walk over all entries that one replica has and another has not.

    The result equals that of a walk.
    """
    storage = Counting(Snapshot(index=base, term=2 if base else 0))
    terms = sorted(Random(base).choices(range(2, 9), k=2_000))
    storage.append(entries(*terms, first=base + 1))
    log = RaftLog(storage, applying_bytes_max=NO_LIMIT)
    for index in (0, 1, base, base + 1, base + 999, base + 2_000, base + 2_001):
        for term in range(10):
            storage.looks = 0
            found = log.find_conflict_by_term(index=index, term=term)
            assert storage.looks <= 14
            assert found == walked(log, index, term)


def walked(log: RaftLog, index: int, term: int) -> tuple[int, int]:
    while index > 0:
        try:
            own_term = log.term(index)
        except (Compacted, Unavailable):
            return index, 0
        if own_term <= term:
            return index, own_term
        index -= 1
    return 0, 0


@pytest.mark.parametrize("stable", range(4))
def test_append_with_a_conflict_replaces_the_suffix(stable: int) -> None:
    """§5.3: delete the existing entry and all that follow it."""
    log = log_of(1, 1, 1, stable=stable)
    log.append(entries(2, first=2))
    assert [log.term(index) for index in (1, 2)] == [1, 2]
    assert log.last_index == 2
    assert log.next_offset == 2
    assert [e.index for e in log.take_unwritten()] == list(range(min(stable, 1) + 1, 3))


def test_append_over_committed_entries_is_refused() -> None:
    """Leader Completeness (§5.4.3): a committed entry is never replaced."""
    log = log_of(1, 1)
    log.commit_to(2)
    with pytest.raises(Contradiction):
        log.append(entries(2, first=2))


def test_stable_answer_for_an_overwritten_entry_is_ignored() -> None:
    """A write acknowledges the entry it wrote, not its successor at that index."""
    log = log_of(1)
    log.take_unwritten()
    log.append(entries(2, first=1))
    log.stable_to(index=1, term=1)
    assert log.stable == 0
    log.take_unwritten()
    log.stable_to(index=1, term=2)
    assert log.stable == 1


def test_stable_answer_beyond_a_shortened_log_is_ignored() -> None:
    """After a truncation the index may no longer exist."""
    log = log_of(1, 1, 1)
    log.take_unwritten()
    log.append(entries(2, first=1))
    log.stable_to(index=3, term=1)
    assert log.stable == 0


def test_tail_keeps_entries_until_they_are_durable_and_given_out_to_apply() -> None:
    """New entries are applied from memory, without access to storage."""
    log = log_of(1, 1)
    write_out(log)
    assert (log.offset, log.stable) == (1, 2)
    log.commit_to(1)
    first = log.entries[0]
    [committed] = log.take_committed(allow_unstable=False)
    assert committed is first
    assert (log.offset, len(log.entries)) == (2, 1)


def test_committed_entry_that_is_not_durable_here_is_not_applied() -> None:
    """Otherwise a power cut could leave the applied state ahead of the log."""
    log = log_of(1, 1)
    log.commit_to(2)
    assert not log.has_committed(allow_unstable=False)
    assert log.take_committed(allow_unstable=False) == []
    assert len(log.take_committed(allow_unstable=True)) == 2


def test_applying_stops_at_the_limit_and_goes_on_when_acknowledged() -> None:
    """At the limit, one entry past it, and after the acknowledgement."""
    one = ENTRY_OVERHEAD_BYTES
    log = log_of(1, 1, 1, 1, stable=4, applying_bytes_max=2 * one)
    log.commit_to(4)
    first = log.take_committed(allow_unstable=False)
    assert [e.index for e in first] == [1, 2]
    assert not log.has_committed(allow_unstable=False)
    log.applied_to(1, one)
    [third] = log.take_committed(allow_unstable=False)
    assert third.index == 3


def test_entry_larger_than_the_limit_is_applied_alone() -> None:
    """A limit never stops progress."""
    storage = MemoryStorage()
    storage.append(entries(1, 1, data=b"x" * 100))
    log = RaftLog(storage, applying_bytes_max=1)
    log.commit_to(2)
    assert [e.index for e in log.take_committed(allow_unstable=False)] == [1]


@pytest.mark.parametrize(("room", "count"), [(0, 1), (1, 1), (41, 1), (84, 2), (126, 3)])
def test_limited_keeps_the_longest_prefix_that_fits(room: int, count: int) -> None:
    """Bytes of payload and overhead; at least one entry."""
    some = entries(1, 1, 1, data=b"x" * 10)
    assert size_of(some) == 3 * (10 + ENTRY_OVERHEAD_BYTES)
    assert len(limited(some, room)) == count


def test_slice_across_storage_and_tail_respects_the_limit() -> None:
    """The limit counts both parts together."""
    log = log_of(1, 1, 1, 1, stable=2)
    for count in range(1, 5):
        found = log.slice(1, 5, count * ENTRY_OVERHEAD_BYTES)
        assert [e.index for e in found] == list(range(1, count + 1))


def test_slice_of_what_is_gone_or_on_disk_says_so() -> None:
    """Compacted and NotInMemory are different errors."""
    log = log_of(1, 1, 1, 1, stable=4)
    storage = log.storage
    assert isinstance(storage, MemoryStorage)
    storage.window(3)
    with pytest.raises(NotInMemory) as cold:
        log.slice(1, 5, NO_LIMIT)
    assert (cold.value.first, cold.value.end) == (1, 3)
    storage.compact(2, conf_state=storage.initial_state()[1])
    with pytest.raises(Compacted):
        log.slice(1, 5, NO_LIMIT)
    assert not log.matches(index=1, term=1)


def test_restore_replaces_everything() -> None:
    """§7: the snapshot replaces the log."""
    log = log_of(1, 1, 1, stable=1)
    log.restore(Snapshot(index=10, term=4, next_offset=77))
    assert (log.first_index(), log.last_index, log.last_term) == (11, 10, 4)
    assert (log.committed, log.stable, log.next_offset) == (10, 10, 77)
    assert log.term(10) == 4
    with pytest.raises(Compacted):
        log.term(9)
    assert not log.has_committed(allow_unstable=True)
