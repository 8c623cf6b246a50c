"""History of what clients did and observed: one operation a line of JSON, in order of return.

An operation is `ok` if it took effect, `fail` if it provably did not, `info` if the outcome is
unknown. Values are unique integers per key, so a value identifies its writer. A key is a partition,
written "topic-partition". Times are nanoseconds of one monotonic clock, so their order is real.

Fields of a line (empty ones may be omitted):

    i      number of the operation                proc   client process, which is sequential
    node   server that answered                   f      send poll assign seek revoke rebalance
    type   ok fail info                                  commit committed list_offsets fault txn
                                                         owns deliver acknowledge share_end
    t0 t1  invocation and return                  mops   list of micro-operations
    err    Kafka error code                       group gen member  of a consumer group
    pid epoch  of an idempotent producer          final  a read of everything after the run
    hw     {key: [leader epoch, high watermark]} as returned by a fetch
    lso    {key: [leader epoch, last stable offset]} as returned by a fetch
    iso    "rc": a poll that reads committed records only
    end    time of a txn's request to end; its sends are ok if it committed, fail if it aborted
    note   free text; "begin" and "heal" on faults; "epochs" on a rebalance of a group whose
           members have epochs of their own (KIP-848): `gen` is the member's; "mixed" if some
           members of such a group use the classic protocol
    limit  number of deliveries of a record that a share group allows

Micro-operations:

    ["send", key, [offset or null, value]]        value is the integer written
    ["poll", {key: [[offset, value], ...]}]       in the order delivered; [] if there were none;
                                                  a pair may continue: leader epoch, timestamp
    ["assign", [key, ...]]                        also in rebalance and revoke; in owns: the
                                                  partitions that a member listed in an accepted
                                                  heartbeat
    ["seek", key, offset]
    ["commit", key, offset]  ["committed", key, offset or -1]
    ["list", key, timestamp or -1 (latest) or -2 (earliest), offset]
    ["deliver", key, [[first offset, last offset, delivery count], ...]]  to a share group's member
    ["acknowledge", key, [[first, last, count, 1 accept, 2 release or 3 reject], ...]]
    ["share_end", key, offset]                    all records below it are finished
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import TextIOBase
from pathlib import Path
from typing import Any, Literal

import msgspec

LATEST = -1
EARLIEST = -2
EPOCHS, MIXED = "epochs", "mixed"
"""See `note` above."""


class MalformedHistory(ValueError):
    """Raised for a line that is not an operation."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class Send:
    """One value written to a key; `offset` is None unless the server returned it."""

    key: str
    offset: int | None
    value: int


@dataclass(slots=True)
class Record:
    """One record read. `leader_epoch` and `timestamp` are -1 if the reader did not record them."""

    offset: int
    value: int
    leader_epoch: int = -1
    timestamp: int = -1


@dataclass(slots=True)
class Mark:
    """An offset of a key: sought, committed, fetched as committed, or listed for `timestamp`."""

    key: str
    offset: int
    timestamp: int = 0


@dataclass(slots=True)
class Share:
    """Records [first, last] of a key, in their `count`th delivery to a member of a share group."""

    key: str
    first: int
    last: int
    count: int
    kind: int = 0
    """Acknowledgement: 1 accept, 2 release, 3 reject; 0 for a delivery."""


@dataclass(slots=True)
class Op:
    """One operation; times in nanoseconds."""

    i: int
    proc: str
    f: str
    type: str
    t0: int
    t1: int
    node: str = ""
    err: int = 0
    group: str = ""
    gen: int = -1
    member: str = ""
    pid: int = -1
    epoch: int = -1
    final: bool = False
    note: str = ""
    sends: list[Send] = field(default_factory=list)
    polls: list[tuple[str, list[Record]]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    hw: dict[str, tuple[int, int]] = field(default_factory=dict)
    lso: dict[str, tuple[int, int]] = field(default_factory=dict)
    iso: str = ""
    end: int = -1
    limit: int = -1
    shares: list[Share] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.type == "ok"


class _Line(msgspec.Struct, omit_defaults=True):
    """A line as stored in the file."""

    i: int
    proc: str
    f: str
    type: Literal["ok", "fail", "info"]
    t0: int
    t1: int
    node: str = ""
    mops: list[list[object]] = []
    err: int = 0
    group: str = ""
    gen: int = -1
    member: str = ""
    pid: int = -1
    epoch: int = -1
    final: bool = False
    hw: dict[str, tuple[int, int]] = {}
    lso: dict[str, tuple[int, int]] = {}
    iso: str = ""
    end: int = -1
    note: str = ""
    limit: int = -1


_SCALARS = (
    "i", "proc", "f", "type", "t0", "t1", "node", "err", "group", "gen", "member", "pid", "epoch",
    "final", "hw", "lso", "iso", "end", "note", "limit",
)  # fmt: skip
_MARKS = {"commit", "committed", "seek", "share_end"}


def encode(op: Op) -> bytes:
    """Return the operation's line, without the newline."""
    mops: list[list[object]] = [["send", s.key, [s.offset, s.value]] for s in op.sends]
    if op.polls:
        mops.append(["poll", {key: [_record(r) for r in records] for key, records in op.polls}])
    if op.keys:
        mops.append(["assign", op.keys])
    for mark in op.marks:
        if op.f == "list_offsets":
            mops.append(["list", mark.key, mark.timestamp, mark.offset])
        else:
            mops.append([op.f, mark.key, mark.offset])
    for share in op.shares:
        parts = [share.first, share.last, share.count]
        mops.append([op.f, share.key, [parts if op.f == "deliver" else [*parts, share.kind]]])
    scalars: dict[str, Any] = {name: getattr(op, name) for name in _SCALARS}
    return msgspec.json.encode(_Line(mops=mops, **scalars))


def _record(record: Record) -> list[int]:
    if record.timestamp >= 0:
        return [record.offset, record.value, record.leader_epoch, record.timestamp]
    if record.leader_epoch >= 0:
        return [record.offset, record.value, record.leader_epoch]
    return [record.offset, record.value]


def decode(line: bytes | str, number: int = 0) -> Op:
    """Return the operation in a line. Raise MalformedHistory if the line is invalid."""
    try:
        raw = _DECODER.decode(line)
        op = Op(**{name: getattr(raw, name) for name in _SCALARS})
        for mop in raw.mops:
            _add(op, mop)
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
        raise MalformedHistory(number, str(error)) from error
    return op


def _add(op: Op, mop: list[object]) -> None:
    kind = mop[0]
    if kind == "send":
        _, key, (offset, value) = msgspec.convert(mop, tuple[str, str, tuple[int | None, int]])
        op.sends.append(Send(key, offset, value))
    elif kind == "poll":
        _, polled = msgspec.convert(mop, tuple[str, dict[str, list[list[int]]]])
        for key, records in polled.items():
            op.polls.append((key, [Record(*record) for record in records]))
    elif kind == "assign":
        op.keys.extend(msgspec.convert(mop, tuple[str, list[str]])[1])
    elif kind == "list":
        _, key, timestamp, at = msgspec.convert(mop, tuple[str, str, int, int])
        op.marks.append(Mark(key, at, timestamp))
    elif kind in ("deliver", "acknowledge"):
        _, key, parts = msgspec.convert(mop, tuple[str, str, list[list[int]]])
        op.shares.extend(Share(key, *part) for part in parts)
    elif kind in _MARKS:
        _, key, at = msgspec.convert(mop, tuple[str, str, int])
        op.marks.append(Mark(key, at))
    else:
        raise ValueError(f"unknown micro-operation {kind!r}")


_DECODER = msgspec.json.Decoder(_Line)


def read(path: str) -> Iterator[Op]:
    """Yield the operations of a file, in its order. Raise MalformedHistory or OSError."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield decode(line, number)


def write(ops: Iterable[Op], file: TextIOBase) -> None:
    """Write the operations as lines, in order of return as readers expect."""
    for op in sorted(ops, key=lambda op: (op.t1, op.i)):
        file.write(encode(op).decode())
        file.write("\n")
