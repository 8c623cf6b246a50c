"""Offsets that `vdl consume --group` commits, and the output that they stand for."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import click
import pytest

from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.cluster.connection import Connection
from vdl.commands.interrupts import Interrupts
from vdl.commands.records import record_reader
from vdl.commands.records.record_output import RecordFile
from vdl.commands.records.record_reader import RecordReader

TOPIC = "t"
LINE = b"x" * 1_023 + b"\n"


class Fetched:
    """A record as the client gives it."""

    def __init__(self, offset: int, partition: int = 0) -> None:
        self._offset, self._partition = offset, partition

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def headers(self) -> list[tuple[str, bytes]]:
        return []

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return LINE


class Script:
    """A consumer whose group does what a test says: each poll runs the next step."""

    def __init__(self, *steps: Callable[[Script], list[Fetched]]) -> None:
        self._steps = list(steps)
        self._left: list[Fetched] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.paused: set[tuple[str, int]] = set()
        self.on: dict[str, Any] = {}

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        assert topics == [TOPIC]
        self.on = callbacks

    def poll(self, seconds: float) -> Fetched | None:
        del seconds
        found = self._steps.pop(0)(self)
        self._left = found[1:]
        return found[0] if found else None

    def consume(self, count: int, seconds: float) -> list[Fetched]:
        assert len(self._left) <= count
        assert not seconds
        return self._left

    def pause(self, partitions: list[Any]) -> None:
        self.paused |= {(one.topic, one.partition) for one in partitions}

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {(one.topic, one.partition) for one in partitions}

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        assert not asynchronous
        self.committed |= {(one.topic, one.partition): one.offset for one in offsets}


def given(*numbers: int) -> Callable[[Script], list[Fetched]]:
    return lambda script: script.on["on_assign"](script, places(numbers)) or []


def taken(*numbers: int) -> Callable[[Script], list[Fetched]]:
    return lambda script: script.on["on_revoke"](script, places(numbers)) or []


def fetched(*offsets: int, partition: int = 0) -> Callable[[Script], list[Fetched]]:
    return lambda script: [Fetched(offset, partition) for offset in offsets]


def places(numbers: tuple[int, ...]) -> list[Any]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(TOPIC, number) for number in numbers]


def interrupt_when_full(descriptor: int) -> None:
    """Send ^C to the main thread as soon as the pipe takes no more."""

    def wait() -> None:
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        while room.poll(0):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=wait).start()


def read(script: Any, file: RecordFile | None, interrupts: Interrupts) -> list[int]:
    """Read as a member; return the offsets that were received."""
    found: list[int] = []

    def received(record: Any) -> bool:
        found.append(record.offset)
        if file is not None:
            file.write(record.value)
        return True

    reader = RecordReader(
        Cluster(Connection()),  # no request reaches it
        script,
        received=received,
        flush=file.flush if file is not None else lambda: None,
        flush_at_once=file.flush_at_once if file is not None else lambda: True,
        is_stopped=lambda: False,
        stall_seconds=60,
        interrupts=interrupts,
    )
    reader.read_as_member([TOPIC], follow=False, committed=True)
    return found


@pytest.fixture
def ends_asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Ends as they were asked for; each partition has 4,000 records, and one more each time."""
    asked: list[tuple[str, int]] = []

    def ends(cluster: Any, wanted: list[tuple[str, int]], *, committed: bool) -> Any:
        assert committed
        del cluster
        asked.extend(wanted)
        return {place: 4_000 + asked.count(place) - 1 for place in wanted}

    monkeypatch.setattr(record_reader, "ends", ends)
    return asked


def test_interrupt_while_the_pipe_is_full_commits_only_what_was_written(
    ends_asked: list[tuple[str, int]],
) -> None:
    """The first batch is in the pipe, the second is not: it is read again by the next member."""
    assert ends_asked == []
    output, into = os.pipe()
    with (
        Interrupts() as interrupts,
        os.fdopen(into, "wb", buffering=0) as pipe,
        os.fdopen(output, "rb"),
    ):
        file = RecordFile(pipe, interrupts=interrupts)

        def batch_and_interrupt(script: Script) -> list[Fetched]:
            # The reader waits for room when the signal comes.
            interrupt_when_full(into)
            return [Fetched(offset) for offset in range(8, 208)]

        script = Script(given(0), fetched(*range(8)), batch_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            read(script, file, interrupts)
        assert script.committed == {(TOPIC, 0): 8}


def test_interrupt_with_room_in_the_pipe_commits_what_was_received(
    ends_asked: list[tuple[str, int]],
) -> None:
    """Records that were received and not yet flushed are written, and then committed."""
    assert ends_asked == []
    output, into = os.pipe()
    with (
        Interrupts() as interrupts,
        os.fdopen(into, "wb", buffering=0) as pipe,
        os.fdopen(output, "rb") as out,
    ):
        file = RecordFile(pipe, interrupts=interrupts)

        class Interrupted(Fetched):
            def value(self) -> bytes:
                signal.raise_signal(signal.SIGTERM)
                return LINE

        script = Script(given(0), lambda _: [Fetched(0), Fetched(1), Interrupted(2)])
        with pytest.raises(KeyboardInterrupt):
            read(script, file, interrupts)
        assert script.committed == {(TOPIC, 0): 2}
        pipe.close()
        assert out.read() == 2 * LINE
        assert interrupts.code == 143


def test_member_goes_on_after_a_rebalance(ends_asked: list[tuple[str, int]]) -> None:
    """It waits for what it is given next; a partition that was read to its end is not paused, and
    its end is that of the beginning."""
    script = Script(
        given(0, 1),
        fetched(3_999),
        taken(0, 1),
        lambda _: [],
        given(0, 1),
        lambda script: [] if not script.paused else pytest.fail("paused"),
        fetched(3_999),
        fetched(3_999, partition=1),
    )
    assert read(script, None, Interrupts()) == [3_999, 3_999, 3_999]
    assert script.committed == {(TOPIC, 0): 4_000, (TOPIC, 1): 4_000}
    assert ends_asked == [(TOPIC, 0), (TOPIC, 1)]


def test_member_without_partitions_waits_for_some(
    ends_asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-848: a member may lose all to others and get none. The time-out is for partitions that it
    has, and for the first ones."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def nothing_for_hours(script: Script) -> list[Fetched]:
        nonlocal now
        now += 10_000
        return []

    waits = [nothing_for_hours, nothing_for_hours]
    script = Script(given(0), taken(0), *waits, given(0), fetched(3_999))
    assert read(script, None, Interrupts()) == [3_999]
    assert ends_asked == [(TOPIC, 0)]
    with pytest.raises(click.ClickException, match=r"t\[0\]"):
        read(Script(given(0), *waits), None, Interrupts())
    with pytest.raises(click.ClickException, match="an assignment"):
        read(Script(*waits), None, Interrupts())


def test_file_continues_behind_what_an_interrupted_write_left() -> None:
    """Each byte is written once, whatever a signal interrupts."""
    output, into = os.pipe()
    data = b"".join(b"%d\n" % number for number in range(50_000))
    with (
        Interrupts() as interrupts,
        os.fdopen(into, "wb", buffering=0) as pipe,
        os.fdopen(output, "rb") as out,
    ):
        file = RecordFile(pipe, interrupts=interrupts)
        interrupt_when_full(into)
        with pytest.raises(KeyboardInterrupt):
            file.write(data)
        found: list[bytes] = []
        reading = threading.Thread(target=lambda: found.append(out.read()))
        reading.start()
        file.flush()
        pipe.close()
        reading.join()
    assert found == [data]
