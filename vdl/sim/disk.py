"""Simulated disk that loses unsynced data on a power cut.

Every file has two images: the *volatile* one, which reads see, and the *durable* one, which
survives a power cut. They differ in dirty ranges. A power cut keeps, sector by sector, a random
subset of the dirty data and tears one sector; a file's new length may or may not survive. Names
behave the same way: creating, renaming and removing is volatile until the directory is synced, and
a power cut keeps a prefix of each directory's pending changes. A rename is atomic. A killed process
loses none of this: the page cache outlives it.

Code runs on the disk in two ways. Outside a job every operation takes effect at once. Inside a job
(`workers.SimWorkers`) effects on the volatile image happen when the job starts, in no virtual time,
but each operation is also a *step*: its data becomes durable only when the job completes. If the
process or the machine fails in between, the steps from a random point on are undone as if they had
never been issued. So "write, sync, rename" is cut anywhere but never reordered. The step in
progress had been issued and had not returned: its effect can be read, and is as volatile as
unsynced data, so that a power cut tears a durable write like any other. A step that another job's
sync made durable had been issued too, and stays.

A failed sync behaves as on Linux: the pages are marked clean though they never reached the disk, so
a second sync succeeds and the data is lost in a power cut.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from segments.api import Buffer, StorageError

T = TypeVar("T")
SECTOR_BYTES = 512
SYNCED_MAX = 64
"""Runs of bytes that a file remembers as synced."""
PAGE_BYTES = 4096
"""Unit of a read by the system: a bad sector makes all of it unreadable."""
SLOWED_JOB_NS_MAX = 2_000_000_000
"""Longest duration of one job on a slow disk.

It may outlast the fault only by less than a world waits for its leaders.
"""


@dataclass(slots=True)
class DiskProfile:
    """Durations in virtual nanoseconds. `sync_ns` is the mean of an exponential distribution."""

    sync_ns: int = 300_000
    operation_ns: int = 10_000
    bytes_per_us: int = 500


@dataclass(slots=True, eq=False)
class Step:
    """One operation of a running job, with functions that make it durable and that undo it."""

    harden: Callable[[], None] | None
    undo: Callable[[], None] | None

    @property
    def is_durable_write(self) -> bool:
        """True if it changes data and makes it durable before it returns."""
        return self.harden is not None and self.undo is not None


@dataclass(slots=True, eq=False)
class Range:
    """Bytes [start, end) of a file that were written and not yet synced."""

    start: int
    end: int


class Inode:
    """The two images of one file."""

    __slots__ = ("allocated", "data", "dirty", "durable", "synced")

    def __init__(self) -> None:
        self.allocated = 0
        """End of the part that may have blocks. A file extended without a write has none there."""
        self.synced: dict[int, int] = {}
        """The last runs that a sync made durable: end by start."""
        self.data = bytearray()
        self.durable = bytearray()
        self.dirty: list[Range] = []

    def power_cut(self, rng: Random) -> None:
        """Choose the unsynced writes that had reached the disk, and drop the rest."""
        data, durable = self.data, self.durable
        if len(data) != len(durable):
            low, high = sorted((len(data), len(durable)))
            between = rng.randint(low, high) // SECTOR_BYTES * SECTOR_BYTES
            _resize(durable, rng.choice((len(data), len(durable), max(low, between))))
        sectors = sorted(
            {s for r in self.dirty for s in range(r.start // SECTOR_BYTES, _sectors(r.end))}
        )
        # One survival chance for each cut, so that nearly all or nearly none may survive.
        survival = rng.random()
        kept = [sector for sector in sectors if rng.random() < survival]
        torn = rng.choice(kept) if kept and rng.random() < 0.5 else -1
        for sector in kept:
            start = sector * SECTOR_BYTES
            end = min(start + SECTOR_BYTES, len(durable), len(data))
            if sector == torn and end > start:
                end = rng.randint(start, end)
            if end > start:
                durable[start:end] = data[start:end]
        self.data = bytearray(durable)
        self.allocated = len(durable)
        self.dirty.clear()


class MetaStore:
    """Key-value environment with durable, atomic transactions (a fake of an LMDB one)."""

    __slots__ = ("durable", "items", "pending")

    def __init__(self) -> None:
        self.items: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        self.pending: list[list[tuple[bytes, bytes | None]]] = []

    def power_cut(self, rng: Random) -> None:
        for transaction in self.pending:
            if rng.random() < 0.5:
                break
            _apply(self.durable, transaction)
        self.pending.clear()
        self.items = dict(self.durable)


class Directory:
    """Names as visible and as durable."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Inode | MetaStore | Directory


@dataclass(slots=True, eq=False)
class NameChange:
    """One atomic change of names, not durable yet: (directory, name, node or None)."""

    changes: list[tuple[Directory, str, Node | None]]

    def harden(self) -> None:
        for directory, name, node in self.changes:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


class SimDisk:
    """One machine's disk. It outlives the processes that use it.

    Use: faults set `fail_syncs`, `room` and `cut_at_write`; `slowdown` multiplies every latency;
    `on_durable` is called with every run of bytes when it becomes durable.
    """

    def __init__(self, rng: Random, profile: DiskProfile) -> None:
        self.rng = rng
        self.profile = profile
        self.root = Directory()
        self.locks: set[str] = set()
        self.fail_syncs = 0
        self.room: int | None = None
        """Bytes by which files may still grow; None: unlimited.

        Deleted files return nothing: others have taken their space.
        """
        self.returns_room = False
        """True if truncated or removed bytes return to `room`.

        Only for processes that are not killed: what a crash undoes is not counted again.
        """
        self.writes_in_place = True
        """True if overwriting bytes needs no room, as reported by the file system."""
        self.cut_at_write = 0
        """Durable writes of jobs until the one that calls `on_cut` while in progress; 0: none."""
        self.on_cut: Callable[[], None] = _nobody
        self.bad_pages: set[tuple[Inode, int]] = set()
        """Unreadable pages, by file and number; readable again once overwritten as a whole."""
        self.slowdown = 1
        self.steady_sync_ns = 0
        """If not 0: duration of each sync."""
        self.on_durable: Callable[[Buffer], None] = _ignore
        self._name_changes: list[NameChange] = []
        self._steps: list[Step] | None = None
        self._cost_ns = 0

    # --- jobs ---------------------------------------------------------------------------------
    def run_job(self, job: Callable[[], T]) -> tuple[T | BaseException, list[Step], int]:
        """Run the job on the volatile image. Return (result, steps, duration in ns)."""
        assert self._steps is None, "a job inside a job"
        self._steps = []
        self._cost_ns = 0
        result: T | BaseException
        try:
            result = job()
        except (StorageError, OSError) as error:
            result = error
        steps, self._steps = self._steps, None
        slowed_ns = min(self._cost_ns * self.slowdown, SLOWED_JOB_NS_MAX)
        return result, steps, max(self._cost_ns, slowed_ns)

    def step(self, harden: Callable[[], None] | None, undo: Callable[[], None] | None) -> None:
        """Record an operation that was done; outside a job it completes at once."""
        if self._steps is not None:
            self._steps.append(Step(harden, undo))
        elif harden is not None:
            harden()

    # --- files ----------------------------------------------------------------------------------
    def write(
        self, inode: Inode, buffers: Sequence[Buffer], position: int, *, durable: bool
    ) -> int:
        data = inode.data
        payload = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        length = len(payload)
        end = position + length
        if self.bad_pages:
            self._heal_pages(inode, position, end)
        old_size = len(data)
        growth = end - old_size
        if self.room is not None and growth > 0:
            fits = old_size + self.room - position
            if fits < length:
                # As in a real short write: the part that fits is written, without notice.
                if fits > 0:
                    self.write(inode, [payload[:fits]], position, durable=False)
                self.room = 0
                raise _no_space()
            self.room -= growth
        old = bytes(data[position:end]) if self._steps is not None else b""
        if position > old_size:
            data.extend(bytes(position - old_size))
        data[position:end] = payload
        inode.allocated = max(inode.allocated, end)
        written = Range(min(position, old_size), end)
        inode.dirty.append(written)
        self._cost_ns += self.profile.operation_ns + length * 1000 // self.profile.bytes_per_us

        def undo() -> None:
            if _is_dirty(inode, written):
                data[position : position + len(old)] = old
                _take_back_growth(inode, old_size)

        if not durable:
            self.step(None, undo)
            return length
        if self.cut_at_write and self._steps is not None:
            self.cut_at_write -= 1
            if not self.cut_at_write:
                self.on_cut()
        self._wait_for_sync(inode, [written])
        image = bytes(data[written.start : end])

        def harden() -> None:
            if len(inode.durable) < end:
                _resize(inode.durable, end)
            inode.durable[written.start : end] = image
            _forget(inode.dirty, [written])
            self._report(inode, written.start, end)

        self.step(harden, undo)
        return length

    def sync(self, inode: Inode) -> None:
        ranges = list(inode.dirty)
        self._wait_for_sync(inode, ranges)
        size = len(inode.data)
        images = [(r.start, bytes(inode.data[r.start : r.end])) for r in ranges]
        runs = _joined(ranges)

        def harden() -> None:
            _resize(inode.durable, size)
            for start, image in images:
                inode.durable[start : min(start + len(image), size)] = image[: size - start]
            for start, _ in images:
                end = next((end for begin, end in runs if begin <= start < end), start)
                # Not less than before: a sync that began earlier may end later.
                inode.synced[start] = max(inode.synced.get(start, 0), min(end, size))
            for start, image in images:
                self._report(inode, start, min(start + len(image), size))
            while len(inode.synced) > SYNCED_MAX:
                del inode.synced[next(iter(inode.synced))]
            _forget(inode.dirty, ranges)

        self.step(harden, None)

    def _report(self, inode: Inode, start: int, end: int) -> None:
        """Report durable bytes, with those right behind them that were synced before.

        So a frame is reported as a whole when its last part becomes durable.
        """
        while further := [e for s, e in inode.synced.items() if start < s <= end < e]:
            end = max(further)
        self.on_durable(bytes(inode.durable[start:end]))

    def truncate(self, inode: Inode, length: int) -> None:
        data = inode.data
        old_size = len(data)
        growth = length - old_size
        if self.room is not None and growth > 0 and self._take_room(growth) < growth:
            raise _no_space()
        tail = bytes(data[length:])
        allocated = inode.allocated
        _resize(data, length)
        inode.allocated = min(allocated, length)
        if self.returns_room and self.room is not None:
            self.room += max(-growth, 0)
        # Truncated pages are released; if the file grows again, it gets others.
        gone = {(bad, n) for bad, n in self.bad_pages if bad is inode and n * PAGE_BYTES >= length}
        self.bad_pages -= gone
        # If the file grows again before a sync, these bytes are zeros here but not in the durable
        # image.
        cut_off = Range(length, old_size)
        if length < old_size:
            inode.dirty.append(cut_off)

        def undo() -> None:
            if length >= old_size:
                _take_back_growth(inode, old_size)
            elif _is_dirty(inode, cut_off):
                _resize(data, old_size)
                data[length:] = tail
                inode.allocated = max(inode.allocated, allocated)
                self.bad_pages |= gone

        self._cost_ns += self.profile.operation_ns
        self.step(None, undo)

    def allocate(self, inode: Inode, length: int) -> None:
        """Extend the file with zeros to `length`, if it is shorter.

        Raises OSError if there is too little room; the file then has the bytes that fitted, as on a
        real disk.
        """
        growth = length - len(inode.data)
        if self.room is not None and growth > self.room:
            self.truncate(inode, len(inode.data) + self.room)
            inode.allocated = len(inode.data)
            raise _no_space()
        if growth > 0:
            self.truncate(inode, length)
        inode.allocated = max(inode.allocated, length)

    def _take_room(self, wanted: int) -> int:
        """Take up to `wanted` bytes of the room; return the number taken."""
        assert self.room is not None, "a disk without end"
        taken = min(wanted, self.room)
        self.room -= taken
        return taken

    def read(self, inode: Inode, length: int, position: int) -> bytes:
        self._cost_ns += self.profile.operation_ns + length * 1000 // self.profile.bytes_per_us
        end = min(position + length, len(inode.data))
        for bad, page in self.bad_pages:
            if bad is inode and position < (page + 1) * PAGE_BYTES and page * PAGE_BYTES < end:
                raise OSError(errno.EIO, "simulated bad sector")
        return bytes(inode.data[position : position + length])

    def _heal_pages(self, inode: Inode, position: int, end: int) -> None:
        """Make pages readable that are overwritten as a whole.

        Raises OSError for a bad page that is overwritten in part: the system would have to read the
        rest of it first.
        """
        for page in sorted(page for bad, page in self.bad_pages if bad is inode):
            first, stop = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
            if position <= first and stop <= end:
                self.bad_pages.discard((inode, page))
            elif position < stop and first < end:
                raise OSError(errno.EIO, "simulated bad sector")

    def _wait_for_sync(self, inode: Inode, ranges: list[Range]) -> None:
        """Charge for one sync. If it fails, mark the pages clean as Linux does. Raises OSError."""
        try:
            self._wait_for_any_sync()
        except OSError:
            _forget(inode.dirty, ranges)
            raise

    def _wait_for_any_sync(self) -> None:
        drawn_ns = int(self.rng.expovariate(1.0 / max(1, self.profile.sync_ns)))
        self._cost_ns += self.steady_sync_ns or drawn_ns
        if self.fail_syncs > 0:
            self.fail_syncs -= 1
            raise OSError(errno.EIO, "simulated sync failure")

    # --- names ----------------------------------------------------------------------------------
    def change_names(self, changes: list[tuple[Directory, str, Node | None]]) -> None:
        """Apply one atomic change to the volatile tree; durable when a directory is synced."""
        change = NameChange(changes)
        before = [(directory, name, directory.entries.get(name)) for directory, name, _ in changes]
        for directory, name, node in changes:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        self._name_changes.append(change)
        self._cost_ns += self.profile.operation_ns

        def undo() -> None:
            if change not in self._name_changes:
                return  # a directory sync of another job has made it durable
            self._name_changes.remove(change)
            for directory, name, node in before:
                if node is None:
                    directory.entries.pop(name, None)
                else:
                    directory.entries[name] = node

        self.step(None, undo)

    def remove_name(self, directory: Directory, name: str) -> None:
        """Remove the only name of a node."""
        node = directory.entries[name]
        self.change_names([(directory, name, None)])
        if self.returns_room and self.room is not None and isinstance(node, Inode):
            self.room += len(node.data)

    def sync_directory(self, directory: Directory) -> None:
        self._wait_for_any_sync()
        # Changes that share a directory become durable in order.
        touched = {id(directory)}
        chosen: list[NameChange] = []
        for change in reversed(self._name_changes):
            mine = {id(d) for d, _, _ in change.changes}
            if mine & touched:
                touched |= mine
                chosen.append(change)
        chosen.reverse()

        def harden() -> None:
            for change in chosen:
                if change in self._name_changes:
                    self._name_changes.remove(change)
                    change.harden()

        self.step(harden, None)

    # --- meta -----------------------------------------------------------------------------------
    def commit_meta(self, meta: MetaStore, puts: list[tuple[bytes, bytes | None]]) -> None:
        needs = sum(len(key) + len(value or b"") for key, value in puts)
        if self.room is not None and self._take_room(needs) < needs:
            raise _no_space()
        self._wait_for_any_sync()
        before = [(key, meta.items.get(key)) for key, _ in puts]
        _apply(meta.items, puts)
        meta.pending.append(puts)

        def harden() -> None:
            # By identity: two transactions may be equal.
            meta.pending[:] = [other for other in meta.pending if other is not puts]
            _apply(meta.durable, puts)

        def undo() -> None:
            meta.pending[:] = [other for other in meta.pending if other is not puts]
            _apply(meta.items, before)

        self.step(harden, undo)

    def sync_meta(self, meta: MetaStore) -> None:
        """Make the visible state durable. Takes no time, because it is done only at starts."""
        committed = list(meta.pending)

        def harden() -> None:
            for puts in committed:
                _apply(meta.durable, puts)
            meta.pending[:] = [p for p in meta.pending if not any(p is one for one in committed)]

        self.step(harden, None)

    # --- crashes ------------------------------------------------------------------------------
    def cut_jobs(self, jobs: Sequence[list[Step]]) -> None:
        """Cut each job at a random step, because the process died while they ran."""
        self._cut([(steps, self.rng.randint(0, len(steps))) for steps in jobs])

    def cut_job(self, steps: Sequence[Step], *, reached: int) -> None:
        """Cut this job, because the process died during it.

        `reached` steps are complete, the next one was in progress, and none was issued after it.
        """
        self._cut([(steps, reached)])

    def _cut(self, jobs: Sequence[tuple[Sequence[Step], int]]) -> None:
        """Cut each job at the step it has reached."""
        # Complete steps first: an undo must see what others have made durable.
        for steps, reached in jobs:
            for step in steps[:reached]:
                if step.harden is not None:
                    step.harden()
        # The next step had been issued and not completed: its writes stay volatile.
        for steps, reached in jobs:
            for step in reversed(steps[reached + 1 :]):
                if step.undo is not None:
                    step.undo()
        self.locks.clear()

    def power_cut(self) -> None:
        """Lose everything volatile except what had happened to reach the disk."""
        rng = self.rng
        cut: set[int] = set()
        for change in self._name_changes:
            touched = {id(directory) for directory, _, _ in change.changes}
            if touched & cut or rng.random() < 0.5:
                cut |= touched
            else:
                change.harden()
        self._name_changes.clear()
        self.fail_syncs = 0
        self.cut_at_write = 0
        self._restore(self.root, {})

    def wipe(self) -> None:
        """Replace the disk with an empty one. No process may be using the old one."""
        assert not self.locks, sorted(self.locks)
        self.root = Directory()
        self._name_changes.clear()
        self.bad_pages.clear()
        self.fail_syncs = 0

    def put_back(self, root: Directory) -> None:
        """Replace the contents with a copy of earlier ones. No process may be using the disk."""
        assert not self.locks, sorted(self.locks)
        self.wipe()
        self.root = root
        self._restore(root, {})

    def _restore(self, directory: Directory, seen: dict[int, bool]) -> None:
        directory.entries = dict(directory.durable)
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if id(node) in seen:
                continue
            seen[id(node)] = True
            if isinstance(node, Directory):
                self._restore(node, seen)
            else:
                node.power_cut(self.rng)


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, "no space left on the simulated disk")


def _sectors(length: int) -> int:
    return -(-length // SECTOR_BYTES)


def _resize(data: bytearray, length: int) -> None:
    if length < len(data):
        del data[length:]
    else:
        data.extend(bytes(length - len(data)))


def _is_dirty(inode: Inode, written: Range) -> bool:
    """Return True if no sync has covered the range; another job's sync may have."""
    return any(dirty is written for dirty in inode.dirty)


def _take_back_growth(inode: Inode, old_size: int) -> None:
    """Truncate the file to its old size.

    Bytes beyond it that others made durable stay: their sync had seen the longer file.
    """
    end = max(old_size, len(inode.durable))
    if end < len(inode.data):
        del inode.data[end:]


def _joined(ranges: Sequence[Range]) -> list[tuple[int, int]]:
    """Return (start, end) of the runs of bytes that the ranges cover."""
    runs: list[tuple[int, int]] = []
    for found in sorted(ranges, key=lambda one: one.start):
        start, end = found.start, found.end
        if runs and start <= runs[-1][1]:
            start, end = runs[-1][0], max(end, runs.pop()[1])
        runs.append((start, end))
    return runs


def _forget(dirty: list[Range], done: list[Range]) -> None:
    """Remove, by identity, the ranges that a sync covered; later writes stay."""
    gone = {id(r) for r in done}
    dirty[:] = [r for r in dirty if id(r) not in gone]


def _apply(items: dict[bytes, bytes], puts: list[tuple[bytes, bytes | None]]) -> None:
    for key, value in puts:
        if value is None:
            items.pop(key, None)
        else:
            items[key] = value


def _nobody() -> None:
    """Do nothing: the default of `on_cut`."""


def _ignore(image: Buffer) -> None:
    """Do nothing: the default of `on_durable`."""
