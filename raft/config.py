"""Configuration of one node of one group.

The defaults behave exactly as etcd's raft. The last six settings are VDL's own: they change when
messages leave, not their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ids import NO_INDEX, Index, NodeId
from raft.errors import InvalidConfig
from raft.types import NO_LIMIT, NONE, ReadOnlyOption, Storage


def _everybody(_peer: NodeId) -> bool:
    return True


def _just_now(_peer: NodeId) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a `RawNode`. Raises InvalidConfig."""

    id: NodeId
    election_ticks: int
    """Ticks without a leader before a follower campaigns; at random up to twice that (§5.2)."""
    heartbeat_ticks: int
    storage: Storage
    rng: Random
    """Only source of randomness: election timeouts."""
    applied: Index = NO_INDEX
    """Last index already applied; 0 if only the storage's snapshot is applied."""

    pre_vote: bool = False
    """Query voters before campaigning, so that an isolated node does not raise the term (§9.6)."""
    check_quorum: bool = False
    """A leader that does not hear from a quorum steps down; voters with a live leader ignore
    candidates (thesis §6.2, §4.2.3)."""
    async_storage_writes: bool = False
    """A Ready carries MsgStorageAppend and MsgStorageApply; `advance` is not used."""
    read_only_option: ReadOnlyOption = ReadOnlyOption.SAFE
    disable_proposal_forwarding: bool = False
    """A follower refuses proposals instead of forwarding them to its leader."""
    disable_conf_change_validation: bool = False
    """Append membership changes without checks. For hosts that check them on apply."""
    step_down_on_removal: bool = False
    """A leader that applies its own removal or demotion becomes a follower."""

    max_size_per_msg: int = NO_LIMIT
    """Bytes of entries in one MsgApp, unless the first entry is larger."""
    max_committed_size_per_ready: int = 0
    """Bytes of entries given out for applying and not yet applied; 0: as max_size_per_msg."""
    max_uncommitted_entries_size: int = NO_LIMIT
    """Bytes of payload a leader has appended and not applied; beyond it proposals are dropped."""
    max_inflight_msgs: int = 256
    """MsgApps with entries in flight to one peer."""
    max_inflight_bytes: int = NO_LIMIT
    """Bytes of payload in flight to one peer; one message may exceed it."""

    quiet_heartbeats: bool = False
    """Send MsgHeartbeat only to peers that are out of step, at the earliest a whole interval after
    they were in step. The host proves liveness by other means and reports it with `leader_heard`
    and `peer_heard`."""
    is_linked: Callable[[NodeId], bool] = _everybody
    """With `quiet_heartbeats`: return True if the host can send to a peer now. Called when
    heartbeats are due: it avoids lost heartbeats for each group of a server that is down. When a
    peer becomes reachable again, the host must query `ticks_until_due` again."""
    heard_ago: Callable[[NodeId], int] = _just_now
    """With `quiet_heartbeats`: return the age in ticks of the newest data from the host that the
    peer is known to have read. A peer gets no further heartbeat before it has read something that
    was sent later."""
    batch_appends: bool = False
    """Defer MsgApps, and merge acknowledgements, to the next Ready: entries and commits of one turn
    leave in one message per peer."""
    commit_apart: bool = False
    """With `batch_appends`: send no MsgApp for a commit index alone. Entries carry it along. If
    none follow, the host obtains MsgCommits with `tell_commit` when it chooses."""
    durable_campaign: bool = False
    """With asynchronous storage writes, request votes only once the replica's own term and vote,
    and the log the request describes, are durable here (Figure 2). Otherwise a crash may take the
    elected replica back to before its candidacy: it could lead the same term again with other
    entries, and a vote given to a log that is lost could be counted for what is left of it."""

    def __post_init__(self) -> None:
        """Raise InvalidConfig if the settings cannot work."""
        _require(self.id > NONE, "id", "must be greater than 0")
        _require(self.heartbeat_ticks > 0, "heartbeat_ticks", "must be greater than 0")
        _require(
            self.election_ticks > self.heartbeat_ticks,
            "election_ticks",
            "must be greater than heartbeat_ticks",
        )
        _require(
            self.async_storage_writes or not self.durable_campaign,
            "durable_campaign",
            "requires async_storage_writes",
        )
        _require(self.max_size_per_msg >= 0, "max_size_per_msg", "must not be negative")
        _require(
            self.max_committed_size_per_ready >= 0,
            "max_committed_size_per_ready",
            "must not be negative",
        )
        _require(
            self.max_uncommitted_entries_size > 0,
            ("max_uncommitted_entries_size"),
            "must be greater than 0",
        )
        _require(self.max_inflight_msgs > 0, "max_inflight_msgs", "must be greater than 0")
        _require(
            self.max_inflight_bytes >= self.max_size_per_msg or self.max_inflight_bytes == NO_LIMIT,
            "max_inflight_bytes",
            "must be at least max_size_per_msg",
        )
        _require(
            self.read_only_option is not ReadOnlyOption.LEASE_BASED or self.check_quorum,
            "read_only_option",
            "LEASE_BASED requires check_quorum",
        )


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidConfig(field, rule)
