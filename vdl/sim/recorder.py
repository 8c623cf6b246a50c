"""Recorder of the simulated clients' operations, as a history (see `vdl.check.history`).

Operations are numbered when they are invoked and kept when they return; an operation that does not
return before the end of the run has an unknown outcome. Values are unique over the whole run, and
the record that carries one can be recognised in any run of bytes: the audit finds it on a disk that
way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from segments.api import Buffer
from vdl.check.history import Op
from vdl.records.batch import Record
from vdl.sim.clock import VirtualTime

_VALUE = re.compile(rb"v(\d{12});")


@dataclass(slots=True)
class Invoked:
    """An operation in progress."""

    i: int
    t0: int


class Recorder:
    """History of one run."""

    def __init__(self, time: VirtualTime) -> None:
        self.ops: list[Op] = []
        self.acknowledged = 0
        """Number of batches acknowledged to clients."""
        self._time = time
        self._next = 0
        self._next_value = 0
        self._record_times_ms: list[int] = []

    def invoke(self) -> Invoked:
        self._next += 1
        return Invoked(self._next, self._time.now_ns)

    def returned(self, invoked: Invoked, proc: str, f: str, kind: str) -> Op:
        """Keep the operation, which has just returned. The caller fills in the rest."""
        op = Op(invoked.i, proc, f, kind, invoked.t0, self._time.now_ns)
        self.ops.append(op)
        if f == "send" and op.ok:
            self.acknowledged += 1
        return op

    def happened(self, proc: str, f: str, t0: int = -1) -> Op:
        """Keep an operation that was over when it was noticed; `t0` if it began earlier."""
        invoked = self.invoke()
        if t0 >= 0:
            invoked.t0 = t0
        return self.returned(invoked, proc, f, "ok")

    def new_value(self) -> int:
        self._next_value += 1
        return self._next_value

    def sent_at(self, timestamp: int) -> None:
        """Note the timestamp (ms) of a record that is being sent."""
        self._record_times_ms.append(timestamp)

    def time_of_a_record(self, rng: Random, otherwise: int) -> int:
        """Return a random record's timestamp, `otherwise` while there is none."""
        return rng.choice(self._record_times_ms) if self._record_times_ms else otherwise


def make_record(value: int, rng: Random, *, bytes_max: int, timestamp: int) -> Record:
    """Return a record that carries `value`, padded to a random size."""
    body = b"v%012d;" % value
    padding = b"." * rng.randint(0, max(0, bytes_max - len(body)))
    key = None if rng.random() < 0.3 else b"k%d" % (value % 7)
    return Record(key, body + padding, [], timestamp)


def value_of(record: Record) -> int:
    """Return the value a record carries, -1 if it carries none."""
    found = _VALUE.match(record.value or b"")
    return int(found[1]) if found else -1


def values_in(data: Buffer) -> list[int]:
    """Return all values whose records are stored uncompressed in a run of bytes."""
    return [int(digits) for digits in _VALUE.findall(data)]
