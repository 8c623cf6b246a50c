"""`vdl produce`: signals, transactions whose outcome is uncertain, properties, its input."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, Producer

from vdl.commands.app import app
from vdl.commands.interrupts import Interrupts
from vdl.commands.produce import Changes, _send_all
from vdl.commands.records.record_input import parts, whole_reads
from vdl.commands.records.record_json import BadRecord, NewRecord, parse_record
from vdl.commands.records.record_sender import RecordSender, delivery_properties
from vdl.commands.records.transaction import COMMITS_MAX, TURN_SECONDS, Ending, Transaction

# --- input ----------------------------------------------------------------------------------------


def test_input_that_does_not_block_ends_only_at_its_end() -> None:
    """Nothing to read yet is not the end: a transaction would be committed with half of it."""
    output, into = os.pipe()
    os.set_blocking(output, False)
    waiting = threading.Event()

    def write() -> None:
        os.write(into, b"a\nb")
        waiting.wait()
        time.sleep(0.05)  # only so that the reader is at a pipe without bytes, most of the time
        os.write(into, b"c\n")
        os.close(into)

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(output, "rb", buffering=0) as file:
        found = []
        for part in parts(whole_reads(file), b"\n"):
            found.append(part)
            waiting.set()
    writer.join()
    assert found == [b"a", b"bc"]


@pytest.mark.parametrize("name", ["a\0b", "a\udcff"], ids=["nul", "no-utf-8"])
def test_name_of_a_header_that_no_client_sends_is_wrong_usage(name: str) -> None:
    done = CliRunner().invoke(app, ["produce", "t", "-H", f"{name}=1"])
    assert done.exit_code == 2
    assert "header" in done.output


def test_document_that_does_not_hold_its_record_is_refused() -> None:
    """A reader that cannot read headers writes none: a copy would be without them."""
    with pytest.raises(BadRecord, match="no copy"):
        parse_record(b'{"value": "v", "headers": [], "problem": "headers: a name is no UTF-8"}')
    with pytest.raises(BadRecord, match="NUL"):
        parse_record(b'{"value": "v", "headers": {"a\\u0000": "1"}}')


# --- properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acks", "given", "idempotent"),
    [
        ("all", {}, True),
        ("1", {}, False),
        ("0", {}, False),
        ("all", {"acks": "1"}, False),
        ("all", {"request.required.acks": "-1"}, True),
        ("all", {"max.in.flight": "6"}, False),
        ("all", {"max.in.flight": "5"}, True),
        ("all", {"retries": "0"}, False),
        ("all", {"enable.idempotence": "false"}, False),
    ],
)
def test_producer_is_idempotent_unless_something_excludes_it(
    acks: str, given: dict[str, str], idempotent: bool
) -> None:
    """The client takes the properties together; it refuses those that contradict each other."""
    found = {**delivery_properties(acks, given), **given}
    Producer(found)
    assert found.get("enable.idempotence") is True or not idempotent
    assert not idempotent or found["partitioner"] == "murmur2_random"
    if not idempotent:
        assert found.get("enable.idempotence", "false") == "false"


# --- signals --------------------------------------------------------------------------------------


class Slow:
    """A producer whose first flush a signal meets."""

    def __init__(self, *, signals: int) -> None:
        self.signals = signals
        self.queued: list[Any] = []
        self.purged = False

    def produce(self, topic: str, *, on_delivery: Any, **record: Any) -> None:
        assert topic == "t"
        self.queued.append((on_delivery, record))

    def __len__(self) -> int:
        return len(self.queued)

    def poll(self, seconds: float) -> int:
        return int(seconds * 0)

    def flush(self, seconds: float) -> int:
        assert seconds
        if self.signals:
            self.signals -= 1
            signal.raise_signal(signal.SIGINT)
        else:
            self.queued.clear()
        return 0

    def purge(self) -> None:
        self.purged = True


@pytest.mark.parametrize(("signals", "purged"), [(0, False), (1, False), (2, True)])
def test_only_a_second_signal_gives_up_what_was_taken(signals: int, purged: bool) -> None:
    """The first one in the last wait as well."""
    producer: Any = Slow(signals=signals)
    with Interrupts() as interrupts:
        sender = RecordSender(producer, "t", interrupts=interrupts)
        code = _send_all(sender, [NewRecord(b"v")], Changes(), None, interrupts)
    assert producer.purged is purged
    assert code == (130 if signals else 0)
    assert not producer.queued


def test_signal_while_a_record_is_sent_does_not_lose_it() -> None:
    """It was taken from the input; the next one is not."""
    producer: Any = Slow(signals=0)
    sent = []

    def encode(record: NewRecord) -> bytes | None:
        signal.raise_signal(signal.SIGHUP)
        sent.append(record.value)
        return record.value

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with Interrupts() as interrupts:
            sender = RecordSender(producer, "t", interrupts=interrupts)
            source = [NewRecord(b"1"), NewRecord(b"2")]
            assert _send_all(sender, source, Changes(), encode, interrupts) == 129
    finally:
        signal.signal(signal.SIGHUP, before)
    assert sent == [b"1"]


def test_ignored_signal_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
        assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# --- transactions ---------------------------------------------------------------------------------


class Coordinated:
    """A producer whose commits end as a test says; the abort works."""

    def __init__(self, *endings: KafkaError | None) -> None:
        self.endings = list(endings)
        self.aborts = 0

    def init_transactions(self, seconds: float) -> None:
        assert seconds

    def begin_transaction(self) -> None: ...

    def commit_transaction(self, seconds: float) -> None:
        assert seconds
        signal.raise_signal(signal.SIGINT) if self.endings[0] is None else None
        if (ending := self.endings.pop(0)) is not None:
            raise KafkaException(ending)

    def abort_transaction(self, seconds: float) -> None:
        assert seconds
        self.aborts += 1


LATE = KafkaError(KafkaError._TIMED_OUT, "late", False, True, False)
REFUSED = KafkaError(KafkaError.INVALID_TXN_STATE, "refused", False, False, True)
FENCED = KafkaError(KafkaError._FENCED, "fenced", True, False, False)


@pytest.mark.parametrize(
    ("endings", "ending", "aborts"),
    [
        ([None], Ending.COMMITTED, 0),  # ^C meanwhile
        ([LATE, None], Ending.COMMITTED, 0),
        ([LATE] * COMMITS_MAX, Ending.UNKNOWN, 0),
        ([FENCED], Ending.UNKNOWN, 0),
        ([REFUSED], Ending.ABORTED, 1),
    ],
    ids=["interrupted", "asked-again", "no-answer", "fenced", "refused"],
)
def test_outcome_of_a_commit_is_reported_as_it_is(
    endings: list[KafkaError | None], ending: Ending, aborts: int
) -> None:
    producer: Any = Coordinated(*endings)
    with Interrupts() as interrupts:
        found = Transaction(producer, interrupts, str)
        with found.around():
            found.is_complete = True
    assert found.ending is ending
    assert producer.aborts == aborts
    assert not producer.endings
    assert bool(found.problem) is (ending is not Ending.COMMITTED)


def test_signal_before_the_commit_aborts() -> None:
    producer: Any = Coordinated()
    with Interrupts() as interrupts:
        found = Transaction(producer, interrupts, str)
        with suppress(KeyboardInterrupt), found.around():
            found.is_complete = True
            signal.raise_signal(signal.SIGTERM)
    assert found.ending is Ending.ABORTED


class Unanswered(Coordinated):
    """A producer that no coordinator answers, until as many calls have timed out."""

    def __init__(self, turns: int, signal_at: int = -1) -> None:
        super().__init__(None)
        self.turns, self.signal_at = turns, signal_at

    def init_transactions(self, seconds: float) -> None:
        assert seconds <= TURN_SECONDS
        if self.turns == self.signal_at:
            signal.raise_signal(signal.SIGTERM)
        if self.turns:
            self.turns -= 1
            raise KafkaException(LATE)


def test_signal_before_a_transaction_begins_ends_the_wait() -> None:
    producer: Any = Unanswered(1_000, signal_at=990)
    with Interrupts() as interrupts:
        found = Transaction(producer, interrupts, str)
        with pytest.raises(KeyboardInterrupt), found.around():
            pytest.fail("it began")
    assert (found.ending, producer.turns, interrupts.code) == (Ending.NONE, 990, 143)


def test_transaction_begins_when_the_coordinator_answers_late() -> None:
    producer: Any = Unanswered(20)
    found = Transaction(producer, Interrupts(), str)
    with found.around():
        assert found.ending is Ending.OPEN
    assert found.ending is Ending.ABORTED


def test_transaction_without_a_coordinator_fails_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter(range(0, 1_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(times)))
    producer: Any = Unanswered(1_000)
    with pytest.raises(KafkaException), Transaction(producer, Interrupts(), str).around():
        pytest.fail("it began")
    assert producer.turns == 994
