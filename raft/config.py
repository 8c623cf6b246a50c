"""Settings of one node of one group.

The defaults behave exactly as etcd's raft does. The last five settings are VDL's own: they change
when messages leave, never what they mean.
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
    """A follower that hears nothing for this long, up to twice this long, campaigns (§5.2)."""
    heartbeat_ticks: int
    storage: Storage
    rng: Random
    """The only source of randomness: randomized election timeouts."""
    applied: Index = NO_INDEX
    """Last index already applied; 0 if the storage's snapshot is all there is."""

    pre_vote: bool = False
    """Ask before campaigning, so that a cut-off node does not raise the term (thesis §9.6)."""
    check_quorum: bool = False
    """A leader that does not hear from a quorum steps down; voters with a live leader do not
    listen to candidates (thesis §6.2, §4.2.3)."""
    async_storage_writes: bool = False
    """Ready carries MsgStorageAppend and MsgStorageApply; there is no `advance`."""
    read_only_option: ReadOnlyOption = ReadOnlyOption.SAFE
    disable_proposal_forwarding: bool = False
    """A follower refuses proposals instead of passing them to its leader."""
    disable_conf_change_validation: bool = False
    """Let membership changes into the log unchecked. For hosts that check at apply."""
    step_down_on_removal: bool = False
    """A leader that applies its own removal or demotion becomes a follower."""

    max_size_per_msg: int = NO_LIMIT
    """Bytes of entries in one MsgApp, unless the first entry is larger."""
    max_committed_size_per_ready: int = 0
    """Bytes of entries given out for applying and not yet applied; 0: as max_size_per_msg."""
    max_uncommitted_entries_size: int = NO_LIMIT
    """Bytes of payload a leader has appended and not seen applied; beyond it, proposals drop."""
    max_inflight_msgs: int = 256
    """MsgApps with entries sent to one peer and not answered."""
    max_inflight_bytes: int = NO_LIMIT
    """Bytes of payload sent to one peer and not answered; one message may go beyond."""

    quiet_heartbeats: bool = False
    """Send MsgHeartbeat only to peers out of step, and a whole interval after they were in it at
    the earliest: the host proves life by other means, and tells with `leader_heard` and
    `peer_heard`."""
    is_linked: Callable[[NodeId], bool] = _everybody
    """With `quiet_heartbeats`: whether the host could send to a peer now. Asked when heartbeats are
    due; to others they would be lost, for each group of a server that is gone. When a peer can be
    sent to again, `ticks_until_due` is to be asked anew."""
    heard_ago: Callable[[NodeId], int] = _just_now
    """With `quiet_heartbeats`: ticks since the host sent the newest of what it knows that the peer
    has read. A peer is not asked again before it has read something that was sent later."""
    batch_appends: bool = False
    """Put off MsgApps, and fold acknowledgements, to the next Ready: what one turn proposed and
    committed leaves in one message a peer."""
    commit_apart: bool = False
    """With `batch_appends`: no MsgApp for a commit index alone. Entries bring it along; where none
    follow the host has MsgCommits made with `tell_commit`, in its own time."""
    durable_campaign: bool = False
    """With asynchronous storage writes, ask for votes only once the own term and vote, and the log
    they are asked for, are durable here (Figure 2). Else the others may elect a replica that a
    crash takes back to before its candidacy: it may lead the same term again, with other entries,
    and a vote given for a log that is lost may be counted for what is left of it."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _require(self.id > NONE, "id", "must be above 0")
        _require(self.heartbeat_ticks > 0, "heartbeat_ticks", "must be above 0")
        _require(
            self.election_ticks > self.heartbeat_ticks,
            "election_ticks",
            "must be above heartbeat_ticks",
        )
        _require(
            self.async_storage_writes or not self.durable_campaign,
            "durable_campaign",
            "needs asynchronous storage writes",
        )
        _require(self.max_size_per_msg >= 0, "max_size_per_msg", "must not be negative")
        _require(
            self.max_committed_size_per_ready >= 0,
            "max_committed_size_per_ready",
            "must not be negative",
        )
        _require(
            self.max_uncommitted_entries_size > 0, "max_uncommitted_entries_size", "must be above 0"
        )
        _require(self.max_inflight_msgs > 0, "max_inflight_msgs", "must be above 0")
        _require(
            self.max_inflight_bytes >= self.max_size_per_msg or self.max_inflight_bytes == NO_LIMIT,
            "max_inflight_bytes",
            "must not be below max_size_per_msg",
        )
        _require(
            self.read_only_option is not ReadOnlyOption.LEASE_BASED or self.check_quorum,
            "read_only_option",
            "lease-based needs check_quorum",
        )


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidConfig(field, rule)
