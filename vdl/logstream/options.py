"""Named limits of the log-stream layer, as one frozen object built from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from vdl.clock import MS

TICK_NS = 10 * MS
"""Unit of every Raft timer: 10 ms."""

LARGE_BATCH_BYTES = 16 << 20
"""Batches beyond this size are large. Servers of older versions take none, so a leader appends none
while such a server is linked."""

LARGE_LED_BYTES_MAX = 160 << 20
"""Maximum bytes of large batches in memory and in no segment, including the next one a leader
appends: room for a single one of the largest."""

COMMANDS_BYTES = 1 << 20
"""Bytes of commands and markers that a leader takes beyond `uncommitted_bytes_max`: entries that
free space, end a transaction or move a replica do not wait until producers leave room."""


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
    """Maximum number of appends that one log stream holds while it waits for its own-term entry, a
    transfer or room."""

    early_messages_max: int = 4_096
    """Maximum number of Raft messages kept for groups that are not in the catalog here yet."""

    early_snapshot_bytes_max: int = 16 << 20
    """Maximum bytes of snapshots among them: two of the largest in one piece. Others are sent
    again."""

    cold_read_bytes: int = 1 << 20
    command_entries_kept: int = 10_000
    """Entries behind the last checkpoint that the catalog's and the coordinators' logs keep, for
    followers that were away; a log is cut when it has twice as many."""

    encoded_items_per_turn: int = 500
    """Items of a coordinator's state that are encoded in a turn for a snapshot: some three
    milliseconds. A state that is not larger is encoded at once."""

    replica_lag_max_ms: int = 30_000
    """`replica.lag.time.max.ms`: a replica that lags for longer is not in sync."""

    uncopied_max: int = 10_000
    """Maximum number of acknowledgements of one log stream that wait for more copies than a
    majority's."""

    catch_up_bytes_per_second: int = 64 << 20
    """Rate at which followers far behind are fed from disk, all of them together."""

    replace_after_ms: int = 5_000
    """Time for which a server must have been back with a new, empty data directory before its old
    one is retired."""

    retention_check_ms: int = 30_000
    """Interval at which a leader looks for records that retention no longer keeps."""

    compaction_check_ms: int = 15_000
    """Interval at which a leader checks if a compacted partition has enough superseded records."""

    producer_expiration_ms: int = 86_400_000
    """`producer.id.expiration.ms`: how long an idle producer's sequence numbers are remembered."""

    producer_expiration_check_ms: int = 600_000
    """`producer.id.expiration.check.interval.ms`: interval of the search for idle producers. A
    partition's log gets at most one command in each."""

    clock_hold_ms: int = 3_600_000
    """Time for which the clocks of a majority must have agreed on a time before anything is deleted
    by it: after a start, after clocks were set forward together, after the machines slept."""

    failover_ticks_min: int = 1
    failover_ticks_max: int = 5
    """Delays of the first and the last follower to campaign after a refused link. They differ by
    more than a round of messages and a sync; otherwise both would be candidates."""

    elections_max: int = 256
    """Maximum number of partition campaigns that this server has under way; others wait their
    turn."""

    openings_per_turn: int = 200
    """Maximum number of partition replicas that are opened in one turn of the loop."""

    disk_patience_ms: int = 3_000
    """Time after which a leader whose journal write is not done transfers its leaderships."""

    transfer_stop_ms: int = 1_200
    """Time for which a stopping server waits for its leaderships to move."""

    @property
    def patience_ns(self) -> int:
        """`replace_after_ms`, or two of the longest election timeouts if that is longer.

        A leader that hears no majority any more has noticed it by then.
        """
        return max(self.replace_after_ms * MS, 4 * self.election_ticks * TICK_NS)
