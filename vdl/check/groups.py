"""Anomalies of consumer groups: who owned what, and what was committed and read.

A generation gives each partition to at most one member; a commit is accepted from the current
generation only; a committed offset is a register per partition, and a group that committed past a
record has delivered it. The first record a group saw of a partition is where it began.

Must not know: how assignments are made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from vdl.check.anomalies import Evidence
from vdl.check.findings import Anomaly
from vdl.check.history import Op

FOREVER_NS = 1 << 62


def double_ownership(evidence: Evidence) -> Iterator[Anomaly]:
    """Two members own one partition in one generation."""
    owner: dict[tuple[str, int, str], Op] = {}
    for op in evidence.ops:
        if op.f != "rebalance" or not op.ok or not op.group:
            continue
        for name in op.keys:
            other = owner.setdefault((op.group, op.gen, name), op)
            if other.member != op.member:
                detail = f"{other.member} and {op.member} in generation {op.gen} of {op.group}"
                yield Anomaly("own2", name, detail, [other.i, op.i])


def zombie_commits(evidence: Evidence) -> Iterator[Anomaly]:
    """A commit was accepted from a generation that was over when it was sent."""
    began: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for op in evidence.ops:
        if op.f == "rebalance" and op.ok and op.group:
            times = began[op.group]
            times.append((op.t1, max(op.gen, times[-1][1] if times else -1)))
    for op in evidence.ops:
        if op.f == "commit" and op.ok and op.gen >= 0:
            times = began[op.group]
            i = bisect_left(times, (op.t0, -1))
            if i > 0 and times[i - 1][1] > op.gen:
                detail = f"generation {op.gen} of {op.group} was over, {times[i - 1][1]} had begun"
                yield Anomaly("zombie-commit", op.group, detail, [op.i])


class _Register:
    """All commits of one partition by one group, asked what a read may return."""

    def __init__(self) -> None:
        self.ok: list[tuple[int, int]] = []  # (t1, t0) of the definite commits
        self.by_offset: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (t0, t1)
        self.superseding: list[int] = []
        self.returns: list[int] = []

    def add(self, op: Op, offset: int) -> None:
        if op.type == "fail":
            return
        self.by_offset[offset].append((op.t0, op.t1 if op.ok else FOREVER_NS))
        if op.ok:
            self.ok.append((op.t1, op.t0))

    def close(self) -> None:
        """Index; `superseding[i]` is the latest invocation among the first i+1 that returned."""
        self.ok.sort()
        self.returns = [t1 for t1, _ in self.ok]
        latest = -1
        for _, t0 in self.ok:
            latest = max(latest, t0)
            self.superseding.append(latest)
        for offset, intervals in self.by_offset.items():
            intervals.sort()
            longest, kept = -1, list[tuple[int, int]]()
            for t0, t1 in intervals:
                longest = max(longest, t1)
                kept.append((t0, longest))
            self.by_offset[offset] = kept

    def allows(self, read: Op, offset: int) -> bool:
        """True if some commit of this offset may be the last one before or during the read."""
        settled = bisect_left(self.returns, read.t0)
        superseded_before = self.superseding[settled - 1] if settled else -1
        if offset < 0:
            return settled == 0
        intervals = self.by_offset.get(offset, [])
        i = bisect_left(intervals, (read.t1, -1))
        return i > 0 and intervals[i - 1][1] >= superseded_before


def committed_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """A fetched committed offset that is not the last one committed."""
    registers: dict[tuple[str, str], _Register] = defaultdict(_Register)
    for op in evidence.ops:
        if op.f == "commit":
            for mark in op.marks:
                registers[op.group, mark.key].add(op, mark.offset)
    for register in registers.values():
        register.close()
    for op in evidence.ops:
        if op.f != "committed" or not op.ok:
            continue
        for mark in op.marks:
            register = registers[op.group, mark.key]
            if not register.allows(op, mark.offset):
                known = mark.offset in register.by_offset
                name = "commit-regress" if known else "lost-commit"
                detail = f"{op.group} read {mark.offset}, a later commit had returned"
                yield Anomaly(name, mark.key, detail, [op.i])


def skipped_by_commit(evidence: Evidence) -> Iterator[Anomaly]:
    """A group committed past a record that none of its members was given."""
    delivered: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    farthest: dict[tuple[str, str], tuple[int, Op]] = {}
    for op in evidence.ops:
        if op.f == "poll" and op.group:
            for name, records in op.polls:
                seen = delivered[op.group, name]
                for record in records:
                    seen.setdefault(record.offset, op.i)
        elif op.f == "commit" and op.type != "fail":
            for mark in op.marks:
                place = (op.group, mark.key)
                if place not in farthest or mark.offset > farthest[place][0]:
                    farthest[place] = (mark.offset, op)
    for (group, name), (committed, op) in sorted(farthest.items(), key=lambda item: item[0]):
        seen = delivered[group, name]
        if not seen:
            continue
        key = evidence.keys[name]
        start = bisect_left(key.offsets, min(seen))
        end = bisect_left(key.offsets, committed)
        for offset in key.offsets[start:end]:
            if offset not in seen:
                detail = f"{group} committed {committed}, {offset} was never delivered"
                yield Anomaly("skip-commit", name, detail, [op.i])


CHECKS: tuple[Callable[[Evidence], Iterator[Anomaly]], ...] = (
    double_ownership,
    zombie_commits,
    committed_offsets,
    skipped_by_commit,
)
