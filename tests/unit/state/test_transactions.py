"""Transactional ids: fencing, the end of a transaction, and that it ends once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.coordinator import TRANSACTIONS_BYTES_MAX, Coordinator
from vdl.state.transactions import (
    EPOCH_MAX,
    FIRST_VERSION,
    IDLE_MS_MIN,
    SECOND_VERSION,
    TransactionalId,
    TransactionAnswer,
    TransactionState,
)

X = "x"
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
WRONG_STATE = ErrorCode.INVALID_TXN_STATE


class Life:
    """One coordinator, and the requests for one transactional id."""

    def __init__(self) -> None:
        self.machine = Coordinator()
        self.now_ms = 1_000
        self.index = 0

    def apply(self, command: Any) -> Any:
        """Apply a command, then store and load the state: it must survive both."""
        self.index += 1
        result = self.machine.apply(command, self.now_ms, self.index)
        copy = Coordinator()
        copy.load(self.machine.items())
        assert copy.items() == self.machine.items()
        assert copy.bytes_held == self.machine.bytes_held
        return result

    @property
    def x(self) -> TransactionalId:
        return self.machine.transactions.ids[X]

    def init(self, new: int = 7, expected: tuple[int, int] = (-1, -1)) -> TransactionAnswer:
        answer = self.apply(commands.InitTransactions(X, 60_000, new, *expected))
        assert isinstance(answer, TransactionAnswer)
        return answer

    def add(
        self, *participants: int, epoch: int = -1, producer: int = -1, **fields: Any
    ) -> ErrorCode:
        producer_id = self.x.producer_id if producer < 0 else producer
        who = producer_id, self.x.epoch if epoch < 0 else epoch
        values = {"version": SECOND_VERSION} | fields
        return ErrorCode(
            self.apply(commands.AddToTransaction(X, *who, list(participants), **values)).error
        )

    def end(
        self, commits: bool, *, version: int, epoch: int = -1, producer: int = -1, new: int = -1
    ) -> TransactionAnswer:
        producer_id = self.x.producer_id if producer < 0 else producer
        epoch = self.x.epoch if epoch < 0 else epoch
        answer = self.apply(commands.EndTransaction(X, producer_id, epoch, commits, version, new))
        assert isinstance(answer, TransactionAnswer)
        return answer

    def complete(self, *, number: int = 0) -> list[str]:
        transaction = X, self.x.producer_id, number or self.x.number
        changed: list[str] = self.apply(commands.CompleteTransactions([transaction])).changed
        return changed

    def run(self, commits: bool = True, version: int = SECOND_VERSION) -> None:
        """Run a whole transaction."""
        assert self.add(9, version=version) is NONE
        assert self.end(commits, version=version).error is NONE
        assert self.complete() == [X]


@pytest.fixture
def life() -> Life:
    made = Life()
    answer = made.init()
    assert (answer.error, answer.producer_id, answer.epoch) == (NONE, 7, 0)
    return made


# --- InitProducerId ------------------------------------------------------------------------------


def test_first_use_needs_a_producer_id() -> None:
    """The proposer retries with one: `apply` does not allocate ids."""
    life = Life()
    answer = life.init(new=-1)
    assert answer.needs_producer_id
    assert answer.error is CONCURRENT, "one that clients try again"
    assert not life.machine.transactions.ids


def test_each_instance_gets_the_next_epoch(life: Life) -> None:
    """KIP-98: the previous instance is fenced."""
    answer = life.init(new=-1)
    assert (answer.producer_id, answer.epoch) == (7, 1)
    assert life.add(9, epoch=0) is FENCED
    assert life.end(True, version=1, epoch=0).error is FENCED


def test_producer_that_names_its_epoch_has_it_bumped_once(life: Life) -> None:
    """KIP-360: also when it retries because it received no answer. Others are fenced."""
    for _ in range(2):
        answer = life.init(new=-1, expected=(7, 0))
        assert (answer.error, answer.producer_id, answer.epoch) == (NONE, 7, 1)
    assert life.init(new=-1, expected=(7, 1)).epoch == 2
    assert life.init(new=-1, expected=(7, 0)).error is FENCED
    assert life.init(new=-1, expected=(6, 2)).error is FENCED


def test_open_transaction_is_aborted_before_the_next_instance_begins(life: Life) -> None:
    """The new instance gets CONCURRENT_TRANSACTIONS until the abort is complete."""
    assert life.add(9) is NONE
    assert life.init(new=-1).error is CONCURRENT
    assert (life.x.state, life.x.epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert life.init(new=-1).error is CONCURRENT
    assert life.complete() == [X]
    assert life.init(new=-1).epoch == 2


def test_producer_that_names_its_epoch_is_not_fenced_by_its_own_request(life: Life) -> None:
    """The producer's open transaction is aborted, and it continues with the resulting epoch."""
    assert life.add(9) is NONE
    assert life.init(new=-1, expected=(7, 5)).error is FENCED
    assert life.x.state is TransactionState.ONGOING, "somebody else's request ends nothing"
    assert life.init(new=-1, expected=(7, 0)).error is CONCURRENT
    life.complete()
    answer = life.init(new=-1, expected=(7, 0))
    assert (answer.error, answer.epoch) == (NONE, 1)


def test_exhausted_epochs_go_on_under_a_new_producer_id(life: Life) -> None:
    """The last epoch is for markers alone. A producer that had the last one may retry."""
    life.x.epoch = EPOCH_MAX - 1
    last = 7, EPOCH_MAX - 1
    assert life.init(new=-1).needs_producer_id
    for _ in range(2):
        answer = life.init(new=8, expected=last)
        assert (answer.error, answer.producer_id, answer.epoch) == (NONE, 8, 0)
    assert life.init(new=9, expected=(7, 3)).error is FENCED


def test_fencing_an_exhausted_producer_uses_the_last_epoch(life: Life) -> None:
    life.x.epoch = EPOCH_MAX - 1
    assert life.add(9) is NONE
    assert life.init(new=-1).error is CONCURRENT
    assert life.x.epoch == EPOCH_MAX
    life.complete()
    assert life.init(new=8).producer_id == 8


def test_producer_that_asks_again_is_never_given_the_epoch_of_markers(life: Life) -> None:
    """A retry gets no epoch after an abort with the epoch of markers: none follows it."""
    life.x.epoch = EPOCH_MAX - 1
    last = 7, EPOCH_MAX - 1
    assert life.add(9) is NONE
    assert life.init(new=-1, expected=last).error is CONCURRENT
    life.complete()
    assert life.init(new=-1, expected=(7, 3)).error is FENCED
    assert life.init(new=-1, expected=last).needs_producer_id
    for _ in range(2):
        answer = life.init(new=8, expected=last)
        assert (answer.error, answer.producer_id, answer.epoch) == (NONE, 8, 0)


def test_nobody_goes_on_with_the_epoch_of_markers(life: Life) -> None:
    """A producer that guesses it must not begin a transaction that could no longer be fenced."""
    life.x.epoch = EPOCH_MAX - 1
    assert life.add(9) is NONE
    assert life.init(new=-1).error is CONCURRENT
    life.complete()
    assert life.x.epoch == EPOCH_MAX
    assert life.add(9) is FENCED
    assert life.end(False, version=SECOND_VERSION, new=8).error is FENCED
    assert life.init(new=8).error is NONE
    assert life.x.epoch == 0


def test_producer_whose_epochs_were_used_up_is_fenced_by_the_next_instance(life: Life) -> None:
    """A producer with the last epoch of the previous id is fenced.

    It receives the new id only if it is the one that requested it.
    """
    life.x.epoch = EPOCH_MAX - 1
    last = 7, EPOCH_MAX - 1
    assert life.init(new=8).producer_id == 8
    assert life.init(new=-1, expected=last).error is FENCED
    life.run()
    assert life.init(new=-1, expected=last).error is FENCED


def test_producer_that_was_given_a_new_id_asks_again_only_until_it_is_used(life: Life) -> None:
    life.x.epoch = EPOCH_MAX - 1
    last = 7, EPOCH_MAX - 1
    assert life.init(new=8, expected=last).producer_id == 8
    assert life.add(9) is NONE
    assert life.init(new=-1, expected=last).error is FENCED
    assert life.x.state is TransactionState.ONGOING


# --- adding --------------------------------------------------------------------------------------


def test_transaction_begins_with_its_first_participant(life: Life) -> None:
    assert life.x.number == 0
    assert life.add(9, 3) is NONE
    assert life.add(3, 4) is NONE
    assert (life.x.state, life.x.participants) == (TransactionState.ONGOING, [3, 4, 9])
    assert (life.x.number, life.x.started_ms) == (1, 1_000)
    life.end(True, version=2)
    life.complete()
    assert life.x.participants == []
    assert life.add(3) is NONE
    assert life.x.number == 2


def test_add_says_the_number_of_the_transaction(life: Life) -> None:
    """The result names the transaction's number, also when the partition is added again."""
    command = commands.AddToTransaction(X, 7, 0, [9], version=2)
    assert [life.apply(command).data for _ in range(2)] == [(1).to_bytes(8)] * 2


def test_nothing_is_added_by_strangers_or_between_two_transactions(life: Life) -> None:
    strange = commands.AddToTransaction("y", 7, 0, [9])
    assert life.apply(strange).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    other = commands.AddToTransaction(X, 8, 0, [9])
    assert life.apply(other).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert life.add(9) is NONE
    life.end(True, version=1)
    assert life.add(9) is CONCURRENT
    life.complete()
    assert life.add(9) is NONE


def test_verification_changes_nothing(life: Life) -> None:
    """KIP-890: a partition that is not in an open transaction is to be aborted."""
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert life.add(9, verify_only=True) is abortable
    assert life.x.state is TransactionState.EMPTY
    assert life.add(9) is NONE
    assert life.add(9, verify_only=True) is NONE
    assert life.add(9, 3, verify_only=True) is abortable
    assert life.add(9, epoch=3, verify_only=True) is FENCED
    life.end(False, version=1)
    assert life.add(9, verify_only=True) is CONCURRENT
    life.complete()
    assert life.add(9, verify_only=True) is abortable


# --- EndTxn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_end_of_the_first_version_keeps_the_epoch(life: Life, commits: bool) -> None:
    """The end is final, and a retry gets the same answer."""
    life.add(9, version=FIRST_VERSION)
    answer = life.end(commits, version=1)
    assert (answer.error, answer.changed, life.x.epoch) == (NONE, [X], 0)
    assert life.end(commits, version=1).error is CONCURRENT
    assert life.end(not commits, version=1).error is CONCURRENT
    assert life.complete() == [X]
    assert life.complete() == []
    assert life.end(commits, version=1).error is NONE
    assert life.end(not commits, version=1).error is WRONG_STATE
    assert life.x.version == FIRST_VERSION


@pytest.mark.parametrize("commits", [True, False])
def test_end_of_the_second_version_bumps_the_epoch_once(life: Life, commits: bool) -> None:
    """KIP-890: a retry gets the same id and epoch."""
    life.add(9)
    answer = life.end(commits, version=2)
    assert (answer.error, answer.producer_id, answer.epoch) == (NONE, 7, 1)
    assert life.end(commits, version=2, epoch=0).error is CONCURRENT
    life.complete()
    again = life.end(commits, version=2, epoch=0)
    assert (again.error, again.producer_id, again.epoch, again.changed) == (NONE, 7, 1, [])
    assert life.end(not commits, version=2, epoch=0).error is WRONG_STATE
    life.add(9)
    assert life.end(commits, version=2, epoch=0).error is FENCED, "the next one is open"


def test_end_with_the_last_epoch_goes_on_under_a_new_producer_id(life: Life) -> None:
    """The markers have the last epoch of the old id; a retry gets the same answer."""
    last = EPOCH_MAX - 1
    life.x.epoch = last
    life.add(9)
    assert life.end(True, version=2).needs_producer_id
    assert life.x.state is TransactionState.ONGOING
    answer = life.end(True, version=2, new=8)
    assert (answer.error, answer.producer_id, answer.epoch) == (NONE, 8, 0)
    assert (life.x.producer_id, life.x.epoch) == (7, EPOCH_MAX)
    assert life.end(True, version=2, epoch=last, new=9).error is CONCURRENT
    life.complete()
    again = life.end(True, version=2, producer=7, epoch=last)
    assert (again.error, again.producer_id, again.epoch) == (NONE, 8, 0)
    assert life.add(9) is NONE
    late = life.end(True, version=2, producer=7, epoch=last)
    assert late.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_abort_of_nothing_is_an_end_of_the_second_version_alone(life: Life) -> None:
    """A producer need not know if its first batch arrived. An empty commit is an error."""
    assert life.end(True, version=2).error is WRONG_STATE
    assert life.end(False, version=1).error is WRONG_STATE
    answer = life.end(False, version=2)
    assert (answer.error, answer.epoch) == (NONE, 1)
    assert life.x.state is TransactionState.COMPLETE_ABORT, "nobody has to be told"
    assert life.end(False, version=2, epoch=0).epoch == 1, "asked again"
    assert life.end(False, version=2).epoch == 2


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARED_COMMIT, PREPARED_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

# (state, protocol version, epoch relative to the current one) -> the answers to EndTxn for a commit
# and for an abort. From Kafka 4.3.1: `endTransaction`, `endTransactionWithTV1`. There a prepared
# transaction always has a pending transition, which is checked before the request.
ENDS = {
    (EMPTY, 1, 0): (WRONG_STATE, WRONG_STATE),
    (ONGOING, 1, 0): (NONE, NONE),
    (PREPARED_COMMIT, 1, 0): (CONCURRENT, CONCURRENT),
    (PREPARED_ABORT, 1, 0): (CONCURRENT, CONCURRENT),
    (COMMITTED, 1, 0): (NONE, WRONG_STATE),
    (ABORTED, 1, 0): (WRONG_STATE, NONE),
    (EMPTY, 2, 0): (WRONG_STATE, NONE),
    (ONGOING, 2, 0): (NONE, NONE),
    (PREPARED_COMMIT, 2, 0): (CONCURRENT, CONCURRENT),
    (PREPARED_ABORT, 2, 0): (CONCURRENT, CONCURRENT),
    (COMMITTED, 2, 0): (WRONG_STATE, NONE),
    (ABORTED, 2, 0): (WRONG_STATE, NONE),
    (EMPTY, 2, -1): (FENCED, FENCED),
    (ONGOING, 2, -1): (FENCED, FENCED),
    (PREPARED_COMMIT, 2, -1): (CONCURRENT, CONCURRENT),
    (PREPARED_ABORT, 2, -1): (CONCURRENT, CONCURRENT),
    (COMMITTED, 2, -1): (NONE, WRONG_STATE),
    (ABORTED, 2, -1): (WRONG_STATE, NONE),
}
for _state in (EMPTY, ONGOING, PREPARED_COMMIT, PREPARED_ABORT, COMMITTED, ABORTED):
    ENDS[_state, 1, -1] = ENDS[_state, 1, 1] = ENDS[_state, 2, 1] = (FENCED, FENCED)


def reach(state: TransactionState, version: int) -> Life:
    """Return a transactional id in this state and version, not in its first epoch."""
    life = Life()
    life.init()
    life.run(version=version)
    life.init(new=-1)
    if state is not EMPTY:
        life.add(9, version=version)
    if state not in (EMPTY, ONGOING):
        life.end(state in (PREPARED_COMMIT, COMMITTED), version=version)
    if state in (COMMITTED, ABORTED):
        life.complete()
    assert life.x.state is state
    return life


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize(("state", "version", "beside"), ENDS)
def test_answer_to_each_end_is_kafkas(
    state: TransactionState, version: int, beside: int, commits: bool
) -> None:
    """A decided outcome stays decided."""
    life = reach(state, version)
    before = life.x.epoch
    answer = life.end(commits, version=version, epoch=before + beside)
    assert answer.error is ENDS[state, version, beside][not commits]
    is_new = (
        answer.error is NONE and beside == 0 and (version == SECOND_VERSION or state is ONGOING)
    )
    if is_new:
        assert life.x.epoch == before + version - 1
        decided = (PREPARED_COMMIT if commits else PREPARED_ABORT) if state is ONGOING else ABORTED
        assert life.x.state is decided
    else:
        assert (life.x.state, life.x.epoch) == (state, before)
    if answer.error is NONE:
        assert (answer.producer_id, answer.epoch) == (7, life.x.epoch)


def test_producer_that_was_told_its_next_id_waits_until_it_is_its_own(life: Life) -> None:
    """A producer that continues under a new id cannot end the old id's transaction.

    It continues before all partitions received the end under the old one.
    """
    last = EPOCH_MAX - 1
    life.x.epoch = last
    life.add(9)
    assert life.end(True, version=2, new=8).producer_id == 8
    for _ in range(2):
        assert life.add(9, producer=8, epoch=0) is CONCURRENT
        assert life.add(9, producer=8, epoch=0, verify_only=True) is CONCURRENT
        assert life.end(False, version=2, producer=8, epoch=0).error is CONCURRENT
        assert life.init(new=-1, expected=(8, 0)).error is CONCURRENT
    assert life.add(9, producer=8, epoch=1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    life.complete()
    assert life.add(9, producer=8, epoch=0) is NONE
    assert life.end(False, version=2, producer=8, epoch=0).epoch == 1


def test_late_acknowledgements_end_no_other_transaction(life: Life) -> None:
    """A transaction is identified by its number.

    A former leader may report again that one is complete.
    """
    life.run()
    life.add(9)
    life.end(True, version=2)
    assert life.complete(number=1) == []
    assert life.x.state is TransactionState.PREPARE_COMMIT


# --- time ----------------------------------------------------------------------------------------


def test_timed_out_transaction_is_aborted_and_its_producer_fenced(life: Life) -> None:
    """The command names the transaction's number.

    One that ended meanwhile, or another one, is left alone.
    """
    life.add(9, version=FIRST_VERSION)
    abort = commands.AbortTransactions([(X, 7, 1), ("y", 7, 1)])
    assert life.apply(abort).changed == [X]
    assert (life.x.state, life.x.epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert life.apply(abort).changed == []
    assert life.end(False, version=1, epoch=0).error is FENCED
    life.complete()
    life.init(new=-1)
    life.add(9)
    assert life.apply(abort).changed == []


@pytest.mark.parametrize("version", [FIRST_VERSION, SECOND_VERSION])
def test_producer_whose_transaction_timed_out_goes_on_in_the_next_epoch(
    life: Life, version: int
) -> None:
    """KIP-588: it names its previous epoch, also twice, unless another instance began."""
    life.add(9, version=version)
    life.apply(commands.TimeOutTransactions([(X, 7, 1)]))
    assert life.init(new=-1, expected=(7, 0)).error is CONCURRENT
    life.complete()
    for _ in range(2):
        answer = life.init(new=-1, expected=(7, 0))
        assert (answer.error, answer.producer_id, answer.epoch) == (NONE, 7, 1)
    life.add(9, epoch=1, version=version)
    life.apply(commands.TimeOutTransactions([(X, 7, 2)]))
    life.complete()
    assert life.init(new=-1).epoch == 3
    assert life.init(new=-1, expected=(7, 1)).error is FENCED


def test_producer_fenced_by_another_instance_does_not_go_on_after_its_time(life: Life) -> None:
    """A fenced producer stays fenced after the timeout of its transaction.

    Only the timer lets a producer keep its epoch.
    """
    life.add(9)
    assert life.init(new=-1).error is CONCURRENT
    life.apply(commands.TimeOutTransactions([(X, 7, 1)]))
    life.complete()
    assert life.init(new=-1, expected=(7, 0)).error is FENCED


def test_producer_of_the_second_version_may_abort_what_timed_out(life: Life) -> None:
    """A producer of the second version receives the epoch with which it continues.

    A commit is refused.
    """
    life.add(9)
    life.apply(commands.AbortTransactions([(X, 7, 1)]))
    assert life.end(True, version=2, epoch=0).error is CONCURRENT
    life.complete()
    assert life.end(True, version=2, epoch=0).error is WRONG_STATE
    answer = life.end(False, version=2, epoch=0)
    assert (answer.error, answer.epoch) == (NONE, 1)


def test_unused_ids_expire_but_for_those_with_a_transaction(life: Life) -> None:
    def expire(now_ms: int, ids_max: int = 10) -> list[str]:
        life.apply(commands.ExpireTransactionalIds(500, now_ms, ids_max))
        return sorted(life.machine.transactions.ids)

    for name in ("y", "z"):
        life.apply(commands.InitTransactions(name, 60_000, 9))
    life.add(9)
    assert expire(1_499) == [X, "y", "z"]
    assert expire(1_500, ids_max=1) == [X, "z"]
    assert expire(1_500) == [X]
    life.end(True, version=2)
    assert expire(9_000) == [X]
    life.complete()
    assert expire(9_000) == []
    assert life.machine.transactions.bytes == 0


def fill(life: Life, size: int) -> list[TransactionAnswer]:
    """Allocate ids until one is refused; return all answers."""
    answers: list[TransactionAnswer] = []
    while not answers or answers[-1].error is NONE:
        name = f"{len(answers)}".rjust(size)
        command = commands.InitTransactions(name, 1, len(answers) + 100)
        answers.append(life.machine.apply(command, life.now_ms, len(answers)))
    return answers


def test_ids_stay_within_what_a_snapshot_carries() -> None:
    """New ids are refused at the bound, which leaves space for groups. Existing ids continue."""
    life = Life()
    life.init()
    assert fill(life, 1_000)[-1].error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    held = life.machine.bytes_held
    assert TRANSACTIONS_BYTES_MAX - 2_000 < held <= TRANSACTIONS_BYTES_MAX
    assert life.init(new=-1).epoch == 1
    assert life.add(*range(1_000)) is ErrorCode.TRANSACTION_ABORTABLE
    offsets = [commands.OffsetCommit("t", b"i" * 16, 0, 1, -1, "")]
    committed = life.apply(commands.CommitOffsets("g", -1, "", None, offsets))
    assert committed.error is NONE


def test_ids_of_long_ago_make_room_for_new_ones() -> None:
    """The oldest are removed first, and none with an open transaction."""
    life = Life()
    life.init()
    life.add(9)
    life.now_ms += 1
    count = len(fill(life, 1_000))
    life.now_ms += IDLE_MS_MIN - 1
    assert (
        life.apply(commands.InitTransactions("late".rjust(1_000), 1, 8)).error
        is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    life.now_ms += 1
    ids = life.machine.transactions.ids
    before = set(ids)
    answer = life.apply(commands.InitTransactions("late".rjust(1_000), 1, 8))
    assert answer.error is NONE
    assert set(answer.touched) == before ^ set(ids), "readers of the log of ids learn of them"
    assert X in ids
    assert "0".rjust(1_000) not in ids
    assert f"{count - 2}".rjust(1_000) in ids
    assert len(ids) > count * 9 // 10


class Counted(dict[str, TransactionalId]):
    """Mapping that counts full iterations."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_refusing_new_ids_does_not_look_at_all_of_them_each_time() -> None:
    """Thousands of clients may request new ids while there is space for none."""
    life = Life()
    fill(life, 1_000)
    transactions = life.machine.transactions
    counted = transactions.ids = Counted(transactions.ids)
    for number in range(100):
        answers = life.machine.apply(
            commands.InitTransactions(f"late{number}".rjust(1_000), 1, 8), life.now_ms, number
        )
        assert answers.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert counted.looks <= 1


@pytest.mark.parametrize("seed", range(10))
def test_ids_make_room_in_the_order_in_which_they_were_used_last(seed: int) -> None:
    """The least recently used ids are removed first, also after iterations and restarts."""
    rng = random.Random(seed)
    machine, restarted = Coordinator(), Coordinator()
    now_ms = 1_000
    for index in range(600):
        now_ms += rng.choice((0, 1, IDLE_MS_MIN // 40))
        name = f"{rng.randrange(90)}".rjust(20_000)
        ids = machine.transactions.ids
        command: Any = commands.InitTransactions(name, 1, 100 + index)
        known = ids.get(name)
        if known is not None and rng.random() < 0.5:
            who = name, known.producer_id, known.epoch
            command = commands.AddToTransaction(*who, [9], version=SECOND_VERSION)
        elif known is not None and known.state is TransactionState.ONGOING:
            done = [(name, known.producer_id, known.number)]
            machine.apply(commands.AbortTransactions(done), now_ms, index)
            restarted.apply(commands.AbortTransactions(done), now_ms, index)
            command = commands.CompleteTransactions(done)
        before = {one.transactional_id: one.changed_ms for one in ids.values() if one.is_idle}
        machine.apply(command, now_ms, index)
        restarted.apply(command, now_ms, index)
        gone = sorted((before[name], name) for name in before.keys() - ids.keys())
        left = sorted((ms, name) for name, ms in before.items() if name in ids)
        assert not gone or not left or gone[-1] < left[0]
        if rng.random() < 0.05:
            items = restarted.items()
            # A megabyte each: compared where a difference would begin, and once more at the end.
            assert items == machine.items()
            restarted = Coordinator()
            restarted.load(items)
    assert restarted.items() == machine.items()
