"""Each anomaly of transactions, planted once, is found; correct histories pass."""

from __future__ import annotations

from typing import Any

from tests.unit.check.test_anomalies import Script
from vdl.check.history import Op, Record, Send, decode, encode
from vdl.check.transactions import READ_COMMITTED


def transaction(h: Script, *pairs: tuple[int, int], kind: str = "ok", **more: Any) -> Op:
    """Record a transaction of (value, offset) pairs; odd values are in a second partition."""
    sends = [Send(f"t-{value % 2}", offset, value) for value, offset in pairs]
    more.setdefault("end", h.now + 5)
    return h.op("tx", "txn", kind=kind, took=10, sends=sends, **more)


def read(h: Script, *pairs: tuple[int, int], key: str = "t-0", **more: Any) -> Op:
    records = [Record(*pair) for pair in pairs]
    return h.op("c", "poll", polls=[(key, records)], iso=READ_COMMITTED, **more)


def test_committed_and_aborted_transactions_are_no_anomaly() -> None:
    h = Script()
    transaction(h, (2, 0), (3, 0))
    transaction(h, (4, 2), kind="fail", end=-1)
    transaction(h, (6, 4), kind="info")
    read(h, (0, 2), lso={"t-0": (1, 2)})
    read(h, lso={"t-0": (1, 4)})
    read(h, (4, 6), lso={"t-0": (2, 6)})
    h.op("d", "poll", polls=[("t-0", [Record(0, 2), Record(4, 6)]), ("t-1", [Record(0, 3)])],
         final=True, iso=READ_COMMITTED)  # fmt: skip
    assert h.names() == set()


def test_record_of_a_failed_transaction_is_an_aborted_read() -> None:
    h = Script()
    transaction(h, (2, 0), kind="fail", end=-1)
    read(h, (0, 2))
    assert "aborted-read" in h.names()


def test_record_that_is_read_before_its_commit_was_asked_for_is_a_dirty_read() -> None:
    """A reader of all records may see it."""
    for iso, expected in (("", set()), (READ_COMMITTED, {"dirty-read"})):
        h = Script()
        h.poll((0, 2), iso=iso)
        transaction(h, (2, 0)).t0 = -5
        assert h.names() == expected


def test_part_of_a_transaction_is_a_torn_one() -> None:
    """A partly visible transaction is torn, also one of unknown outcome."""
    h = Script()
    transaction(h, (2, 0), (3, 0), kind="info")
    h.op("d", "poll", polls=[("t-0", [Record(0, 2)]), ("t-1", [])], final=True)
    assert h.names() == {"torn-transaction"}


def test_last_stable_offset_that_falls_regressed() -> None:
    """A falling last stable offset is found, also under a later leader.

    An earlier leader, which does not know it, may report less.
    """
    h = Script()
    read(h, lso={"t-0": (2, 5)})
    read(h, lso={"t-0": (1, 4)})
    assert h.names() == set()
    read(h, lso={"t-0": (3, 4)})
    assert h.names() == {"lso-regress"}
    h = Script()
    read(h, lso={"t-0": (2, 5)}, took=50)
    h.ops[-1].t0 -= 40
    assert h.names() == set()


def test_lines_of_transactions_are_read_as_they_were_written() -> None:
    h = Script()
    written = transaction(h, (2, 0), (3, None), epoch=4, pid=9)  # type: ignore[arg-type]
    polled = read(h, (0, 2), lso={"t-0": (2, 5)})
    assert decode(encode(written)) == written
    assert decode(encode(polled)) == polled
