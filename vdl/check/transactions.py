"""Anomalies of transactions that readers of committed records must never observe.

A transaction is one operation (`txn`): ok if it committed, fail if it provably did not, and `end`
is the time of its commit request. Reading records of a failed transaction is an aborted-read of
`anomalies.py`.

Does not depend on how transactions are stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from vdl.check.anomalies import Evidence
from vdl.check.findings import Anomaly
from vdl.check.history import Op

READ_COMMITTED = "rc"
"""`Op.iso` of a poll that reads committed records only."""


def stable_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """Find last stable offsets that fell, under the same leader epoch or a later one.

    A deposed leader that does not know it yet may return an older one, with its own epoch.
    """
    told: dict[str, list[tuple[Op, int, int]]] = defaultdict(list)
    for op in evidence.ops:
        for name, (epoch, stable) in op.lso.items():
            if op.ok and epoch >= 0:
                told[name].append((op, epoch, stable))
    for name, by_return in sorted(told.items()):
        highest: dict[int, tuple[int, int]] = {}  # epoch -> (last stable offset, op that got it)
        i = 0
        for op, epoch, stable in sorted(by_return, key=lambda row: row[0].t0):
            while i < len(by_return) and by_return[i][0].t1 < op.t0:
                before, its_epoch, its_stable = by_return[i]
                if its_stable > highest.get(its_epoch, (-1, -1))[0]:
                    highest[its_epoch] = its_stable, before.i
                i += 1
            known, witness = max(
                (row for its, row in highest.items() if its <= epoch), default=(-1, -1)
            )
            if stable < known:
                detail = f"{stable} after {known} in leader epoch {epoch}"
                yield Anomaly("lso-regress", name, detail, [witness, op.i])


def dirty_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """Find records read before their transaction's commit was requested."""
    for name, key in evidence.by_key():
        for op, record in key.reads:
            writer = key.writer.get(record.value)
            if op.iso != READ_COMMITTED or writer is None or writer.f != "txn":
                continue
            if writer.end < 0 or op.t1 < writer.end:
                detail = f"value {record.value} at {record.offset} was read before its commit"
                yield Anomaly("dirty-read", name, detail, [writer.i, op.i])


def torn_transactions(evidence: Evidence) -> Iterator[Anomaly]:
    """Find transactions of which the read of everything after the run has only a part."""
    finals = {name for op in evidence.ops if op.final for name, _ in op.polls}
    seen = {
        name: {record.value for _, record in evidence.keys[name].final.values()} for name in finals
    }
    for op in evidence.ops:
        if op.f != "txn" or any(send.key not in finals for send in op.sends):
            continue
        missing = [send for send in op.sends if send.value not in seen[send.key]]
        if missing and len(missing) < len(op.sends):
            detail = f"value {missing[0].value} is missing, but others of its transaction exist"
            yield Anomaly("torn-transaction", missing[0].key, detail, [op.i])


CHECKS: tuple[Callable[[Evidence], Iterator[Anomaly]], ...] = (
    stable_offsets,
    dirty_reads,
    torn_transactions,
)
