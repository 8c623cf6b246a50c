"""Anomalies of share groups: delivery counts, and deliveries after the final acknowledgement.

KIP-932. A delivery is identified by group, partition, offset and its count. Counts grow with each
delivery of a record, whichever server leads, and never exceed the group's limit. The delivery of an
accepted or rejected record was its last one: a later one has a higher count, regardless of clocks.
In the end every record below a group's start was delivered, unless all of its deliveries were lost
on the way; with a limit of `LOST_LIMIT` that does not happen. The first record of a partition that
a group received is where it began.

Does not depend on how records are delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from vdl.check.anomalies import Evidence
from vdl.check.findings import Anomaly
from vdl.check.history import Op

LOST_LIMIT = 10
"""Number of deliveries that are not all lost on their way."""
_RELEASE = 2

_Place = tuple[str, str, int]
"""(group, key, offset)."""


def _deliveries(evidence: Evidence) -> dict[_Place, dict[int, list[Op]]]:
    """Return the deliveries of each record, by count, including those of unknown outcome."""
    found: dict[_Place, dict[int, list[Op]]] = defaultdict(lambda: defaultdict(list))
    for op in evidence.ops:
        if op.f == "deliver":
            for one in op.shares:
                for offset in range(one.first, one.last + 1):
                    found[op.group, one.key, offset][one.count].append(op)
    return found


def over_limit(evidence: Evidence) -> Iterator[Anomaly]:
    """Find records delivered more often than their group allows."""
    for op in evidence.ops:
        if op.f != "deliver" or op.limit < 0:
            continue
        for one in op.shares:
            if one.count > op.limit:
                detail = f"{one.first} to {one.last} delivered for the {one.count}th time"
                yield Anomaly(
                    "share-limit", one.key, (f"{detail}, but only {op.limit} are allowed"), [op.i]
                )


def counted_twice(evidence: Evidence) -> Iterator[Anomaly]:
    """Find deliveries of a record with the same count: one of them was not counted."""
    for (group, key, offset), by_count in sorted(_deliveries(evidence).items()):
        for count, ops in sorted(by_count.items()):
            if len(ops) > 1:
                detail = f"{offset} delivered twice to {group} for the {count}th time"
                yield Anomaly("share-count", key, detail, [op.i for op in ops])


def after_the_end(evidence: Evidence) -> Iterator[Anomaly]:
    """Find records delivered again after they were accepted or rejected, or acknowledged twice."""
    ended: dict[_Place, tuple[int, Op]] = {}
    for op in evidence.ops:
        if op.f == "acknowledge" and op.ok:
            for one in op.shares:
                if one.kind != _RELEASE:
                    for offset in range(one.first, one.last + 1):
                        place = (op.group, one.key, offset)
                        known = ended.get(place)
                        if known is not None and known[1] is not op:
                            detail = f"{offset} acknowledged by {op.member}, and before that"
                            yield Anomaly("share-twice", one.key, detail, [known[1].i, op.i])
                        ended[place] = (one.count, op)
    for place, by_count in sorted(_deliveries(evidence).items()):
        if place not in ended:
            continue
        count, op = ended[place]
        for later in sorted(by_count):
            if later > count:
                detail = f"{place[2]} delivered for the {later}th time, the {count}th ended it"
                ops = [op.i, *(one.i for one in by_count[later])]
                yield Anomaly("share-after-end", place[1], detail, ops)


def lost(evidence: Evidence) -> Iterator[Anomaly]:
    """Find existing records that a group is finished with, but that it never received."""
    given = set(_deliveries(evidence))
    began: dict[tuple[str, str], int] = {}
    for group, key, offset in given:
        began[group, key] = min(offset, began.get((group, key), offset))
    for op in evidence.ops:
        if op.f != "share_end" or op.limit < LOST_LIMIT:
            continue
        for mark in op.marks:
            first = began.get((op.group, mark.key), mark.offset)
            for offset in sorted(evidence.keys[mark.key].final):
                place = (op.group, mark.key, offset)
                if first <= offset < mark.offset and place not in given:
                    detail = f"{offset} is complete, but was never delivered to {op.group}"
                    yield Anomaly("share-lost", mark.key, detail, [op.i])


CHECKS: tuple[Callable[[Evidence], Iterator[Anomaly]], ...] = (
    over_limit,
    counted_twice,
    after_the_end,
    lost,
)
