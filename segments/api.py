"""The storage contract: the interface between a server and its disk, for every backend.

A data directory holds one `Store`. The store has one `Log` per replica and one journal for all
logs, so that one sync makes every log durable. Durability is a value: everything staged since the
last `submit` becomes part of one journal block, `submit` returns that block's token, and the data
may be acknowledged only after `on_durable` has reported a token at or above it.

Rules for every backend:

* All methods are called from the loop that owns the store, and return without blocking. Blocking
  work runs through `Workers`, and its completions come back on the loop.
* Payloads are opaque. The store knows kind, term, index, base offset, record count, timestamp.
* Only committed entries count in log and index segments. The uncommitted suffix is in the
  journal and in the cache. A large append may be written to a segment before it is committed,
  after the part that counts. Only recovery reads it from there.
* Every byte read from disk is checked against its CRC before it is returned.
* A failed journal write or sync is fatal: `on_fatal` is called once, and nothing is acknowledged
  afterwards.

Does not depend on Raft roles, Kafka, the network or wall-clock time.
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
CHANGING_BYTES = 64
"""First bytes of an entry's payload that its owner may change until the entry is appended."""
NEVER_AHEAD = 1 << 62
"""`Store.ahead_bytes_min` of a store that writes nothing ahead."""
ENTRY_FRAME_BYTES = 48
"""Bytes per entry besides its data, in memory and on disk."""


class StorageError(Exception):
    """Base class of all exceptions of this package."""


class NotInMemory(StorageError):
    """The range is on disk only; read it with `Store.read_cold` or `Store.entries_cold`."""

    def __init__(self, first: Index, end: Index) -> None:
        super().__init__(f"entries [{first}, {end}) are not in memory")
        self.first = first
        self.end = end


class Compacted(StorageError):
    """The index is below the log's first index."""


class Unavailable(StorageError):
    """The index is above the log's last index."""


class OffsetOutOfRange(StorageError):
    """The offset is below the log start offset or above the requested end."""


class CorruptRecord(StorageError):
    """Bytes on disk do not match their CRC or are malformed."""

    def __init__(self, what: str, position: int, *, expected: int = 0, actual: int = 0) -> None:
        super().__init__(f"{what} at {position}: expected {expected:#x}, found {actual:#x}")
        self.what = what
        self.position = position
        self.expected = expected
        self.actual = actual


class EntriesDamaged(CorruptRecord):
    """Entries [first, end) cannot be read from their segment. `Store.repair` can rewrite them."""

    def __init__(self, first: Index, end: Index, position: int) -> None:
        super().__init__(f"entries [{first}, {end})", position)
        self.first = first
        self.end = end


class ReadRefused(StorageError):
    """No descriptor or memory was available for a read.

    The data itself is not at fault; a later attempt may succeed.
    """


class WriteRefused(StorageError):
    """No disk space, descriptor or memory was available for a write.

    The data itself is not at fault; a later attempt may succeed.
    """


class DataMissing(StorageError):
    """A file that the data directory must contain is missing. Nothing was changed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} is missing: {why}. Nothing was changed. If a disk is not mounted or a "
            "file was moved, restore it and start again. If the file is lost for good, empty "
            "the whole data directory: a server of a replica set then gets its data from the "
            "other servers"
        )
        self.path = path
        self.why = why


class ForeignFile(StorageError):
    """A journal file in the data directory belongs to another directory. Nothing was changed."""

    def __init__(self, path: str, owner: DirectoryId) -> None:
        super().__init__(
            f"{path} belongs to another data directory, {owner.hex()}. Nothing was changed. If "
            "it was copied here by mistake, move it away, restore the file that it replaced, "
            "and start again. If that file is lost for good, empty the whole data directory: "
            "a server of a replica set then gets its data from the other servers"
        )
        self.path = path
        self.owner = owner


class UnknownFormat(StorageError):
    """A later version wrote data that this version does not know. Nothing was changed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} was written by a later version: {why}. Nothing was changed. Start that "
            "version or a later one. To return to this version, replace the server: empty the "
            "whole data directory, and a server of a replica set gets its data from the other "
            "servers"
        )
        self.path = path
        self.why = why


class ForeignDirectory(StorageError):
    """The data directory belongs to another server. Nothing was changed."""

    def __init__(self, directory: str, *, server_id: ServerId, owner: ServerId) -> None:
        super().__init__(
            f"{directory} is the data directory of server {owner}, but this is server "
            f"{server_id}. Nothing was changed. Check whether the wrong volume was mounted or "
            "the directory was copied. Each server needs a directory of its own. A server of "
            "a replica set that has lost its directory starts with an empty one and gets its "
            "data from the other servers"
        )
        self.directory = directory
        self.server_id = server_id
        self.owner = owner


class DirectoryInUse(StorageError):
    """Another process holds the lock on the data directory."""

    def __init__(self, path: str) -> None:
        super().__init__(f"another process uses {path}; each server needs a directory of its own")


class EntryLike(Protocol):
    """Protocol of an entry; `raft.types.Entry` and `StoredEntry` implement it.

    `append` copies `data` once, into the log's cache chunk, and replaces the attribute by a view of
    that copy. This frees the caller's request buffer, and peers are sent the copy.
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
    """An entry as read from the store."""

    term: Term
    index: Index
    kind: int
    data: Buffer
    base_offset: Offset
    records: int
    timestamp: int


@dataclass(slots=True)
class HardState:
    """Term, vote and commit index of one replica (Raft §5.1). `vote` 0 means no vote."""

    term: Term = NO_TERM
    vote: NodeId = NodeId(0)
    commit: Index = NO_INDEX


@dataclass(slots=True)
class MetaBatch:
    """Changes to one log's applied state: the keys that changed up to `applied`.

    A value of None deletes the key. `clear` first drops everything stored for the log.
    """

    log_id: LogId
    applied: Index
    items: Collection[tuple[bytes, bytes | None]]
    """Not modified after construction."""
    clear: bool = False

    def then(self, later: MetaBatch) -> MetaBatch:
        """Return this batch and a later one of the same log merged into one."""
        if later.clear:
            return later
        items = list(dict([*self.items, *later.items]).items())
        return MetaBatch(self.log_id, later.applied, items, clear=self.clear)


@dataclass(slots=True)
class Slices:
    """Result of `read`: `buffers` hold consecutive batches covering [first_offset, end_offset)."""

    buffers: list[Buffer] = field(default_factory=list)
    bytes: int = 0
    first_offset: Offset = Offset(0)
    end_offset: Offset = Offset(0)


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Conditions under which a log begins a new segment."""

    bytes: int
    """Maximum size of a segment; a new one begins before an entry that would exceed it."""
    span_ms: int = -1
    """Maximum timestamp distance from a segment's first entry (ms); -1: no limit."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Extent of a log's compaction. (0, 0): never compacted.

    Of the entries up to `upto`, only the records that `RecordCleaner` keeps remain.
    """

    upto: Index = NO_INDEX
    """Index of the last entry considered."""
    markers_upto: Index = NO_INDEX
    """Deletion markers in entries up to this index are removed too; never above `upto`."""


NOT_COMPACTED = Compaction()


class RecordCleaner(Protocol):
    """Compaction's knowledge of the contents of entries.

    Called in threads of the pool, by one job at a time; one object serves one compaction.

    All entries that still have data are passed to `scan` and then to `clean`, oldest first; other
    entries may be passed too. The result must be a function of the entries alone, so that every
    replica gets the same. Memory for keys is bounded: keys that did not fit are left to the next
    pass.
    """

    def scan(self, entries: Sequence[StoredEntry], *, keys_from: Index) -> Index:
        """Read entries, and collect the keys of those from `keys_from` on.

        These keys supersede earlier records. Return the index of the first entry whose keys did not
        fit, or the index after the last entry. Entries may be passed again.
        """

    def clean(self, entry: StoredEntry, *, markers_upto: Index) -> Buffer | None:
        """Return what remains of an entry's payload (length 0 if nothing); None: all of it."""

    def next_pass(self) -> None:
        """Forget the keys: all entries were cleaned, and other keys follow."""


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """Committed part of one log segment, or of the tail that is in no segment yet."""

    end_offset: Offset
    """Offset after the last record."""
    bytes: int
    max_timestamp: int
    """Largest timestamp of the records (ms); -1 if none has one."""
    last_index: Index = NO_INDEX
    """Index of the last entry."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Limits of the store. Units are bytes unless the name says otherwise."""

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
    """Minimum size of an append that is written directly to its segment and only referenced in the
    journal; 0: never."""
    large_bytes_min: int = 16 << 20
    """Minimum size of an entry that is not copied into the cache. Such an entry counts in none of
    the cache's bounds, and leaves memory as soon as a segment holds it. Where appends are placed,
    it is written to its segment before it is appended: see `Store.write_ahead`."""
    meta_map_bytes: int = 1 << 30
    """Initial size of the memory map for applied state; it grows with the data."""
    scrub_bytes_per_second: int = 4 << 20
    """Rate at which the scrubber continuously reads segments; 0: never."""
    accept_empty: bool = True
    """If True, an empty directory is initialised. If False, it is refused: it may be an unmounted
    mount point."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Write(Protocol):
    """A durable write of the journal."""

    def run(self) -> int:
        """Write and sync all of it; return its bytes. Blocks. Raises OSError."""

    def place(self) -> tuple[int, Sequence[Buffer], int] | None:
        """Return (descriptor, buffers, position) if the kernel can do it: one `pwritev2` with
        `RWF_DSYNC`, and nothing else. None: only `run` does it.

        The file must stay open under this number until the write has ended: with another file
        there, the kernel could write to that one.
        """


class Workers(Protocol):
    """Executor of blocking work. `done` is called on the loop with the result or the exception.

    A real server has one journal thread, one for what the journal needs, one for the segments and a
    small pool. A simulated one runs the same jobs on virtual time. Jobs touch files only through
    `segments.io.fs.FileSystem`.
    """

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run in order with all other journal jobs, one at a time."""

    def write(self, write: Write, done: Callable[[int | BaseException], None]) -> None:
        """Run `write.run` as a journal job, or have the kernel do it.

        No journal job may be waiting or running, and no such write.
        """

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run a write of payloads, beside the journal's jobs, one at a time."""

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run in a bounded pool, in no particular order."""

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run pure computation, in no particular order, never queued behind disk work."""

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run other work that durability depends on: the journal's next file, the list of logs.

        Runs in order, and is delayed neither by reads of bad sectors nor by a long checkpoint.
        """

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run a checkpoint or a removal; there is one at a time.

        Separate from the pool, so that reads of bad sectors cannot delay it and keep memory from
        being freed.
        """

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> Timer:
        """Run `fn` on the loop after `delay_ms`."""


class Log(Protocol):
    """One replica's log: entries `[first_index, last_index]` without gaps, partly committed."""

    @property
    def log_id(self) -> LogId: ...
    @property
    def group_id(self) -> GroupId: ...
    @property
    def replica_number(self) -> ReplicaNumber: ...
    @property
    def first_index(self) -> Index:
        """Index of the oldest entry; `last_index + 1` when the log is empty."""

    @property
    def last_index(self) -> Index: ...
    @property
    def commit_index(self) -> Index: ...
    @property
    def hard_state(self) -> HardState:
        """Hard state as last staged.

        After `open`, as recovered: commit is not above the last entry, and the term is not below
        the last entry's. A crash may have kept the entry but not the term; no vote was given in
        that term then.
        """

    @property
    def applied_index(self) -> Index:
        """Applied index of the last meta checkpoint."""

    @property
    def installed_state(self) -> bytes:
        """State passed to the last `reset_log`, until a checkpoint covers it; empty otherwise.

        A checkpoint covers it once a `MetaBatch` is durable that has `clear`, was collected after
        the reset, and is applied at least up to it. After a crash before that, `open` recovers the
        state, and the owner installs it instead of the result of `load_meta`.
        """

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def next_offset(self) -> Offset:
        """Offset after the last entry."""

    @property
    def lost(self) -> bool:
        """True if recovery proved that this replica lost entries or votes it may have acknowledged.

        It must never vote, acknowledge or serve again.
        """

    @property
    def is_meta_lost(self) -> bool:
        """True if the disk damaged this log's stored state and none of it is left.

        Batches are dropped until one with `clear` writes the complete state again.
        """

    @property
    def compaction(self) -> Compaction:
        """Last compaction completed for the whole log; a later one may be partly done."""

    @property
    def large_bytes(self) -> int:
        """Bytes of this log's large entries that no segment holds yet; see `Store.large_bytes`."""

    @property
    def damaged(self) -> Sequence[tuple[Index, Index]]:
        """Ranges [first, end) of entries found damaged in segments by reads or the scrubber.

        Ascending. Terms and offsets around them are known; reading them raises `EntriesDamaged`.
        Not durable: a read after a restart finds them again.
        """

    def term(self, index: Index) -> Term:
        """Return the term of the entry at `index`, or of the one before `first_index`.

        Always from memory. Raises Compacted or Unavailable.
        """

    def offset_after(self, index: Index) -> Offset:
        """Return the offset after the entry at `index` (also for `first_index - 1`).

        From memory at the end of each term, and from the entry before the oldest cached one on;
        else one Idx is read. Raises CorruptRecord, with the entry as its position, if that Idx is
        damaged (reading the entry from disk rebuilds it), and ReadRefused.
        """

    def entries(self, first: Index, end: Index, bytes_max: int) -> Sequence[EntryLike]:
        """Return entries from the cache: at least one, then ≤ `bytes_max` of payload.

        They are the first of [first, end). Raises Compacted, Unavailable or NotInMemory.
        """

    def read(self, offset: Offset, end_index: Index, bytes_max: int) -> Slices:
        """Return batches from the cache, beginning with the one that contains `offset`.

        None lies beyond entry `end_index` (inclusive, limited to commit). The total is ≤
        `bytes_max` unless the first batch alone is larger (KIP-74). Entries without records are
        skipped. Empty if `offset` is the end. Raises OffsetOutOfRange or NotInMemory.
        """

    def in_memory(self, offset: Offset, end_index: Index, count_max: int) -> list[Buffer]:
        """Return up to `count_max` batches as `read` does, for measurements.

        Empty if the batch with `offset` is not in the cache. Reads no file, and counts neither as a
        hit nor as a miss of the cache.
        """


class Store(Protocol):
    """All logs of one data directory."""

    workers: Workers
    """Executor of the store's blocking work. Readers may use its pool for long work too."""

    @property
    def directory_id(self) -> DirectoryId:
        """16 random bytes assigned when the directory was created."""

    @property
    def logs(self) -> Mapping[LogId, Log]:
        """Existing logs by log id."""

    @property
    def durable_token(self) -> int: ...

    @property
    def unflushed_bytes(self) -> int:
        """Bytes in the cache that no segment holds yet, without large entries.

        Above half the cache's budget, producers should be delayed.
        """

    @property
    def large_bytes(self) -> int:
        """Bytes of large entries that no segment holds yet.

        While this is not 0, senders of further large entries should be delayed. A payload that is
        written ahead counts here once it is appended. Its owner counts it before.
        """

    @property
    def ahead_bytes_min(self) -> int:
        """Size of a payload from which on `write_ahead` should be used."""

    @property
    def flushable_bytes(self) -> int:
        """Unflushed bytes that a flush would free, because their entries are committed.

        Visits each log that has any.
        """

    @property
    def writing_bytes(self) -> int:
        """Bytes of the journal write in progress; 0 if none."""

    @property
    def file_work(self) -> int:
        """0 if neither a checkpoint nor a removal runs; else a number that changes with each step.

        A number that stays the same for long indicates a disk that hangs.
        """

    @property
    def ahead_work(self) -> int:
        """0 if nothing is being written ahead; else a number like `file_work`."""

    @property
    def disk_full(self) -> bool:
        """True if the disk refused a write for lack of space.

        Staged data is safe in the journal or waits to be written. Refused writes are retried each
        second, and the state ends by itself. A reserve is kept for votes and the notes of a
        checkpoint.
        """

    @property
    def accepts_appends(self) -> bool:
        """False while new entries should be refused.

        Entries appended nevertheless are staged, but may wait until there is space, with everything
        after them.
        """

    def entry_room(self, *, is_essential: bool) -> int:
        """Return the bytes of entries that a full disk still accepts.

        For entries that cannot be refused without harm. A part of the reserve is kept for votes and
        notes, and a further part for essential entries.
        """

    def has_room_for(self, size: int) -> bool:
        """Return True if there is space for one more entry of `size` bytes.

        The entry may be larger than a journal file. A staged write refused for lack of space would
        delay everything behind it, votes too. Queries the file system if the files at hand do not
        suffice.
        """

    on_durable: Callable[[int], None]
    """Called on the loop with the largest durable token, after each journal write."""

    on_fatal: Callable[[BaseException], None]
    """Called once when the disk can no longer be trusted."""

    collect_meta: Callable[[Sequence[Log]], list[MetaBatch]]
    """Called on the loop when a checkpoint or a part of one begins. Returns the changes of these
    logs' state machines since the last call."""

    # --- identity -------------------------------------------------------------------------
    @property
    def server_id(self) -> ServerId:
        """Server that owns this directory; `NO_SERVER` if not known."""

    def adopt_server(self, server_id: ServerId) -> None:
        """Assign the directory, whose server is not known, to that server permanently.

        Durable in the background.
        """

    @property
    def boots(self) -> Sequence[Boot]:
        """Last starts of this directory, oldest first.

        The newest one is the present start unless it has ended: then the disk had no space to note
        the present one, and peers must not remember it.
        """

    @property
    def durable_lsn(self) -> int:
        """LSN after the last record known durable in the journal.

        If a start finds the journal's end before it, a record was lost. Never decreases.
        """

    def give_up(self, done: Callable[[], None]) -> None:
        """Retire the data directory, because it lacks data that it once had.

        Marks all existing logs as lost, and gives the directory a new id, because it does not know
        which other logs it created before it lost the data. The logs are lost at once; `done` is
        called on the loop when this is durable.
        """

    def peers_note(self) -> bytes:
        """Return the note that was durable when the store was opened; empty if there was none."""

    def note_peers(self, note: bytes) -> None:
        """Store a note about peers (at most `NOTE_BYTES_MAX`), durable in the background.

        A crash or a full disk may lose it; the owner writes it again.
        """

    def cluster_record(self) -> bytes:
        """Return the cluster's birth record that this directory adopted; empty if none. Opaque."""

    def adopt_cluster(self, record: bytes, done: Callable[[], None]) -> None:
        """Write the birth record, and call `done` once it is durable.

        Blocks until then, unless the identity is being written in the background: then that write
        is followed by another, and `done` is called on the loop. Used only at the cluster's birth.
        """

    def note_moved_votes(self) -> bool:
        """Record durably that only versions that know moved votes may open this directory.

        Use: before a log is deleted that older versions would create again. Return False if there
        is no space for it now. Blocks, once.
        """

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
        """Create an empty log whose first entry will have `first_index`.

        It is durable in `identity` before `on_created` runs on the loop. Calls in one loop turn
        share one write.
        """

    def delete_log(self, log_id: LogId) -> None:
        """Delete the log.

        It leaves `logs` at once and `identity` durably in the background; its files are moved to
        `deleted/` and then removed. Journal replay ignores it from then on.
        """

    # --- staging; nothing is durable until its token is -------------------------------------
    def append(self, log: Log, entries: Sequence[EntryLike]) -> None:
        """Stage consecutive entries that start at or below `last_index + 1`.

        The log is first truncated from there on (never at or below commit).
        """

    def write_ahead(
        self,
        log: Log,
        data: Buffer,
        *,
        timestamp: int,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        """Write the payload of a large entry to its place before the entry is appended.

        It should be the log's next entry, and `data` the same object then; its memory must not
        change, except for its first `CHANGING_BYTES`. This is a hint: an append never depends on
        it, only takes longer without it. No step begins once `is_wanted` returns False. `done` is
        called on a later turn of the loop, also if nothing could be written, unless the store
        closes. One payload a log at a time. A durable one that is not appended stays in memory for
        up to two seconds.
        """

    def set_hard_state(self, log: Log, state: HardState) -> None:
        """Stage term, vote and commit index.

        An advanced commit index also lets entries flow to segments; a commit index alone never
        forces a sync.
        """

    def reset_log(
        self,
        log: Log,
        *,
        first_index: Index,
        prev_term: Term,
        next_offset: Offset,
        state: Buffer = b"",
    ) -> None:
        """Stage the installation of a snapshot.

        Drops every entry, and continues at `first_index` (> commit). `state` (≤
        `INSTALLED_STATE_BYTES_MAX`) is opaque to the store. It is written in the same journal
        record, and `Log.installed_state` returns it until a checkpoint has stored the state that
        the owner built from it.
        """

    def trim_log(self, log: Log, *, first_index: Index) -> None:
        """Stage the removal of every entry below `first_index` (≤ commit + 1), for retention.

        Segments that lie wholly below it are deleted once the record is durable. Not allowed while
        `installed_state` waits for its checkpoint: a crash would need the entries after it. Raises
        CorruptRecord and ReadRefused as `offset_after` does; nothing is staged then.
        """

    def submit(self, *, urgent: bool = True) -> int:
        """Close the staged batch and hand it to the journal writer; return its token.

        Batches closed while a write is in progress are merged into one block. With `urgent=False`
        (only commit indexes moved) the write may wait for the next urgent one or the idle block.
        """

    # --- cold reads, in the pool -------------------------------------------------------------
    def read_cold(
        self,
        log: Log,
        offset: Offset,
        end_index: Index,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
    ) -> None:
        """Read from disk as `Log.read` does from the cache.

        `done` may be called before this returns, if the data was read ahead.
        """

    def entries_cold(
        self,
        log: Log,
        first: Index,
        end: Index,
        bytes_max: int,
        done: Callable[[list[StoredEntry] | StorageError], None],
    ) -> None:
        """Read from disk as `Log.entries` does from the cache."""

    def index_of_offset(
        self, log: Log, offset: Offset, done: Callable[[Index | StorageError], None]
    ) -> None:
        """Find the index of the entry that contains `offset`, or OffsetOutOfRange."""

    def index_of_timestamp(
        self,
        log: Log,
        timestamp_ms: int,
        end_index: Index,
        done: Callable[[Index | StorageError], None],
        *,
        first_index: Index = NO_INDEX,
    ) -> None:
        """Find the first entry whose largest timestamp is ≥ `timestamp_ms`.

        Searches [first_index, end_index]; the result is `end_index + 1` if there is none.
        """

    def set_segment_limits(self, log: Log, limits: SegmentLimits) -> None:
        """Set the conditions under which the log begins a new segment, from the next flush on.

        Not stored: after `open` the store's own segment size applies.
        """

    def expect_reads(self, log: Log, expected: bool) -> None:
        """Set the expectation that consumers read the log here; initially True.

        If False, written data is not kept in the page cache. A `read_cold` sets it to True again.
        """

    def segment_spans(
        self, log: Log, done: Callable[[list[SegmentSpan] | StorageError], None]
    ) -> None:
        """Return the log's segments, oldest first, then the part that no segment holds yet.

        Together they hold everything up to the commit index. For retention, which deletes whole
        segments.
        """

    def written_after(self, since_ns: int) -> int:
        """Return when the first journal write that began at or after `since_ns` was done: what
        was appended then is durable since. 0 if it is not done, or its time is not known any
        more."""

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        """Return (size, writable bytes) of the directory's file system; (-1, -1) if there is none.

        Runs in the pool.
        """

    def compact(
        self,
        log: Log,
        compaction: Compaction,
        make_cleaner: Callable[[], RecordCleaner],
        *,
        pace: Callable[[int], int],
        done: Callable[[bool], None],
    ) -> None:
        """Remove superseded records from the log's segments; one log at a time.

        Indexes, terms, base offsets and the number of offsets of entries stay: an entry of which
        nothing is left has an empty payload. The newest segment is never touched: if entries up to
        `upto` are in it, the log is made to begin another. `done(False)` means it did not finish
        (no space, damage, entries that are in no segment yet) and may be tried again. `pace(n)`
        returns the milliseconds to wait after `n` bytes. The caller's checkpoint holds the state of
        the compacted entries: `upto` is not above `applied_index`.
        """

    def repair(
        self,
        log: Log,
        entries: Sequence[EntryLike],
        done: Callable[[StorageError | None], None],
        *,
        compacted_upto: Index = NO_INDEX,
    ) -> None:
        """Overwrite damaged entries with copies from a replica that has them.

        Each copy must have the index and the term that the log knows, and the position and length
        given by its index segment or its neighbours. It is read back before it counts as good.
        Entries up to `compacted_upto` may come from a log that was compacted further, and be
        smaller; the same compaction will be decided for this log, too. `done` runs on the loop when
        all are durable, or with the error that rules the copies out, or with WriteRefused. Entries
        in no damaged range are ignored.
        """

    # --- meta --------------------------------------------------------------------------------
    def load_meta(self, log: Log) -> tuple[Index, list[tuple[bytes, bytes]]]:
        """Return (applied index, items in key order) of the last checkpoint; (0, []) if none.

        Outdated while the log's `installed_state` is not empty: start from that instead. Raises
        CorruptRecord if a value cannot be trusted: the state must then come from a snapshot or from
        the log, never from a default. Raises ReadRefused.
        """

    # --- lifecycle ---------------------------------------------------------------------------
    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        """Begin a checkpoint now, if none is running.

        Without `done`, only if the last one's notes are durable, so that removals get their turn.
        """

    def close(self, done: Callable[[], None]) -> None:
        """Write the closing block, sync, release the directory; `done` runs on the loop."""

    def stats(self) -> dict[str, float]:
        """Return counters and gauges for metrics.

        Cache bytes and hits, journal blocks and bytes, sync latency, pending bytes, segments.
        """
