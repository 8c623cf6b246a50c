"""The named limits of the log-stream layer, one frozen object built from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from vdl.clock import MS

TICK_NS = 10 * MS
"""The unit of every Raft timer: 10 ms."""

LARGE_BATCH_BYTES = 16 << 20
"""A batch beyond it is large: servers of before take none, so none is appended beside one."""

LARGE_LED_BYTES_MAX = 160 << 20
"""Of large batches in memory and in no segment, with one more that a leader is to append: one, if
it is one of the largest."""

COMMANDS_BYTES = 1 << 20
"""Commands and markers that a leader takes beyond `uncommitted_bytes_max`: what makes room, ends a
transaction or moves a replica does not wait until producers leave room."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Limits of one host. Ticks are `TICK_NS` long, bytes are payload bytes."""

    heartbeat_ticks: int = 10
    election_ticks: int = 60
    message_bytes_max: int = 1 << 20
    apply_bytes_max: int = 8 << 20
    uncommitted_bytes_max: int = 32 << 20
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 8 << 20
    held_appends_max: int = 1_000
    """Appends one log stream keeps waiting for its own-term entry, a transfer or room."""

    early_messages_max: int = 4_096
    """Raft messages kept for groups that the catalog here does not have yet."""

    early_snapshot_bytes_max: int = 16 << 20
    """Snapshots among them: two of the largest in one piece. Others are sent again."""

    cold_read_bytes: int = 1 << 20
    command_entries_kept: int = 10_000
    """Entries behind the last checkpoint that the catalog's and the coordinators' logs keep, for
    followers that were away; a log is cut when it has twice as many."""

    encoded_items_per_turn: int = 500
    """Of a coordinator's state, for a snapshot: some three milliseconds. One that is not larger is
    encoded at once."""

    replica_lag_max_ms: int = 30_000
    """`replica.lag.time.max.ms`: a replica that lags for longer is not in sync."""

    uncopied_max: int = 10_000
    """Acknowledgements of one log stream that wait for more copies than a majority's."""

    catch_up_bytes_per_second: int = 64 << 20
    """How fast followers far behind are fed from disk, all of them together."""

    replace_after_ms: int = 5_000
    """How long a server must have been back with a new, empty data directory before its old one is
    given up."""

    retention_check_ms: int = 30_000
    """How often a leader looks for records that retention no longer keeps."""

    compaction_check_ms: int = 15_000
    """How often a leader looks whether a compacted partition has enough that is superseded."""

    producer_expiration_ms: int = 86_400_000
    """`producer.id.expiration.ms`: how long an idle producer's sequence numbers are remembered."""

    producer_expiration_check_ms: int = 600_000
    """`producer.id.expiration.check.interval.ms`: how often idle producers are looked for. A
    partition's log gets at most one command in each."""

    clock_hold_ms: int = 3_600_000
    """How long the clocks of a majority must have agreed on a time before anything is deleted by
    it: after a start, after clocks were set forward together, after the machines slept."""

    failover_ticks_min: int = 1
    failover_ticks_max: int = 5
    """A refused link makes the first follower campaign after the one, the last after the other:
    further apart than a round of messages and a sync, or both are candidates."""

    elections_max: int = 256
    """Campaigns of partitions that this server has under way at a time; others wait their turn."""

    openings_per_turn: int = 200
    """Replicas of partitions that are opened in one turn of the loop."""

    disk_patience_ms: int = 3_000
    """A leader whose journal write takes longer hands its leaderships over."""

    transfer_stop_ms: int = 1_200
    """How long a stopping server waits for its leaderships to move."""

    @property
    def patience_ns(self) -> int:
        """`replace_after_ms`, but long enough for a leader that hears no majority any more to have
        noticed: two of the longest election timeouts."""
        return max(self.replace_after_ms * MS, 4 * self.election_ticks * TICK_NS)
