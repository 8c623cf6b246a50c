"""Protocols of the server below the front end.

Tests replace that layer by a fake in one thread. Every call returns at once; work that takes time
calls back, on the loop. All deadlines are monotonic nanoseconds of the server's clock.

Does not depend on requests, connections or the wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ids import GroupId, NodeId, Offset, ServerId, Term
from segments.api import Slices, StorageError
from vdl.clock import NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group.measures import TopicTraffic

if TYPE_CHECKING:
    from rpc.queries import Quorum
    from vdl.logstream.group.state_group import Outcome, StateGroup
    from vdl.records.batch import BatchHeader
    from vdl.state.catalog import Catalog
    from vdl.state.commands import Command

Compute = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""`(job, done)`: run a job elsewhere, and `done` on the loop with its result or exception."""


def at_once(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Run `job` at once: `Compute` without threads."""
    done(job())


class Appended(Protocol):
    """Outcome of one append. `error` NOT_LEADER_OR_FOLLOWER: it was never appended."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def base_offset(self) -> Offset: ...
    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def duplicate_timestamp(self) -> int | None:
        """Largest timestamp of the batch as it was first appended; None: it is no duplicate."""

    @property
    def term(self) -> Term:
        """Term in which it was appended; NO_TERM if it was not acknowledged."""

    @property
    def acked_by(self) -> NodeId:
        """Replica whose acknowledgement was the last that it needed; NONE if there was none."""

    @property
    def appended_ns(self) -> int:
        """Time of the append, if the batch was held before; otherwise 0."""


class ActiveProducer(Protocol):
    """An idempotent producer, as far as its batches are applied here."""

    @property
    def producer_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def last_timestamp(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int:
        """Coordinator epoch of its last marker; -1: there was none."""

    @property
    def first_offset(self) -> Offset:
        """First offset of its open transaction; -1: none."""


class AbortedRange(Protocol):
    """An aborted transaction, whose records are hidden from READ_COMMITTED readers."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> Offset: ...
    @property
    def last_offset(self) -> Offset:
        """Offset of the marker that ended it."""


Verify = Callable[[Callable[[ErrorCode], None]], None]
"""See `vdl.logstream.group.appends.Verify`."""


class TimedOffset(Protocol):
    """A record's offset, its timestamp, and the epoch it was written in; offset -1 for none."""

    @property
    def offset(self) -> Offset: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class Wait(Protocol):
    """A subscription that can be cancelled."""

    def cancel(self) -> None: ...


class LogStream(Protocol):
    """One partition's replica on this server."""

    traffic: TopicTraffic

    @property
    def group_id(self) -> GroupId: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def serving(self) -> bool:
        """True if it leads, and the first entry of its own term is applied."""

    @property
    def is_proved(self) -> bool:
        """True if a read needs no `prove` before it."""

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Confirm leadership; `done` receives True if a quorum confirmed that this replica
        leads."""

    @property
    def term(self) -> Term:
        """Kafka's leader epoch of the partition."""

    @property
    def leader_server(self) -> ServerId: ...
    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def high_watermark(self) -> Offset: ...
    @property
    def last_stable_offset(self) -> Offset:
        """At most the high watermark; no record below it belongs to an open transaction."""

    def aborted(self, start: Offset, end: Offset) -> Sequence[AbortedRange]:
        """Return the aborted transactions that may have records in [start, end)."""

    @property
    def aborted_age(self) -> int:
        """Age of the list of aborted transactions. While it is unchanged, `aborted` is complete for
        all records read since the age was first read."""

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None = None,
        begins_epoch: bool = False,
    ) -> None:
        """Append a batch. `verify` queries the coordinator of the batch's transaction, if any.
        `begins_epoch`: the transaction began a new epoch of its producer (KIP-890)."""

    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> Slices:
        """Read committed batches only, or stable ones. Raises NotInMemory, OffsetOutOfRange."""

    def read_cold(
        self,
        offset: Offset,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
        *,
        stable: bool = False,
    ) -> None: ...

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> Wait:
        """Call `callback` once: when the high watermark is above `offset`, or the last stable
        offset above `stable_offset`, or leadership changed. `NEVER` for either: not waited for."""

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...

    def segment_starts(
        self, done: Callable[[list[tuple[Offset, int]] | StorageError], None]
    ) -> None:
        """Report each segment, oldest first: its first offset that is not deleted, and the largest
        timestamp up to its end (ms)."""

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        """Call `done` with the epoch in which the log's start was written; -1: unknown."""

    def producers(self) -> Iterable[ActiveProducer]:
        """Return the idempotent producers that the partition remembers, by id."""

    def stored_bytes(self, done: Callable[[int | StorageError], None]) -> None:
        """Report the bytes of the log's committed entries that this replica keeps."""

    def offset_for_time(
        self, timestamp_ms: int, done: Callable[[TimedOffset | StorageError], None]
    ) -> None:
        """Find the first record at or after the time (ms since 1970)."""

    def offset_of_largest_time(self, done: Callable[[TimedOffset | StorageError], None]) -> None:
        """Find the first record with the largest timestamp of all (KIP-734)."""

    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Delete everything below `offset`, -1 for everything committed (KIP-107)."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, Offset]:
        """Return (largest epoch ≤ `epoch`, its end); (`epoch`, log start) if that is deleted;
        (-1, -1) if `epoch` is larger than all epochs (KIP-101)."""


class Host(Protocol):
    """This server, seen from the front end."""

    @property
    def server_id(self) -> ServerId: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def catalog(self) -> Catalog:
        """The applied catalog of this server; read only."""

    @property
    def coordinator_count(self) -> int: ...
    @property
    def leader_lost_ns(self) -> int:
        """Time at which any group last lost its leader because that server failed (monotonic ns);
        0: never."""

    @property
    def unled_ns(self) -> int:
        """Time at which any group was last left without a leader (monotonic ns); 0: never."""

    def leader_of(self, group_id: GroupId) -> tuple[ServerId, Term]:
        """Return (server id or -1, term or -1), the newest this server knows."""

    def stream(self, group_id: GroupId, /) -> LogStream | None:
        """Return the partition replica here."""

    def state_group(self, group_id: GroupId, /) -> StateGroup | None:
        """Return the catalog or coordinator replica here."""

    def written_after(self, since_ns: int) -> int:
        """Return when what was appended here at `since_ns` (monotonic ns) was on this server's
        disk; 0 if it is not yet, or not known any more."""

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        """Report (size, bytes that can still be written) of the disk; (-1, -1) if unknown."""

    def propose_catalog(
        self,
        command: Command,
        *,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """Propose from any server; `done` is called once the command is applied here, or fails."""

    def elect_preferred(
        self,
        leader: ServerId,
        groups: Sequence[GroupId],
        *,
        deadline_ns: int,
        done: Callable[[frozenset[GroupId] | None], None],
    ) -> None:
        """Request that the server that leads these groups transfers them to the preferred leaders
        of their placements. `done` receives the groups that it does not transfer; None: it did not
        answer for all of them, and may have transferred any."""

    def describe_quorum(self, *, deadline_ns: int, done: Callable[[Quorum | None], None]) -> None:
        """Report the catalog's members as its leader sees them; None: it has no leader, or the
        leader did not answer."""

    def alive_servers(self) -> list[ServerId]: ...

    def takes_large_batches(self) -> bool:
        """Return True if every server of the set is linked and accepts large batches."""

    @property
    def large_bytes(self) -> int:
        """Bytes of large batches here that no segment holds yet."""

    def silent_servers(self) -> set[ServerId]:
        """Return servers that lost their link and may be alive: no dial was refused."""

    def agreed_ms(self) -> int:
        """Return the time (ms since 1970) on which a majority of the servers' clocks agree."""

    def in_sync_of(self, group_id: GroupId) -> tuple[ServerId, ...]:
        """Return the servers with in-sync replicas, as the group's leader last reported."""

    def in_sync_under(self, group_id: GroupId, led: tuple[ServerId, Term]) -> tuple[ServerId, ...]:
        """Return the same, for callers that already know the result of `leader_of`."""

    def may_serve_reads(self, group_id: GroupId) -> bool:
        """Return True if consumers may read from the replica here though it does not lead
        (KIP-392)."""

    def read_replica(self, group_id: GroupId, rack: str, offset: Offset) -> ServerId:
        """Return the server from which consumers in this rack should read a partition that is led
        here; -1: from this one."""

    def lost_leader(self, group_id: GroupId) -> tuple[int, ServerId]:
        """Return when the group lost its leader because that server failed (monotonic ns), and the
        server; (0, 0): not recently."""

    def confirm_links(self, done: Callable[[bool], None]) -> None:
        """Call `done`, later, when `alive_servers` and `leader_of` are certain again. True: a
        majority of the catalog's voters answered."""

    @property
    def overloaded(self) -> bool:
        """True if too many entries wait for their segments: no Produce is started now."""

    @property
    def awaited_disk_ns(self) -> int:
        """Time at which responses to entries last began to wait for the disk; 0: never."""

    def coordinator_group(self, key: str) -> GroupId: ...

    def command_group(
        self,
        group_id: GroupId,
        data: bytes,
        *,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """Send a command to the leader of a coordinator or a partition, on any server, to be
        applied; `done` then receives a `CommandAnswer`."""
