"""Anomalies planted into a correct history of transactions: the checker must find each.

A plant changes a few operations, replaced by copies, and names the anomaly and the operation for
which it is to be found. Plants in one history change different operations.

Does not depend on how anomalies are detected.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

from vdl.check.history import Mark, Op, Record

GROUP = "places"
FAR_NS = 1 << 61


class Planting:
    """A history while anomalies are planted into it."""

    def __init__(self, ops: list[Op], rng: random.Random) -> None:
        self.ops = {op.i: op for op in ops}
        self._rng = rng
        self._used: set[int] = set()
        self.finals = [op for op in ops if op.final]
        self.readers: dict[int, list[Op]] = {}
        """By value: the operations that polled it."""
        for op in ops:
            for _, records in op.polls:
                for record in records:
                    self.readers.setdefault(record.value, []).append(op)

    def pick(self, fits: Callable[[Op], bool]) -> Op:
        """Replace an operation by a copy, which is to be changed; return the copy."""
        rows = [op for op in self.ops.values() if op.i not in self._used and fits(op)]
        assert rows, "nothing to plant it in"
        return self.change(self._rng.choice(rows))

    def change(self, op: Op) -> Op:
        if op.i not in self._used:
            self._used.add(op.i)
            self.ops[op.i] = copy.deepcopy(op)
        return self.ops[op.i]

    def committed(self, sends: int = 1) -> Op:
        """Return a committed transaction of at least `sends` records, all read before the end."""
        return self.pick(
            lambda op: (
                op.f == "txn"
                and op.ok
                and len(op.sends) >= sends
                and all(self._is_read(send.value) for send in op.sends)
            )
        )

    def commits(self) -> tuple[Op, Op]:
        """Return two consecutive commits of a position that have no successor."""
        by_place: dict[str, list[Op]] = {}
        for op in self.ops.values():
            if op.f == "commit" and op.type != "fail":
                by_place.setdefault(op.marks[0].key, []).append(op)
        for _, some in sorted(by_place.items()):
            if len(some) > 1 and all(op.ok for op in some):
                before, last = sorted(some, key=_by_time)[-2:]
                return before, last
        raise AssertionError("nothing to plant it in")

    def add(self, f: str, mark: Mark, at_ns: int) -> Op:
        """Add a new operation."""
        op = Op(max(self.ops) + 1, "planted", f, "ok", at_ns, at_ns + 1, marks=[mark])
        op.group = GROUP
        self.ops[op.i] = op
        return op

    def _is_read(self, value: int) -> bool:
        return any(not op.final for op in self.readers.get(value, ()))

    def forget(self, value: int) -> None:
        """Remove a value from all reads."""
        for op in self.readers[value]:
            for _, records in self.change(op).polls:
                records[:] = [record for record in records if record.value != value]


def aborted_read(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.committed()
    op.type = "fail"
    yield "aborted-read", op.i


def dirty_read(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.committed()
    op.end = FAR_NS
    yield "dirty-read", op.i


def torn(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.committed(sends=2)
    p.forget(op.sends[0].value)
    yield "torn-transaction", op.i
    yield "unseen", op.i


def lost(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.committed()
    for send in op.sends:
        p.forget(send.value)
    yield "lost-write", op.i


def phantom(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.change(p.finals[0])
    _, records = op.polls[0]
    records.append(Record(records[-1].offset + 1, -7, records[-1].leader_epoch))
    yield "phantom", op.i


def duplicate(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.change(p.finals[0])
    _, records = op.polls[0]
    first = records[0]
    records.append(Record(records[-1].offset + 1, first.value, records[-1].leader_epoch))
    yield "duplicate", op.i


def other_value(p: Planting) -> Iterator[tuple[str, int]]:
    """Make two readers read different values at an offset."""
    op = p.pick(lambda op: op.f == "poll" and not op.final and _longest(op) > 0)
    _, records = op.polls[0]
    records[0].value = p.finals[-1].polls[0][1][0].value
    yield "inconsistent-offsets", op.i


def skipped(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.pick(lambda op: op.f == "poll" and not op.final and _longest(op) > 3)
    _, records = max(op.polls, key=lambda row: len(row[1]))
    del records[1]
    yield "int-poll-skip", op.i


def backwards(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.pick(lambda op: op.f == "poll" and not op.final and _longest(op) > 3)
    _, records = max(op.polls, key=lambda row: len(row[1]))
    records[1], records[2] = records[2], records[1]
    yield "int-nonmonotonic-poll", op.i


def stable_again_unstable(p: Planting) -> Iterator[tuple[str, int]]:
    op = max((op for op in p.ops.values() if op.lso), key=lambda op: op.t0)
    op = p.change(op)
    op.lso = {name: (epoch, 0) for name, (epoch, _) in op.lso.items()}
    yield "lso-regress", op.i


def less_committed(p: Planting) -> Iterator[tuple[str, int]]:
    """Lower a high watermark."""
    rows = sorted((op for op in p.ops.values() if op.hw), key=lambda op: op.t0)
    (name, (epoch, _)), *_ = rows[-1].hw.items()
    other = [op for op in rows if op.hw.get(name, (-1, 0))[0] == epoch]
    op = p.change(other[-1])
    op.hw = {name: (epoch, 0)}
    yield "hw-regress", op.i


def older_leader(p: Planting) -> Iterator[tuple[str, int]]:
    op = p.change(p.finals[0])
    op.polls[0][1][len(op.polls[0][1]) // 2].leader_epoch = 0
    yield "epoch-regress", op.i


def position_gone_back(p: Planting) -> Iterator[tuple[str, int]]:
    """Let a group receive a position that a later one had superseded."""
    before, last = p.commits()
    op = p.add("committed", before.marks[0], last.t1 + 1)
    yield "commit-regress", op.i


def position_lost(p: Planting) -> Iterator[tuple[str, int]]:
    _, last = p.commits()
    op = p.add("committed", Mark(last.marks[0].key, -1), last.t1 + 1)
    yield "lost-commit", op.i


def _by_time(op: Op) -> int:
    return op.t0


def _longest(op: Op) -> int:
    return max((len(records) for _, records in op.polls), default=0)


PLANTS = (
    aborted_read,
    dirty_read,
    torn,
    lost,
    other_value,
    skipped,
    backwards,
    stable_again_unstable,
    less_committed,
    older_leader,
    position_gone_back,
    position_lost,
    duplicate,
    phantom,
)


def planted(ops: list[Op], rng: random.Random) -> tuple[list[Op], set[tuple[str, int]]]:
    """Return the history with every anomaly in it, and (name, operation) of each."""
    planting = Planting(ops, rng)
    expected = {found for plant in PLANTS for found in plant(planting)}
    return list(planting.ops.values()), expected
