"""The storage contract: what a server asks of its disk, whichever backend stands behind it.

A data directory holds one `Store`. The store has one journal for all logs, so one sync makes every
log durable, and one `Log` per replica. Durability is a value: whatever was staged since the last
`submit` becomes part of one journal block, `submit` returns that block's token, and only when
`on_durable` reports a token at or above it may anyone be told that the data is safe.

Rules every backend keeps:

* All methods are called from the loop that owns the store, and return without blocking. What
  blocks runs through `Workers`; its completions come back on the loop.
* Payloads are opaque. The store knows kind, term, index, base offset, record count, timestamp.
* Only committed entries count in log and index segments. The uncommitted suffix lives in the
  journal and in the cache. A large append may lie in a segment before it is committed, behind what
  counts there, and nobody reads it from there but a start.
* Every byte read from disk is checked against its CRC before it is returned.
* A failed journal write or sync is fatal: `on_fatal` is called once, nothing is acknowledged after.

Must not know: Raft roles, Kafka, the network, wall-clock time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ids import (
    NO_INDEX,
    NO_TERM,
    DirectoryId,
    GroupId,
    Index,
    LogId,
    NodeId,
    Offset,
    ReplicaNumber,
    ServerId,
    Term,
)
from segments.boots import Boot

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")
INSTALLED_STATE_BYTES_MAX = 160 << 20
ENTRY_FRAME_BYTES = 48
"""What each entry takes besides its data, in memory and on disk."""


class StorageError(Exception):
    """The root of everything this package raises."""


class NotInMemory(StorageError):
    """The range is on disk only; ask `Store.read_cold` or `read_entries_cold` for it."""

    def __init__(self, first: Index, end: Index) -> None:
        super().__init__(f"entries [{first}, {end}) are not in memory")
        self.first = first
        self.end = end


class Compacted(StorageError):
    """The index lies below the log's first index."""


class Unavailable(StorageError):
    """The index lies above the log's last index."""


class OffsetOutOfRange(StorageError):
    """The offset lies below the log start offset or above the end that was asked for."""


class CorruptRecord(StorageError):
    """Bytes on disk do not match their CRC, or do not have the shape they must have."""

    def __init__(self, what: str, position: int, *, expected: int = 0, actual: int = 0) -> None:
        super().__init__(f"{what} at {position}: expected {expected:#x}, found {actual:#x}")
        self.what = what
        self.position = position
        self.expected = expected
        self.actual = actual


class EntriesDamaged(CorruptRecord):
    """Entries [first, end) cannot be read from their segment. `Store.repair` writes them again."""

    def __init__(self, first: Index, end: Index, position: int) -> None:
        super().__init__(f"entries [{first}, {end})", position)
        self.first = first
        self.end = end


class ReadRefused(StorageError):
    """There was no descriptor or no memory for a read. Nothing is wrong with what was to be read: a
    later try may succeed."""


class WriteRefused(StorageError):
    """There was no room, no descriptor or no memory for what was to be written. Nothing is wrong
    with it: a later try may succeed."""


class DataMissing(StorageError):
    """Something that was in the data directory is not there. Nothing was changed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} is missing: {why}. Nothing was changed. Is a disk not mounted, was something "
            "moved? Put it back and start again. If it is gone for good, empty the whole data "
            "directory: a server of a replica set is then replaced from the others"
        )
        self.path = path
        self.why = why


class ForeignFile(StorageError):
    """A journal file in the data directory is another directory's. Nothing was changed."""

    def __init__(self, path: str, owner: DirectoryId) -> None:
        super().__init__(
            f"{path} is of another data directory, {owner.hex()}. Nothing was changed. Was it "
            "copied here by mistake, perhaps over a file of this one? Put that back, move this one "
            "away, and start again. If what it took the place of is gone for good, empty the whole "
            "data directory: a server of a replica set is then replaced from the others"
        )
        self.path = path
        self.owner = owner


class UnknownFormat(StorageError):
    """A later version wrote something that this one does not know. Nothing was changed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} was written by a later version: {why}. Nothing was changed. Start that "
            "version again, or a later one. To go back to this one, replace the server: empty the "
            "whole data directory, and a server of a replica set gets everything from the others"
        )
        self.path = path
        self.why = why


class ForeignDirectory(StorageError):
    """The data directory is another server's. Nothing was changed."""

    def __init__(self, directory: str, *, server_id: ServerId, owner: ServerId) -> None:
        super().__init__(
            f"{directory} is the data directory of server {owner}, and this is server {server_id}. "
            "Nothing was changed. Was the wrong volume mounted, or the directory copied? Give each "
            "server its own directory. A server of a replica set that has lost its own starts with "
            "an empty one and is replaced from the others"
        )
        self.directory = directory
        self.server_id = server_id
        self.owner = owner


class DirectoryInUse(StorageError):
    """Another process holds the data directory."""

    def __init__(self, path: str) -> None:
        super().__init__(f"another process holds {path}; each server has a directory of its own")


class EntryLike(Protocol):
    """The shape of an entry; `raft.types.Entry` and `StoredEntry` both have it.

    `append` copies `data` once, into the log's cache chunk, and replaces the attribute by a view of
    that copy, so that the caller's request buffer is free and peers are sent the copy.
    """

    data: Buffer

    @property
    def term(self) -> Term: ...
    @property
    def index(self) -> Index: ...
    @property
    def kind(self) -> int: ...
    @property
    def base_offset(self) -> Offset: ...
    @property
    def records(self) -> int: ...
    @property
    def timestamp(self) -> int: ...


@dataclass(slots=True)
class StoredEntry:
    """An entry as it comes back from the store."""

    term: Term
    index: Index
    kind: int
    data: Buffer
    base_offset: Offset
    records: int
    timestamp: int


@dataclass(slots=True)
class HardState:
    """Term, vote and commit of one replica (Raft §5.1). `vote` 0 is none."""

    term: Term = NO_TERM
    vote: NodeId = NodeId(0)
    commit: Index = NO_INDEX


@dataclass(slots=True)
class MetaBatch:
    """Applied state of one log's state machine: the keys that changed up to `applied`.

    A value of None deletes the key. `clear` drops everything stored for the log first.
    """

    log_id: LogId
    applied: Index
    items: Collection[tuple[bytes, bytes | None]]
    """Not changed any more."""
    clear: bool = False

    def then(self, later: MetaBatch) -> MetaBatch:
        """This batch and a later one of the same log, as one."""
        if later.clear:
            return later
        items = list(dict([*self.items, *later.items]).items())
        return MetaBatch(self.log_id, later.applied, items, clear=self.clear)


@dataclass(slots=True)
class Slices:
    """Batches found by `read`: `buffers` lie end to end, [first_offset, end_offset)."""

    buffers: list[Buffer] = field(default_factory=list)
    bytes: int = 0
    first_offset: Offset = Offset(0)
    end_offset: Offset = Offset(0)


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a log begins a new segment."""

    bytes: int
    """Before a segment grows beyond this."""
    span_ms: int = -1
    """Before an entry whose timestamp is later than the segment's first by more; -1: whatever."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What compaction does to a log: of the entries up to `upto` only what `RecordCleaner` keeps
    stays. (0, 0): nothing was done yet."""

    upto: Index = NO_INDEX
    """Index of the last entry that it looks at."""
    markers_upto: Index = NO_INDEX
    """Deletion markers in entries up to here go as well; never above `upto`."""


class RecordCleaner(Protocol):
    """What compaction has to know of the inside of entries. Called in threads of the pool, by one
    job at a time; one object serves one compaction.

    All entries of which something is left are shown to `scan` and then to `clean`, oldest first;
    others may be. What comes of them must be a
    function of the entries alone: every replica gets the same. Memory for keys is bounded: those
    that found no room are the next pass's.
    """

    def scan(self, entries: Sequence[StoredEntry], *, keys_from: Index) -> Index:
        """Learn of entries, and the keys of those from `keys_from` on, which supersede records
        before them. The index of the first entry whose keys found no room, or the one behind the
        last. What was shown before may be shown again."""

    def clean(self, entry: StoredEntry, *, markers_upto: Index) -> Buffer | None:
        """What is left of an entry's payload; None: all of it. Nothing has length 0."""

    def next_pass(self) -> None:
        """All entries were cleaned. Forget the keys: others come."""


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """What one log segment holds, as far as it is committed; or the tail that is in none yet."""

    end_offset: Offset
    """Offset after its last record."""
    bytes: int
    max_timestamp: int
    """Largest timestamp of its records (ms); -1 when they have none."""
    last_index: Index = NO_INDEX
    """Of its last entry."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Sizes of everything that is bounded. Bytes unless the name says otherwise."""

    journal_file_bytes: int = 64 << 20
    journal_first_file_bytes: int = 8 << 20
    segment_bytes: int = 64 << 20
    index_segment_entries: int = 102_400
    cache_bytes_max: int = 64 << 20
    checkpoint_bytes: int = 32 << 20
    checkpoint_entries: int = 100_000
    checkpoint_interval_ms: int = 10_000
    idle_block_ms: int = 50
    place_bytes_min: int = 256 << 10
    """An append of at least so many bytes is written to its segment at once, and only told of in
    the journal; 0: none is."""
    large_bytes_min: int = 16 << 20
    """An entry of at least so many bytes is not copied into the cache. It counts in none of its
    bounds, and leaves memory as soon as a segment holds it."""
    meta_map_bytes: int = 1 << 30
    """Mapped at first for the applied state; more where more is stored."""
    scrub_bytes_per_second: int = 4 << 20
    """How fast segments are read through, again and again; 0: never."""
    accept_empty: bool = True
    """An empty directory is a new one; False: it is refused, for it may be a mount point."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Workers(Protocol):
    """Where blocking work runs. `done` is called on the loop with the result or the exception.

    A real server has one journal thread, one for what the journal needs, one for the segments and a
    small pool; a simulated one runs the same jobs on virtual time. Jobs touch files only through
    `segments.io.fs.FileSystem`.
    """

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run in order with all other journal jobs, one at a time."""

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run what a journal block refers to, beside its journal job, one at a time."""

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run in a bounded pool, in no particular order."""

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run what only computes, in no particular order, and not behind what waits for a disk."""

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run what durability waits for beside the journal's own writes, its next file and the list
        of logs: in order, behind neither reads that bad sectors hold up nor a long checkpoint."""

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run a checkpoint or a removal. There is one at a time. Reads that a bad sector holds up
        must not hold it up too: nothing would become free in memory then."""

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> Timer:
        """Run `fn` on the loop after `delay_ms`."""


class Log(Protocol):
    """One replica's log: `[first_index, last_index]`, dense, of which `commit` are committed."""

    @property
    def log_id(self) -> LogId: ...
    @property
    def group_id(self) -> GroupId: ...
    @property
    def replica_number(self) -> ReplicaNumber: ...
    @property
    def first_index(self) -> Index:
        """Index of the oldest entry held; `last_index + 1` when the log is empty."""

    @property
    def last_index(self) -> Index: ...
    @property
    def commit_index(self) -> Index: ...
    @property
    def hard_state(self) -> HardState:
        """As last staged; after `open`, as recovered: commit is not above the last entry, and the
        term not below the last entry's (a crash may have kept the entry without the term; then
        no vote was given in it)."""

    @property
    def applied_index(self) -> Index:
        """The applied index of the last meta checkpoint."""

    @property
    def installed_state(self) -> bytes:
        """What came with the last `reset_log`, until a checkpoint covers it: one that made a
        `MetaBatch` with `clear`, collected after the reset and applied at least up to it,
        durable. Empty when there is nothing to cover. A crash in between loses nothing: `open`
        finds it again, and the owner installs it instead of what `load_meta` has."""

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def next_offset(self) -> Offset:
        """Offset after the last entry."""

    @property
    def lost(self) -> bool:
        """True when recovery proved that this replica lost entries or votes it may have
        acknowledged: it must never vote, acknowledge or serve again."""

    @property
    def is_meta_lost(self) -> bool:
        """Whether nothing is stored of this log's state any more: the disk damaged it. Batches are
        dropped until one with `clear` says all of it again."""

    @property
    def compaction(self) -> Compaction:
        """The last one that was done to all of the log; as much of a later one may be done."""

    @property
    def large_bytes(self) -> int:
        """Of this log, see `Store.large_bytes`."""

    @property
    def damaged(self) -> Sequence[tuple[Index, Index]]:
        """Ranges [first, end) of entries that a read or the scrubber found damaged in their
        segments, ascending. Terms and offsets around them are known; reading them raises
        `EntriesDamaged`. Not durable: a read after a restart finds them again."""

    def term(self, index: Index) -> Term:
        """Term of the entry at `index`, or of the one before `first_index`. From memory, always.
        Raises Compacted, Unavailable."""

    def offset_after(self, index: Index) -> Offset:
        """Offset that follows the entry at `index` (also for `first_index - 1`). From memory where
        a term ends and from the entry before the oldest in the cache on; else one Idx is read.
        Raises CorruptRecord, whose position is the entry, when that is damaged: reading the entry
        from disk rebuilds it; and ReadRefused."""

    def entries(self, first: Index, end: Index, bytes_max: int) -> Sequence[EntryLike]:
        """Entries [first, end), at least one, then ≤ `bytes_max` of payload, from the cache.
        Raises Compacted, Unavailable, NotInMemory."""

    def read(self, offset: Offset, end_index: Index, bytes_max: int) -> Slices:
        """Batches from the one holding `offset`, from the cache, none beyond entry `end_index`
        (inclusive, never above commit); ≤ `bytes_max` unless the first batch alone is larger
        (KIP-74). Entries without records are passed over. Empty when `offset` is the end.
        Raises OffsetOutOfRange, NotInMemory."""


class Store(Protocol):
    """All logs of one data directory."""

    workers: Workers
    """Where its blocking work runs. Who reads from it may use the pool for what takes long, too."""

    @property
    def directory_id(self) -> DirectoryId:
        """16 random bytes given to this directory when it was created."""

    @property
    def logs(self) -> Mapping[LogId, Log]:
        """The logs that exist here, by log id."""

    @property
    def durable_token(self) -> int: ...

    @property
    def unflushed_bytes(self) -> int:
        """Bytes in the cache that no segment holds yet, without large entries: above half the
        cache's budget, producers should be made to wait."""

    @property
    def large_bytes(self) -> int:
        """Bytes of large entries that no segment holds yet. While there are any, who sends another
        should be made to wait."""

    @property
    def flushable_bytes(self) -> int:
        """Of the unflushed bytes those that a flush would free: their entries are committed. Takes
        a look at each log that has some."""

    @property
    def writing_bytes(self) -> int:
        """Bytes of the journal's write that is under way, 0 while there is none."""

    @property
    def file_work(self) -> int:
        """0 while neither a checkpoint nor a removal runs; else a number that changes with each
        step of it. A number that stays the same for long is the sign of a disk that hangs."""

    @property
    def disk_full(self) -> bool:
        """The disk has refused a write for want of room. What was staged is safe in the journal or
        waits to be; refused writes are tried again each second, and the state ends by itself.
        A reserve is kept for votes and the notes of a checkpoint."""

    @property
    def accepts_appends(self) -> bool:
        """False while new entries should be refused: what is appended nevertheless is staged, and
        may have to wait until there is room, with everything behind it."""

    def entry_room(self, *, is_essential: bool) -> int:
        """Bytes of entries that a full disk still takes, where they cannot be refused without
        harm. A part of the reserve is kept from them for votes and notes, and a part of the rest
        for those that are essential."""

    def has_room_for(self, size: int) -> bool:
        """Whether there is room for one more entry of so many bytes, which may be more than a file
        of the journal takes. What was staged and refused for want of room would hold up all that
        comes behind it, votes too. Asks the file system where the files at hand do not do."""

    on_durable: Callable[[int], None]
    """Called on the loop with the largest durable token, after each journal write."""

    on_fatal: Callable[[BaseException], None]
    """Called once when the disk can no longer be trusted."""

    collect_meta: Callable[[Sequence[Log]], list[MetaBatch]]
    """Called on the loop when a checkpoint or a part of one begins: what the machines of these logs
    changed since they were asked last."""

    # --- identity -------------------------------------------------------------------------
    @property
    def server_id(self) -> ServerId:
        """Whose directory this is; `NO_SERVER` while that is not known."""

    def adopt_server(self, server_id: ServerId) -> None:
        """Have the directory, whose server is not known, be that server's for ever; durable in the
        background."""

    @property
    def boots(self) -> Sequence[Boot]:
        """The last starts of this directory, oldest first. The newest one is the present start,
        unless it has ended: then the disk had no room to note this one, and peers must not
        remember it."""

    @property
    def durable_lsn(self) -> int:
        """The LSN behind the last record that is durable in the journal: a start finds the
        journal's end there or behind, or a record is lost. It never sinks."""

    def give_up(self, done: Callable[[], None]) -> None:
        """Mark every log of now as lost, because the directory lacks what it once had, and have it
        be another directory: it does not know either which logs it made since. `done` on the loop
        when that is durable; the logs are lost at once."""

    def peers_note(self) -> bytes:
        """The last durable note of when the store was opened; empty when there is none."""

    def note_peers(self, note: bytes) -> None:
        """Note something about peers (at most `NOTE_BYTES_MAX`), durable in the background. It may
        be lost in a crash, or for want of room: the owner notes again."""

    def cluster_record(self) -> bytes:
        """The birth record this directory adopted, empty before. Opaque here."""

    def adopt_cluster(self, record: bytes) -> None:
        """Write the birth record durably (blocking; only at birth)."""

    def create_log(
        self,
        group_id: GroupId,
        replica_number: ReplicaNumber,
        *,
        first_index: Index = Index(1),
        prev_term: Term = NO_TERM,
        next_offset: Offset = Offset(0),
        on_created: Callable[[Log], None],
    ) -> None:
        """Make an empty log whose first entry will have `first_index`; durable in `identity`
        before `on_created` runs on the loop. Several calls of one loop turn share one write."""

    def delete_log(self, log_id: LogId) -> None:
        """Forget the log: gone from `logs` at once, from `identity` durably in the background,
        its files moved to `deleted/` and then removed. Journal replay ignores it from then on."""

    # --- staging; nothing is durable until its token is -------------------------------------
    def append(self, log: Log, entries: Sequence[EntryLike]) -> None:
        """Stage entries, consecutive, starting at or below `last_index + 1`: what the log held
        from there on is truncated (never at or below commit)."""

    def set_hard_state(self, log: Log, state: HardState) -> None:
        """Stage term, vote and commit. A commit index that moves also lets entries flow to
        segments; commit alone never forces a sync."""

    def reset_log(
        self,
        log: Log,
        *,
        first_index: Index,
        prev_term: Term,
        next_offset: Offset,
        state: Buffer = b"",
    ) -> None:
        """Stage the installation of a snapshot: drop every entry, continue at `first_index`
        (> commit). `state` (≤ `INSTALLED_STATE_BYTES_MAX`) is opaque to the store; it travels in
        the same journal record and is what `Log.installed_state` returns until a checkpoint has
        stored what the owner made of it."""

    def trim_log(self, log: Log, *, first_index: Index) -> None:
        """Stage the removal of every entry below `first_index` (≤ commit + 1): retention. Whole
        segments that fall below it are deleted once the record is durable. Not while
        `installed_state` waits for its checkpoint: the entries behind it are what it is followed
        by after a crash. Raises CorruptRecord and ReadRefused as `offset_after` does; then nothing
        is staged."""

    def submit(self, *, urgent: bool = True) -> int:
        """Close what was staged into the next block and hand it to the journal writer; blocks
        staged while a write is in progress are merged into one. Returns the token. With
        `urgent=False` (only commit indexes moved) the write may wait for the next urgent one
        or the idle block."""

    # --- cold reads, in the pool -------------------------------------------------------------
    def read_cold(
        self,
        log: Log,
        offset: Offset,
        end_index: Index,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
    ) -> None:
        """As `Log.read`, from disk. `done` may be called before this returns: what was read ahead
        is in memory."""

    def entries_cold(
        self,
        log: Log,
        first: Index,
        end: Index,
        bytes_max: int,
        done: Callable[[list[StoredEntry] | StorageError], None],
    ) -> None:
        """As `Log.entries`, from disk."""

    def index_of_offset(
        self, log: Log, offset: Offset, done: Callable[[Index | StorageError], None]
    ) -> None:
        """The index of the entry that holds `offset`, or OffsetOutOfRange."""

    def index_of_timestamp(
        self,
        log: Log,
        timestamp_ms: int,
        end_index: Index,
        done: Callable[[Index | StorageError], None],
        *,
        first_index: Index = NO_INDEX,
    ) -> None:
        """The first index, not below `first_index`, whose entry's largest timestamp is ≥
        `timestamp_ms`, or `end_index + 1` when there is none up to `end_index`."""

    def set_segment_limits(self, log: Log, limits: SegmentLimits) -> None:
        """When the log begins a new segment, from the next flush on. Not kept: `open` begins with
        the store's own size."""

    def expect_reads(self, log: Log, expected: bool) -> None:
        """Whether consumers are likely to read the log here, as they do at first. Where they are
        not, the system's page cache is not filled with what is written; a `read_cold` says that
        there are some after all."""

    def segment_spans(
        self, log: Log, done: Callable[[list[SegmentSpan] | StorageError], None]
    ) -> None:
        """The log's segments, oldest first, and last what no segment holds yet; for retention,
        which deletes them whole. They hold everything up to the commit index."""

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        """(size, bytes that can still be written) of the file system that holds the directory;
        (-1, -1) where there is none. From the pool."""

    def compact(
        self,
        log: Log,
        compaction: Compaction,
        make_cleaner: Callable[[], RecordCleaner],
        *,
        pace: Callable[[int], int],
        done: Callable[[bool], None],
    ) -> None:
        """Remove from the log's segments what is superseded; one log at a time. Indexes, terms,
        base offsets and the number of offsets of entries stay: an entry of which nothing is left
        has an empty payload. The newest segment is never touched: the log is made to begin another
        when entries up to `upto` are in it. `done(False)` when it was not done to the end (no room,
        damage, entries that are in no segment yet) and may be tried again. `pace(n)` says how many
        milliseconds to wait after `n` bytes. The caller's checkpoint holds the state of what is
        compacted: `upto` is not above `applied_index`."""

    def repair(
        self,
        log: Log,
        entries: Sequence[EntryLike],
        done: Callable[[StorageError | None], None],
        *,
        compacted_upto: Index = NO_INDEX,
    ) -> None:
        """Write copies of entries, from a replica that has them, over damaged ones. Each must have
        the index and the term that the log knows, and the place and length that its index segment
        or its neighbours say; it is read back before it counts as good. Those up to
        `compacted_upto` may be of a log that was compacted further, and smaller; how far that is
        will be decided here, too. `done` runs on the loop when all are durable, with what speaks
        against them, or with WriteRefused. Entries in no damaged range are left alone."""

    # --- meta --------------------------------------------------------------------------------
    def load_meta(self, log: Log) -> tuple[Index, list[tuple[bytes, bytes]]]:
        """(applied index, items in key order) of the last checkpoint; (0, []) when none.
        Outdated while the log's `installed_state` is not empty: begin with that instead.
        Raises CorruptRecord when a value cannot be trusted: the state must then come from a
        snapshot or from the log, never from a default; and ReadRefused."""

    # --- life --------------------------------------------------------------------------------
    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        """Begin a checkpoint now, if none is running; without `done` only if the last one's notes
        are durable, so that removals have their turn."""

    def close(self, done: Callable[[], None]) -> None:
        """Write the closing block, sync, release the directory; `done` runs on the loop."""

    def stats(self) -> dict[str, float]:
        """Counters and gauges for metrics: cache bytes and hits, journal blocks and bytes, sync
        latency, pending bytes, segments."""
