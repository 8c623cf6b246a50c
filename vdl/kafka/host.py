"""The server below the front end, as the front end sees it: protocols.

Tests replace that layer by a fake in one thread. Every call returns at once; what takes time calls
back, on the loop. All deadlines are monotonic nanoseconds of the server's clock.

Must not know: requests, connections, the wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ids import GroupId, Offset, ServerId, Term
from segments.api import Slices, StorageError
from vdl.clock import NEVER
from vdl.errors import ErrorCode

if TYPE_CHECKING:
    from rpc.queries import Quorum
    from vdl.logstream.group.state_group import Outcome, StateGroup
    from vdl.records.batch import BatchHeader
    from vdl.state.catalog import Catalog
    from vdl.state.commands import Command

Compute = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""`(job, done)`: run a job elsewhere, and `done` on the loop with its result or exception."""


def at_once(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """`Compute` without threads: for servers that have none."""
    done(job())


class Appended(Protocol):
    """The fate of one append. `error` NOT_LEADER_OR_FOLLOWER: it was never appended."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def base_offset(self) -> Offset: ...
    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def duplicate_timestamp(self) -> int | None:
        """Largest timestamp of the batch as it was first appended; None: it is no duplicate."""


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
        """Of its last marker; -1: there was none."""

    @property
    def first_offset(self) -> Offset:
        """Of its open transaction; -1: none."""


class AbortedRange(Protocol):
    """A transaction whose records are not to be shown to who reads committed ones."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> Offset: ...
    @property
    def last_offset(self) -> Offset:
        """Of the marker that ended it."""


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
    """A subscription that can be taken back."""

    def cancel(self) -> None: ...


class LogStream(Protocol):
    """One partition's replica on this server."""

    @property
    def group_id(self) -> GroupId: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def serving(self) -> bool:
        """Leader, and the first entry of its own term is applied."""

    @property
    def is_proved(self) -> bool:
        """Whether a read needs no `prove` before it."""

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """True: a quorum says that this replica leads."""

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
        """At most the high watermark; no record below it is of an open transaction."""

    def aborted(self, start: Offset, end: Offset) -> Sequence[AbortedRange]:
        """Those of the aborted transactions that may have records in [start, end)."""

    @property
    def aborted_age(self) -> int:
        """While it is the same, `aborted` is complete for whatever was read since it was looked at
        first."""

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
        """`verify` asks the coordinator of the batch's transaction, if it is of one.
        `begins_epoch`: that began a new epoch of its producer (KIP-890)."""

    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> Slices:
        """Committed batches only, or stable ones. Raises NotInMemory, OffsetOutOfRange."""

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
        """`callback` once: the high watermark is above `offset`, or what is stable ends above
        `stable_offset`, or leadership changed. `NEVER`: this is not waited for."""

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...

    def segment_starts(
        self, done: Callable[[list[tuple[Offset, int]] | StorageError], None]
    ) -> None:
        """Of each segment, oldest first: its first offset that is not deleted, and the largest
        timestamp up to its end (ms)."""

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        """`done` gets the epoch in which the log's start was written; -1: unknown."""

    def producers(self) -> Iterable[ActiveProducer]:
        """The idempotent producers that the partition remembers, by id."""

    def stored_bytes(self, done: Callable[[int | StorageError], None]) -> None:
        """How many bytes of the log's committed entries this replica keeps."""

    def offset_for_time(
        self, timestamp_ms: int, done: Callable[[TimedOffset | StorageError], None]
    ) -> None:
        """The first record at or after the time (ms since 1970)."""

    def offset_of_largest_time(self, done: Callable[[TimedOffset | StorageError], None]) -> None:
        """The first record with the largest timestamp of all (KIP-734)."""

    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Delete everything below `offset`, -1 for everything committed (KIP-107)."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, Offset]:
        """(largest epoch ≤ `epoch`, where it ends); (`epoch`, log start) when that is deleted;
        (-1, -1) when `epoch` is above all there are (KIP-101)."""


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
        """When any group last lost its leader because that server failed (monotonic ns); 0:
        never."""

    def leader_of(self, group_id: GroupId) -> tuple[ServerId, Term]:
        """(server id or -1, term or -1), the freshest this server knows."""

    def stream(self, group_id: GroupId) -> LogStream | None:
        """The partition replica here."""

    def state_group(self, group_id: GroupId) -> StateGroup | None:
        """The catalog or coordinator replica here."""

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        """(size, bytes that can still be written) of the disk; (-1, -1) where there is none."""

    def propose_catalog(
        self,
        command: Command,
        *,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """From any server; `done` once the command is applied here, or fails."""

    def elect_preferred(
        self,
        leader: ServerId,
        groups: Sequence[GroupId],
        *,
        deadline_ns: int,
        done: Callable[[frozenset[GroupId] | None], None],
    ) -> None:
        """Ask the server that leads these groups to hand them to the first replicas of their
        placements. `done` gets those that it does not hand over; None: it has not said of all, and
        may have handed over any."""

    def describe_quorum(self, *, deadline_ns: int, done: Callable[[Quorum | None], None]) -> None:
        """The catalog's members in its leader's eyes; None: nobody leads it, or has not said."""

    def alive_servers(self) -> list[ServerId]: ...

    def takes_large_batches(self) -> bool:
        """Whether every server of the set is linked and takes batches that are large."""

    @property
    def large_bytes(self) -> int:
        """Bytes of large batches here that no segment holds yet."""

    def silent_servers(self) -> set[ServerId]:
        """Those whose link was lost and that may be alive: nobody refused to be dialled."""

    def agreed_ms(self) -> int:
        """What time it is (ms since 1970), as far as a majority of the servers' clocks agree."""

    def in_sync_of(self, group_id: GroupId) -> tuple[ServerId, ...]:
        """The servers whose replicas are in sync, as the group's leader last reported."""

    def in_sync_under(self, group_id: GroupId, led: tuple[ServerId, Term]) -> tuple[ServerId, ...]:
        """The same, for who knows already what `leader_of` says."""

    def may_serve_reads(self, group_id: GroupId) -> bool:
        """Whether consumers may read from the replica here though it does not lead (KIP-392)."""

    def read_replica(self, group_id: GroupId, rack: str, offset: Offset) -> ServerId:
        """The server that consumers in this rack are to read a partition from that is led here;
        -1: from here."""

    def lost_leader(self, group_id: GroupId) -> tuple[int, ServerId]:
        """When the group lost its leader because that server failed (monotonic ns), and the
        server; (0, 0): not recently."""

    def confirm_links(self, done: Callable[[bool], None]) -> None:
        """`done`, later, when `alive_servers` and `leader_of` are certain again; True: a majority
        of the servers answered."""

    @property
    def overloaded(self) -> bool:
        """Too many entries wait for their segments: no Produce is started now."""

    def coordinator_group(self, key: str) -> GroupId: ...

    def command_group(
        self,
        group_id: GroupId,
        data: bytes,
        *,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """Have a coordinator's or a partition's leader apply a command, wherever it is; `done` gets
        a `CommandAnswer` then."""
