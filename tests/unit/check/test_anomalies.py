"""Each anomaly of a log, planted once, is found; clean histories pass."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.check.anomalies import RETRIED
from vdl.check.history import EARLIEST, LATEST, Mark, Op, Record, Send
from vdl.check.report import find

S = 1_000_000_000


class Script:
    """Builder of a history: sequential operations on one clock, a millisecond each."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.now = 0

    def op(self, proc: str, f: str, *, kind: str = "ok", took: int = 1, **more: Any) -> Op:
        op = Op(len(self.ops), proc, f, kind, self.now, self.now + took)
        for name, value in more.items():
            setattr(op, name, value)
        self.now += took + 1
        self.ops.append(op)
        return op

    def send(self, value: int, offset: int | None = None, *, proc: str = "p", **more: Any) -> Op:
        kind = str(more.pop("kind", "ok"))
        return self.op(proc, "send", kind=kind, sends=[Send("t-0", offset, value)], **more)

    def poll(self, *pairs: tuple[int, int], proc: str = "c", **more: Any) -> Op:
        records = [Record(*pair) for pair in pairs]
        return self.op(proc, "poll", polls=[("t-0", records)], **more)

    def list(self, timestamp: int, offset: int) -> Op:
        return self.op("l", "list_offsets", marks=[Mark("t-0", offset, timestamp)])

    def names(self) -> set[str]:
        return {anomaly.name for anomaly in find(self.ops)}


def test_clean_history_has_no_anomaly() -> None:
    """The history of a correct log passes every check."""
    h = Script()
    h.op("c", "assign", keys=["t-0"])
    h.list(LATEST, 0)
    h.send(1, 0, node="n1")
    h.send(2, 1, node="n1")
    h.poll((0, 1), hw={"t-0": (3, 2)})
    h.send(3, kind="info")
    h.send(4, kind="fail")
    h.poll((1, 2), (2, 3), hw={"t-0": (3, 3)})
    h.list(LATEST, 3)
    h.list(EARLIEST, 0)
    h.op("c", "seek", marks=[Mark("t-0", 0)])
    h.poll((0, 1))
    h.poll(
        *[(0, 1, 3, 100), (1, 2, 3, 110), (2, 3, 4, 120)],  # type: ignore[arg-type]
        proc="drain",
        final=True,
    )
    h.list(105, 1)
    h.list(500, -1)
    assert find(h.ops) == []


def test_offset_that_held_two_values_is_inconsistent() -> None:
    """inconsistent-offsets: over all acknowledged sends and all polls."""
    h = Script()
    h.send(1, 0)
    h.send(2, kind="info")
    h.poll((0, 2))
    assert "inconsistent-offsets" in h.names()


def test_value_at_two_offsets_is_a_duplicate() -> None:
    """duplicate: illegal when the writer tried once or was idempotent."""
    h = Script()
    h.send(1, 0, pid=7)
    h.poll((0, 1), (1, 1))
    assert h.names() == {"duplicate"}


def test_value_retried_without_idempotence_may_be_there_twice() -> None:
    """Duplicates of at-least-once producers are legal."""
    h = Script()
    h.send(1, 0, note=RETRIED)
    h.poll((0, 1), (1, 1))
    assert h.names() == set()


def test_committed_value_that_readers_passed_is_lost() -> None:
    """lost-write: acknowledged, below what was read, never read."""
    h = Script()
    h.send(1, 0)
    h.send(2, 1, proc="q")
    h.poll((1, 2))
    assert "lost-write" in h.names()


def test_acknowledged_value_missing_at_the_end_is_unseen() -> None:
    """unseen: the final read is of everything."""
    h = Script()
    h.send(1, 0)
    h.send(2, 1)
    h.poll((0, 1), proc="drain", final=True)
    assert h.names() == {"unseen"}


def test_value_nobody_sent_is_a_phantom() -> None:
    """phantom: read, never written."""
    h = Script()
    h.poll((0, 9))
    assert h.names() == {"phantom"}


def test_value_of_a_failed_send_is_an_aborted_read() -> None:
    """G1a: a definite failure must stay invisible."""
    h = Script()
    h.send(1, kind="fail")
    h.poll((0, 1))
    assert h.names() == {"aborted-read"}


def test_later_send_at_a_lower_offset_is_nonmonotonic() -> None:
    """nonmonotonic-send, and its form inside one operation."""
    h = Script()
    h.send(1, 1)
    h.send(2, 0)
    assert "nonmonotonic-send" in h.names()
    h = Script()
    h.op("p", "send", sends=[Send("t-0", 1, 1), Send("t-0", 0, 2)])
    assert "int-nonmonotonic-send" in h.names()


@pytest.mark.parametrize(
    ("first", "then", "name"),
    [
        ([(0, 1)], [(2, 3)], "poll-skip"),
        ([(0, 1), (1, 2)], [(1, 2)], "nonmonotonic-poll"),
        ([(0, 1), (2, 3)], [], "int-poll-skip"),
        ([(1, 2), (0, 1)], [], "int-nonmonotonic-poll"),
    ],
)
def test_consumer_that_jumps_is_found(
    first: list[tuple[int, int]], then: list[tuple[int, int]], name: str
) -> None:
    """Positions advance one record at a time unless the consumer seeks."""
    h = Script()
    for value in (1, 2, 3):
        h.send(value, value - 1)
    h.op("c", "assign", keys=["t-0"])
    h.poll(*first)
    h.poll(*then)
    assert name in h.names()
    # After a seek the same reads are legal.
    if then:
        h.ops.insert(-1, Op(99, "c", "seek", "ok", 0, h.ops[-2].t1, marks=[Mark("t-0", 2)]))
        assert name not in h.names()


def test_offset_known_to_be_taken_cannot_be_given_again() -> None:
    """realtime-offset: offsets returned before a write began are below its offset."""
    h = Script()
    h.send(1, 5)
    h.send(2, 4, proc="q")
    assert h.names() == {"realtime-offset"}


def test_empty_poll_long_after_the_acknowledgement_is_stale() -> None:
    """stale-read: bounded from the acknowledgement or the last heal, not during a fault."""

    def history(*, healed: bool) -> Script:
        h = Script()
        h.send(1, 0)
        h.poll((0, 1))
        h.send(2, 1)
        h.now += 6 * S
        if healed:
            h.op("nemesis", "fault", note="heal")
        h.poll()
        return h

    assert history(healed=False).names() == {"stale-read"}
    assert history(healed=True).names() == set()


def test_record_read_and_gone_is_a_truncated_read() -> None:
    """truncated-read: the final read lacks a record that a consumer saw."""
    h = Script()
    h.send(1, 0)
    h.send(2, kind="info")
    h.send(3, 2)
    h.poll((0, 1), (1, 2))
    h.poll((0, 1), (2, 3), proc="drain", final=True)
    assert "truncated-read" in h.names()


def test_high_watermark_that_falls_within_an_epoch_regressed() -> None:
    """hw-regress: per leader epoch; a new epoch may serve less."""
    h = Script()
    h.poll(hw={"t-0": (1, 5)})
    h.poll(hw={"t-0": (2, 4)})
    assert h.names() == set()
    h.poll(hw={"t-0": (2, 3)})
    assert h.names() == {"hw-regress"}


def test_leader_epoch_that_falls_along_the_log_regressed() -> None:
    """epoch-regress: batches carry the epoch in which they were appended."""
    h = Script()
    h.send(1, 0)
    h.send(2, 1)
    h.poll((0, 1, 5), (1, 2, 4), proc="drain", final=True)  # type: ignore[arg-type]
    assert h.names() == {"epoch-regress"}


def test_two_servers_acknowledging_in_one_epoch_are_two_leaders() -> None:
    """Election safety (Raft §5.2), as visible to clients."""
    h = Script()
    h.send(1, 0, node="n1")
    h.send(2, 1, node="n2")
    h.poll((0, 1, 5), (1, 2, 5), proc="drain", final=True)  # type: ignore[arg-type]
    assert h.names() == {"two-leaders"}


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(LATEST, 1), (EARLIEST, 1), (105, -1), (110, 0), (100, 1)]
)
def test_listed_offset_that_hides_records_is_found(timestamp: int, offset: int) -> None:
    """list-offsets: latest is beyond all acknowledgements, earliest is first, a time lowest."""
    h = Script()
    h.send(1, 0)
    h.send(2, 1)
    h.list(timestamp, offset)
    h.poll((0, 1, 1, 100), (1, 2, 1, 110), proc="drain", final=True)  # type: ignore[arg-type]
    assert h.names() == {"list-offsets"}
