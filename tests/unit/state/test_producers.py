"""Idempotent window: appended, recognised and refused batches (KIP-98)."""

from __future__ import annotations

import sys
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.errors import ErrorCode
from vdl.state.partition import (
    AdvanceLogStart,
    ExpireProducers,
    PartitionState,
    encode_command,
)
from vdl.state.producers import (
    PRODUCERS_KEPT,
    PRODUCERS_MAX,
    SEQUENCE_END,
    UNKNOWN_MAX,
    WINDOW_BATCHES,
    Duplicate,
    Overlay,
    Producers,
)

PID = 42
COUNT = 10
SENT_BACK = ErrorCode.NOT_LEADER_OR_FOLLOWER


def time_of(index: int) -> int:
    """Return the largest timestamp of the batch in that entry."""
    return 1_000 + index


def original(base_offset: int, index: int) -> Duplicate:
    """Return the verdict on a duplicate batch, with its time of append."""
    return Duplicate(base_offset, index, time_of(index))


class Leader:
    """One partition as its leader sees it: batches are appended, some of them applied."""

    def __init__(self) -> None:
        self.state = PartitionState()
        self.overlay = Overlay()
        self.log: list[tuple[int, int, int, int, int, int]] = []
        self.applied = 0

    @property
    def producers(self) -> Producers:
        return self.state.producers

    def send(
        self, sequence: int, *, epoch: int = 0, pid: int = PID, count: int = COUNT
    ) -> Duplicate | ErrorCode:
        verdict = self.producers.check(self.overlay, pid, epoch, sequence, count)
        if verdict is ErrorCode.NONE:
            index = len(self.log) + 1
            offset = self.log[-1][4] + self.log[-1][3] if self.log else 0
            self.log.append((pid, epoch, sequence, count, offset, index))
            self.overlay.append(*self.log[-1], time_of(index))
        return verdict

    def apply(self, until: int | None = None) -> None:
        until = len(self.log) if until is None else until
        for batch in self.log[self.applied : until]:
            self.producers.apply(*batch, time_of(batch[5]))
            self.overlay.committed(batch[0], batch[5])
        self.applied = max(self.applied, until)

    def fail_over(self) -> None:
        """Become a new leader, which has only what was applied."""
        del self.log[self.applied :]
        self.overlay = Overlay()


def test_batches_in_order_are_appended_before_and_after_commit() -> None:
    """Sequence numbers must be dense over committed and uncommitted batches alike."""
    leader = Leader()
    for n in range(8):
        assert leader.send(n * COUNT) is ErrorCode.NONE
        if n == 3:
            leader.apply(2)
    leader.apply()
    assert leader.send(80) is ErrorCode.NONE


def test_retry_of_an_uncommitted_batch_names_the_original_entry() -> None:
    """A duplicate of an uncommitted batch waits for the original entry."""
    leader = Leader()
    leader.send(0)
    leader.send(10)
    assert leader.send(10) == original(10, 2)


def test_retry_after_failover_gets_the_original_offset() -> None:
    """The window is a function of the committed log: the next leader has it (RELIABILITY: seq)."""
    leader = Leader()
    for n in range(5):
        leader.send(n * COUNT)
    leader.apply(4)
    leader.fail_over()
    assert leader.send(30) == original(30, 4)
    assert leader.send(40) is ErrorCode.NONE, "it was lost with the old leader"


def test_retry_is_found_in_the_committed_window_behind_an_overlay() -> None:
    """Both layers are searched: the retried batch is applied, later ones are only appended."""
    leader = Leader()
    leader.send(0)
    leader.apply()
    leader.send(10)
    assert leader.send(0) == original(0, 1)


def test_gap_in_sequence_is_out_of_order() -> None:
    """A batch that does not follow the last one is 45, and is not appended."""
    leader = Leader()
    leader.send(0)
    assert leader.send(20) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(0, count=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batch_below_the_window_is_out_of_order() -> None:
    """Numbers need not begin at 0 here.

    Lower ones may never have been appended, and 46 would count as an acknowledgement.
    """
    leader = Leader()
    for n in range(WINDOW_BATCHES + 1):
        leader.send(n * COUNT)
    leader.apply()
    assert leader.send(0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(10) == original(10, 2)


def test_producer_with_a_new_id_begins_at_zero() -> None:
    """The producer is new: an earlier batch is on its way, and would be appended after this one."""
    leader = Leader()
    leader.producers.ids_given_out(PID)
    assert leader.send(10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(0) is ErrorCode.NONE
    assert leader.send(10) is ErrorCode.NONE


def test_producer_older_than_the_replica_begins_anywhere() -> None:
    """A producer older than the replica may begin at any number.

    It may have written to an earlier topic of that name. Batches that it sent before its first
    batch here were never appended.
    """
    leader = Leader()
    leader.producers.ids_given_out(PID + 1)
    assert leader.send(70) is SENT_BACK
    assert leader.send(70) is ErrorCode.NONE
    assert leader.send(60) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    leader.apply()
    assert leader.send(60) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(70) == original(0, 1)
    assert leader.send(80) is ErrorCode.NONE
    assert leader.send(10, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(0, epoch=1) is ErrorCode.NONE


def old_leader() -> Leader:
    """Return the leader of a partition that is younger than the producer."""
    leader = Leader()
    leader.producers.ids_given_out(PID + 1)
    return leader


@pytest.mark.parametrize("lost", [0, 10, 70])
def test_batch_that_overtakes_the_first_ones_is_sent_back(lost: int) -> None:
    """A batch that overtakes the first ones is refused.

    The first ones were refused, or sent to another server, and their client sends all again, in
    order. If this one were appended, they would be out of order, which is fatal to a librdkafka
    producer.
    """
    leader = old_leader()
    for number in (3, 4, 6):
        assert leader.send(lost + number * COUNT) is SENT_BACK
    for number in range(7):
        assert leader.send(lost + number * COUNT) is ErrorCode.NONE, number


def test_batch_overtakes_none_that_came_and_found_no_room() -> None:
    """`check` accepts the first ones, but they are not appended: too few replicas are in sync.

    It accepts them again when they are retried, and refuses those behind them.
    """
    leader = old_leader()
    check = partial(leader.producers.check, leader.overlay, PID, 0)
    for _ in range(2):
        assert check(0, COUNT) is ErrorCode.NONE
        assert check(10, COUNT) is SENT_BACK
    assert leader.send(0) is ErrorCode.NONE
    assert leader.send(10) is ErrorCode.NONE


def test_batch_that_was_sent_back_in_another_term_or_epoch_is_sent_back() -> None:
    """A batch refused in another term or epoch is refused again.

    Earlier batches may have been on their way to the leader in between, and those of a new epoch
    are.
    """
    leader = old_leader()
    assert leader.send(70) is SENT_BACK
    leader.overlay.clear()
    assert leader.send(70) is SENT_BACK
    assert leader.send(70, epoch=1) is SENT_BACK
    assert leader.send(70, epoch=1) is ErrorCode.NONE


def test_batch_comes_again_also_where_the_numbers_wrap() -> None:
    """The largest number is followed by 0: the lower one is the later one."""
    leader = old_leader()
    first = SEQUENCE_END - COUNT // 2
    check = partial(leader.producers.check, leader.overlay, PID, 0)
    assert check(first, COUNT) is SENT_BACK
    assert check(COUNT // 2, COUNT) is SENT_BACK
    assert leader.send(first) is ErrorCode.NONE
    assert leader.send(COUNT // 2) is ErrorCode.NONE


def test_producers_noted_while_unknown_are_bounded() -> None:
    """One past the limit the first one is removed, and refused once more."""
    overlay = Overlay()
    for pid in range(UNKNOWN_MAX):
        assert not overlay.note_unknown(pid, 0, 70)
    assert overlay.note_unknown(0, 0, 70)
    assert not overlay.note_unknown(UNKNOWN_MAX, 0, 70)
    assert overlay.note_unknown(1, 0, 70)
    assert not overlay.note_unknown(0, 0, 70)


def test_producer_begins_anywhere_only_if_all_who_may_lead_take_it_so() -> None:
    """A server that counts from 0 assumes that numbers below a window are in the log."""
    leader = Leader()
    leader.producers.ids_given_out(PID + 1)
    check = partial(leader.producers.check, leader.overlay, PID, 3, may_begin_late=lambda: False)
    assert check(10, COUNT) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert check(10, COUNT, begins_epoch=True) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert check(0, COUNT) is ErrorCode.NONE


def test_transaction_that_began_an_epoch_begins_at_zero() -> None:
    """KIP-890: also for a producer of any age."""
    leader = Leader()
    leader.producers.ids_given_out(PID + 1)
    check = partial(leader.producers.check, leader.overlay, PID, 3)
    assert check(10, COUNT, begins_epoch=True) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert check(0, COUNT, begins_epoch=True) is ErrorCode.NONE
    assert check(10, COUNT) is SENT_BACK


def test_replica_that_got_its_state_takes_those_it_lacks_for_old() -> None:
    """A stored state does not list removed producers: only ids allocated later are new."""
    leader = Leader()
    leader.send(0, pid=9)
    leader.apply()
    copy = PartitionState()
    copy.load(leader.state.items())
    check = copy.producers.check
    assert check(Overlay(), 8, 0, 10, COUNT) is SENT_BACK
    assert check(Overlay(), 10, 0, 10, COUNT) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    copy.producers.ids_given_out(20)
    copy.producers.ids_given_out(15)
    assert check(Overlay(), 19, 0, 10, COUNT) is SENT_BACK
    assert check(Overlay(), 20, 0, 10, COUNT) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_epoch_that_rises_starts_a_new_sequence_and_fences_the_old() -> None:
    """Old epochs are 47; a new epoch begins at 0 (KIP-360)."""
    leader = Leader()
    leader.send(0)
    assert leader.send(10, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(0, epoch=1) is ErrorCode.NONE
    assert leader.send(10, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.send(0, epoch=1) == original(10, 2)
    leader.apply()
    assert leader.send(10, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.send(10, epoch=1) is ErrorCode.NONE


def test_duplicate_of_an_older_epoch_is_not_looked_for() -> None:
    """Equal numbers in another epoch denote another batch."""
    leader = Leader()
    leader.send(0)
    leader.send(10)
    leader.apply()
    leader.send(0, epoch=1)
    assert leader.send(10, epoch=1) is ErrorCode.NONE


def test_sequence_wraps_to_zero_after_the_largest() -> None:
    """Sequence numbers are 31 bits; a batch may span the end."""
    producers = Producers()
    overlay = Overlay()
    first = SEQUENCE_END - 5
    producers.apply(PID, 0, 0, first, 0, 1, -1)
    assert producers.check(overlay, PID, 0, first, 10) is ErrorCode.NONE
    producers.apply(PID, 0, first, 10, first, 2, -1)
    assert producers.check(overlay, PID, 0, first, 10) == Duplicate(first, 2)
    assert producers.check(overlay, PID, 0, 5, 1) is ErrorCode.NONE
    assert producers.check(overlay, PID, 0, 4, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batch_ahead_of_the_wrap_was_not_appended() -> None:
    """The numbers after the largest are low, and do not denote an old batch."""
    producers = Producers()
    for n in range(WINDOW_BATCHES):
        first = SEQUENCE_END - (WINDOW_BATCHES - n) * COUNT
        producers.apply(PID, 0, first, COUNT, n * COUNT, n + 1, -1)
    overlay = Overlay()
    assert producers.check(overlay, PID, 0, COUNT, COUNT) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(overlay, PID, 0, 0, COUNT) is ErrorCode.NONE


def test_producer_quiet_longest_is_forgotten_at_the_limit() -> None:
    """Memory is bounded by count, in the order of the log, so it is the same on every replica."""
    producers = Producers()
    for pid in range(PRODUCERS_MAX):
        producers.apply(pid, 0, 0, 1, pid, pid + 1, -1)
    producers.apply(0, 0, 1, 1, PRODUCERS_MAX, PRODUCERS_MAX + 1, -1)
    producers.take_dirty()
    assert len(producers) == PRODUCERS_MAX
    producers.apply(PRODUCERS_MAX, 0, 0, 1, 0, PRODUCERS_MAX + 2, -1)
    assert len(producers) == PRODUCERS_MAX
    assert producers.get(0) is not None
    assert producers.get(1) is None
    assert producers.check(Overlay(), 1, 0, 1, 1) is ErrorCode.UNKNOWN_PRODUCER_ID, "in the log?"
    assert producers.check(Overlay(), 0, 0, 2, 1) is ErrorCode.NONE
    assert producers.check(Overlay(), 1, 0, 0, 1) is ErrorCode.NONE
    deleted = [key for key, value in producers.take_dirty() if value is None]
    assert len(deleted) == 1


def test_first_batch_sent_again_after_many_others_is_recognised() -> None:
    """No number of new producers causes a duplicate write."""
    leader = Leader()
    for pid in range(2 * PRODUCERS_KEPT):
        leader.send(0, pid=pid)
    leader.apply()
    assert leader.send(0, pid=0) == original(0, 1)


def test_excess_ends_where_as_many_are_left_as_are_kept() -> None:
    """No excess at the limit; one past it, the longest idle producer is in excess."""
    leader = Leader()
    for pid in range(PRODUCERS_KEPT):
        leader.send(0, pid=pid)
    leader.send(COUNT, pid=0)
    leader.apply()
    assert leader.producers.excess_index(PRODUCERS_KEPT) == 0
    for pid in range(3):
        leader.send(0, pid=PRODUCERS_KEPT + pid)
    leader.apply()
    assert leader.producers.excess_index(PRODUCERS_KEPT) == 4
    expire(leader.state, 4)
    assert [pid for pid in range(6) if leader.producers.get(pid)] == [0, 4, 5]
    assert len(leader.producers) == PRODUCERS_KEPT
    assert leader.producers.excess_index(PRODUCERS_KEPT) == 0


def test_state_loaded_is_the_state_stored_also_its_order_of_forgetting() -> None:
    """A restart or a snapshot changes no later decision."""
    leader = Leader()
    for n in range(7):
        leader.send(n * COUNT, pid=n % 3 and 7)
    leader.apply()
    for pid in (9, 7, 8, 0):
        leader.send(0, pid=pid, epoch=1)
    leader.apply()
    copy = PartitionState()
    copy.load(leader.state.items())
    assert copy.items() == leader.state.items()
    assert list(copy.producers._producers) == list(leader.producers._producers)
    assert copy.take_dirty() == []


def test_dirty_keys_merged_give_the_whole_state() -> None:
    """A checkpoint of the changes, on top of the previous one, is the state."""
    leader = Leader()
    stored: dict[bytes, bytes] = {}
    for n in range(40):
        leader.send((n // 4) * COUNT, pid=n % 4)
        leader.apply()
        if n % 7 == 0:
            for key, value in leader.state.take_dirty():
                assert value is not None
                stored[key] = value
    for key, value in leader.state.take_dirty():
        assert value is not None
        stored[key] = value
    assert sorted(stored.items()) == leader.state.items()


def expire(state: PartitionState, index: int) -> None:
    state.apply(encode_command(ExpireProducers(index)), end_offset=0)


def test_producers_without_a_newer_batch_expire() -> None:
    """Judged by the entry of the newest batch: a live producer with old batches stays."""
    leader = Leader()
    for pid in (1, 2, 3, 1, 4):
        leader.send(COUNT if pid in leader.overlay.producers else 0, pid=pid)
    leader.apply()
    leader.state.take_dirty()
    expire(leader.state, 3)
    assert [pid for pid in (1, 2, 3, 4) if leader.producers.get(pid)] == [1, 4]
    assert [value for _, value in leader.state.take_dirty()] == [None, None]
    expire(leader.state, 3)
    assert leader.state.take_dirty() == []


def test_expired_producer_goes_on_where_it_was() -> None:
    """An expired producer continues its numbers.

    None of its earlier batches is retried after so long. Kafka accepts it as well.
    """
    leader = Leader()
    leader.send(0, epoch=3)
    leader.apply()
    expire(leader.state, 1)
    assert len(leader.producers) == 0
    assert leader.send(10, epoch=3, pid=PID + 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.send(10, epoch=3) is SENT_BACK
    assert leader.send(10, epoch=3) is ErrorCode.NONE
    assert leader.send(20, epoch=3) is ErrorCode.NONE
    assert leader.send(0, epoch=4) is ErrorCode.NONE


def test_expired_producers_leave_a_table_that_takes_any_again() -> None:
    """A table below its bound again accepts any producer: none was removed early."""
    producers = Producers()
    for pid in range(PRODUCERS_MAX + 1):
        producers.apply(pid, 0, 0, 1, pid, pid + 1, -1)
    assert producers.check(Overlay(), 0, 0, 1, 1) is ErrorCode.UNKNOWN_PRODUCER_ID
    producers.expire(2)
    overlay = Overlay()
    assert producers.check(overlay, 0, 0, 1, 1) is SENT_BACK
    assert producers.check(overlay, 0, 0, 1, 1) is ErrorCode.NONE


def test_batch_appended_before_its_producer_expires_keeps_it_known() -> None:
    """The leader accepted the batch while the command was under way.

    Later batches are in order, and a retried batch is recognised.
    """
    leader = Leader()
    leader.send(0)
    leader.apply()
    assert leader.send(10) is ErrorCode.NONE
    expire(leader.state, 1)
    assert leader.send(20) is ErrorCode.NONE
    assert leader.send(10) == original(10, 2)
    leader.apply()
    assert leader.send(20) == original(20, 3)
    assert leader.send(30) is ErrorCode.NONE
    assert leader.send(0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_state_after_an_expiry_is_the_state_stored() -> None:
    """A checkpoint of changes deletes expired producers; a snapshot omits them.

    Both restore the same order of removal.
    """
    leader = Leader()
    stored: dict[bytes, bytes] = {}

    def checkpoint() -> None:
        for key, value in leader.state.take_dirty():
            if value is None:
                del stored[key]
            else:
                stored[key] = value

    for n in range(12):
        leader.send((n // 4) * COUNT, pid=n % 4)
    leader.apply()
    checkpoint()
    expire(leader.state, 10)
    leader.state.apply(encode_command(AdvanceLogStart(7)), end_offset=120)
    checkpoint()
    assert sorted(stored.items()) == leader.state.items()
    copy = PartitionState()
    copy.load(sorted(stored.items()))
    assert copy.items() == leader.state.items()
    for state in (copy, leader.state):
        expire(state, 11)
    assert copy.items() == leader.state.items()
    assert (leader.producers.oldest_index, leader.producers.newest_index) == (12, 12)
    assert copy.log_start_offset == 7


def test_producers_that_come_and_go_leave_nothing() -> None:
    """Memory is released once they have expired, also that of their table."""
    producers = Producers()
    empty = sys.getsizeof(producers._producers)
    for pid in range(PRODUCERS_MAX):
        producers.apply(pid, 0, 0, 1, pid, pid + 1, -1)
    producers.expire(PRODUCERS_MAX)
    assert (len(producers), producers.oldest_index, producers.newest_index) == (0, None, None)
    assert producers.items() == []
    assert len(producers.take_dirty()) == PRODUCERS_MAX
    assert sys.getsizeof(producers._producers) <= empty


def test_command_of_another_version_is_not_skipped() -> None:
    """A replica that skipped it would diverge."""
    state = PartitionState()
    for data in ([3, 1], [2, 1, 1], [2]):
        with pytest.raises(msgspec.DecodeError):
            state.apply(msgspec.msgpack.encode(data), end_offset=0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 11), st.integers(0, 2)),
            st.tuples(st.just("apply"), st.integers(1, 4), st.just(0)),
            st.tuples(st.just("fail over"), st.just(0), st.just(0)),
        ),
        max_size=60,
    )
)
def test_random_sends_never_append_twice_or_out_of_order(
    steps: list[tuple[str, int, int]],
) -> None:
    """Random sends are never appended twice or out of order, compared with the log as model.

    Every batch is there once, dense from 0 in its epoch. A batch in the log is never called unknown
    or not appended while it is within the window.
    """
    leader = Leader()
    for kind, number, epoch in steps:
        if kind == "apply":
            leader.apply(min(len(leader.log), leader.applied + number))
        elif kind == "fail over":
            leader.fail_over()
        else:
            mine = [batch for batch in leader.log if batch[1] == epoch]
            verdict = leader.send(number * COUNT, epoch=epoch)
            first = [batch for batch in mine if batch[2] == number * COUNT]
            newest = max((batch[1] for batch in leader.log), default=-1)
            if epoch < newest:
                assert verdict is ErrorCode.INVALID_PRODUCER_EPOCH
            elif first and first[0] in mine[-WINDOW_BATCHES:]:
                assert verdict == original(first[0][4], first[0][5])
            elif first:
                assert verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or isinstance(
                    verdict, Duplicate
                )
            elif number * COUNT != len(mine) * COUNT:
                assert verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                assert verdict is ErrorCode.NONE
    for epoch in range(3):
        sequences = [batch[2] for batch in leader.log if batch[1] == epoch]
        assert sequences == [n * COUNT for n in range(len(sequences))]


def test_windows_stored_before_batches_had_times_are_read() -> None:
    """State stored by an older release has no times: -1, which is returned as no timestamp."""
    leader = Leader()
    leader.send(0)
    leader.apply()
    ((key, value),) = leader.state.items()
    stored = msgspec.msgpack.decode(value)
    assert stored[2][0][4] == time_of(1)
    del stored[2][0][4]
    old = PartitionState()
    old.load([(key, msgspec.msgpack.encode(stored))])
    assert old.producers.check(Overlay(), PID, 0, 0, COUNT) == Duplicate(0, 1, -1)
