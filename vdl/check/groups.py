"""Anomalies of consumer groups: ownership of partitions, commits, and deliveries.

A generation assigns each partition to at most one member. A commit is accepted from the current
generation only. A committed offset is a register per partition, and a group that committed past a
record has delivered it. The first record of a partition that a group saw is where it began.

If members have epochs of their own (KIP-848), a partition has one owner in each epoch, a commit is
accepted from its member's current epoch only, and two members never own a partition at one time: a
member owned one between two accepted heartbeats if the second still listed it. In a group that is
converted between the protocols the epochs of members that left may be used again, and begin anew
once it had no members. So there only the time counts, and the epoch that a member had last.

Does not depend on how assignments are made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from vdl.check.anomalies import Evidence
from vdl.check.findings import Anomaly
from vdl.check.history import EPOCHS, MIXED, Op

FOREVER_NS = 1 << 62
_OF_EPOCHS = frozenset((EPOCHS, MIXED))
"""Notes of groups whose members have epochs of their own."""


def double_ownership(evidence: Evidence) -> Iterator[Anomaly]:
    """Find partitions that two members own in one generation."""
    owner: dict[tuple[str, int, str], Op] = {}
    for op in evidence.ops:
        if op.f != "rebalance" or not op.ok or not op.group or op.note == MIXED:
            continue
        for name in op.keys:
            other = owner.setdefault((op.group, op.gen, name), op)
            if other.member != op.member:
                detail = f"{other.member} and {op.member} in generation {op.gen} of {op.group}"
                yield Anomaly("own2", name, detail, [other.i, op.i])


def zombie_commits(evidence: Evidence) -> Iterator[Anomaly]:
    """Find commits accepted from a generation that was over when they were sent."""
    began: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    by_epochs = _groups_by_epochs(evidence)
    mixed = {op.group for op in evidence.ops if op.f == "rebalance" and op.note == MIXED}
    for op in evidence.ops:
        if op.f in ("rebalance", "owns") and op.ok and op.group:
            times = began[op.group, op.member if op.group in by_epochs else ""]
            before = times[-1][1] if times and op.group not in mixed else -1
            times.append((op.t1, max(op.gen, before)))
    for op in evidence.ops:
        if op.f == "commit" and op.ok and op.gen >= 0:
            times = began[op.group, op.member if op.group in by_epochs else ""]
            i = bisect_left(times, (op.t0, -1))
            if i > 0 and times[i - 1][1] > op.gen:
                detail = f"generation {op.gen} of {op.group} was over, {times[i - 1][1]} had begun"
                yield Anomaly("zombie-commit", op.group, detail, [op.i])


def _groups_by_epochs(evidence: Evidence) -> set[str]:
    """Return the groups whose members have epochs of their own."""
    return {op.group for op in evidence.ops if op.f == "rebalance" and op.note in _OF_EPOCHS}


def owned_at_one_time(evidence: Evidence) -> Iterator[Anomaly]:
    """Find partitions that two members owned at one time, regardless of their epochs."""
    held: dict[tuple[str, str], list[tuple[int, int, Op]]] = defaultdict(list)
    last: dict[tuple[str, str], Op] = {}
    for op in evidence.ops:
        if op.f not in ("rebalance", "owns") or not op.ok or not op.group:
            continue
        member = op.group, op.member
        before = last.get(member)
        if op.f == "owns" and before is not None:
            # Both heartbeats were accepted, so it was a member all the time between them.
            for name in set(op.keys) & set(before.keys):
                if before.t1 < op.t0:
                    held[op.group, name].append((before.t1, op.t0, op))
        if op.f == "owns" or op.note in _OF_EPOCHS:
            last[member] = op
    for (_, name), spans in sorted(held.items(), key=lambda item: item[0]):
        spans.sort(key=lambda span: span[:2])
        longest: tuple[int, int, Op] | None = None
        for span in spans:
            if longest is not None and span[0] < longest[1] and span[2].member != longest[2].member:
                other = longest[2]
                detail = f"{other.member} and {span[2].member} at one time, in {span[2].group}"
                yield Anomaly("own-overlap", name, detail, [other.i, span[2].i])
            if longest is None or span[1] > longest[1]:
                longest = span


class _Register:
    """All commits of one partition by one group. `allows` checks a read against them."""

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
        """Build the indexes.

        `superseding[i]` is the latest invocation among the first i+1 commits that returned.
        """
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
        """Return True if a commit of this offset may be the last one before or during the read."""
        settled = bisect_left(self.returns, read.t0)
        superseded_before = self.superseding[settled - 1] if settled else -1
        if offset < 0:
            return settled == 0
        intervals = self.by_offset.get(offset, [])
        i = bisect_left(intervals, (read.t1, -1))
        return i > 0 and intervals[i - 1][1] >= superseded_before


def committed_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """Find reads of a committed offset that did not return the last one committed."""
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
                detail = f"{op.group} read {mark.offset}, but a later commit had returned"
                yield Anomaly(name, mark.key, detail, [op.i])


def skipped_by_commit(evidence: Evidence) -> Iterator[Anomaly]:
    """Find commits past a record that no member of the group received."""
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
                detail = f"{group} committed {committed}, but {offset} was never delivered"
                yield Anomaly("skip-commit", name, detail, [op.i])


CHECKS: tuple[Callable[[Evidence], Iterator[Anomaly]], ...] = (
    double_ownership,
    owned_at_one_time,
    zombie_commits,
    committed_offsets,
    skipped_by_commit,
)
