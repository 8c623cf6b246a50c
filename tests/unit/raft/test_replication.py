"""Replication and commitment: §5.3, §5.4.2, and flow control (thesis §10.2.1)."""

from __future__ import annotations

import pytest

from raft.errors import DropReason, ProposalDropped
from raft.messages import MsgApp, MsgAppResp, MsgHeartbeat, MsgProp, MsgVoteResp
from raft.progress import (
    PROBE,
    REPLICATE,
    ROUNDS_BETWEEN_MAX,
    SNAPSHOT,
    TRIES_MAX,
    Inflights,
    Progress,
)
from raft.types import ENTRY_OVERHEAD_BYTES, Entry, EntryKind
from tests.unit.raft.network import Network


def appends(network: Network, node: int) -> list[MsgApp]:
    """Return the MsgApps of a node's next Ready; they are in flight after that."""
    sent = network.hosts[node].take_ready()
    network.messages += sent
    return [m for m in sent if isinstance(m, MsgApp)]


def follower(*terms: int, commit: int = 1) -> Network:
    """Return node 2 with entries of these terms from index 2 on, and nothing to send."""
    network = Network()
    log = [Entry(term, index) for index, term in enumerate(terms, 2)]
    network.step(MsgApp(2, 1, max(terms, default=1), 1, 1, log, commit))
    network.hosts[2].take_ready()
    return network


def answer(network: Network) -> MsgAppResp:
    """Return the answer of node 2."""
    [message] = network.hosts[2].take_ready()
    assert isinstance(message, MsgAppResp)
    return message


def test_proposal_is_appended_and_sent_to_everybody_in_parallel() -> None:
    """§5.3: append to the own log, then send AppendEntries to each of the others."""
    network = Network()
    leader = network.elect(1)
    [entry] = network.propose(b"x")
    assert (entry.term, entry.index) == (1, leader.last_index)
    sent = appends(network, 1)
    assert [(m.to, m.index, m.log_term, m.entries) for m in sent] == [
        (2, 2, 1, [entry]),
        (3, 2, 1, [entry]),
    ]


def test_entry_is_committed_once_a_majority_has_it() -> None:
    """§5.3: committed when stored on a majority; then applied."""
    network = Network(5)
    network.elect(1)
    network.isolate(4, 5)
    [entry] = network.propose(b"x")
    network.settle()
    assert network.node(1).commit == entry.index
    assert network.hosts[1].applied[-1] is entry


def test_entry_without_a_majority_is_not_committed() -> None:
    """§5.3: two of five are not a majority."""
    network = Network(5)
    network.elect(1)
    network.isolate(3, 4, 5)
    [entry] = network.propose(b"x")
    network.settle()
    assert network.node(1).commit == entry.index - 1


def test_leader_counts_itself_only_after_its_own_disk() -> None:
    """Thesis §10.2.1: written in parallel, counted when durable."""
    network = Network(async_storage_writes=True)
    network.elect(1)
    network.isolate(3)
    [entry] = network.propose(b"x")
    network.collect(1)
    network.deliver()
    network.settle(2)
    network.deliver(len(network.messages) - 1)
    assert network.node(1).progress(2).match == entry.index  # type: ignore[union-attr]
    assert network.node(1).commit == entry.index - 1
    network.storage_step(1)
    assert network.node(1).commit == entry.index


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """§5.4.2, Figure 8: only entries of the own term commit by counting replicas."""
    network = Network()
    network.elect(1)
    network.isolate(2, 3)
    [old] = network.propose(b"old")
    network.settle()
    network.crash(1)
    leader = network.node(1)
    leader.campaign()
    network.collect(1)
    network.step(MsgVoteResp(1, 2, leader.term))
    assert leader.is_leader
    assert old.index == leader.last_index - 1
    network.step(MsgAppResp(1, 2, leader.term, old.index))
    network.collect(1)
    assert leader.commit == old.index - 1
    network.step(MsgAppResp(1, 2, leader.term, old.index + 1))
    assert leader.commit == old.index + 1


def test_followers_learn_the_commit_index_and_apply() -> None:
    """§5.3: once a follower learns that an entry is committed it applies it, in log order."""
    network = Network()
    network.elect(1)
    proposed = network.propose(b"a", b"b")
    network.settle()
    for node in (1, 2, 3):
        assert network.hosts[node].applied[-2:] == proposed


def test_follower_without_the_previous_entry_refuses() -> None:
    """§5.3: the consistency check."""
    network = follower(1)
    network.step(MsgApp(2, 1, 1, 1, 5, [Entry(1, 6)], 1))
    refusal = answer(network)
    assert refusal.reject
    assert (refusal.index, refusal.reject_hint, refusal.log_term) == (5, 2, 1)


def test_follower_with_another_term_there_refuses_and_hints_past_it() -> None:
    """§5.3, last paragraph: the follower names the last index where the logs may agree."""
    network = follower(1, 3, 3, 3)
    network.step(MsgApp(2, 1, 4, 2, 5, [Entry(4, 6)], 1))
    refusal = answer(network)
    assert refusal.reject
    assert (refusal.reject_hint, refusal.log_term) == (2, 1)


def test_leader_skips_a_term_at_a_time() -> None:
    """§5.3: with the hint's term the leader bypasses all its entries of higher terms."""
    network = Network()
    leader = network.elect(1)
    network.propose(b"a", b"b", b"c")
    network.settle()
    leader.report_unreachable(2)
    progress = leader.progress(2)
    assert progress is not None
    progress.match, progress.next = 0, 6
    leader.step(MsgAppResp(1, 2, 1, 5, reject=True, reject_hint=4, log_term=0))
    assert progress.next == 5


def test_conflicting_suffix_is_replaced() -> None:
    """§5.3: the leader's log wins."""
    network = follower(1, 1, 1)
    network.step(MsgApp(2, 3, 2, 1, 2, [Entry(2, 3)], 1))
    assert network.node(2).last_index == 3
    assert network.node(2).raft.log.term(3) == 2
    assert answer(network).index == 3


def test_delayed_append_does_not_cut_off_matching_entries() -> None:
    """§5.3: truncate only at the first conflict; an old message may be shorter than the log."""
    network = follower(1, 1, 1)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    assert network.node(2).last_index == 4
    assert answer(network).index == 2


def test_follower_commits_no_further_than_what_the_message_proved() -> None:
    """Figure 2: commitIndex = min(leaderCommit, index of last new entry)."""
    network = follower(1, 1, 1)
    network.step(MsgApp(2, 1, 1, 1, 2, [], 4))
    assert network.node(2).commit == 2


def test_append_below_the_commit_index_is_acknowledged_up_to_it() -> None:
    """§5.3: committed entries match in any case."""
    network = follower(1, 1, 1, commit=3)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    assert answer(network).index == 3


def test_heartbeat_carries_no_more_commit_than_the_peer_has() -> None:
    """§5.3: the rest of the peer's log may differ from the leader's."""
    network = Network()
    network.elect(1)
    network.isolate(3)
    network.propose(b"x")
    network.settle()
    network.tick(1)
    beats = [m for m in network.hosts[1].take_ready() if isinstance(m, MsgHeartbeat)]
    assert [(m.to, m.commit) for m in beats] == [(2, 3), (3, 2)]


def test_lagging_follower_is_brought_up_to_date() -> None:
    """§5.3: the leader retries until all followers store all entries."""
    network = Network(max_size_per_msg=100)
    network.elect(1)
    network.isolate(3)
    for _ in range(20):
        network.propose(b"x" * 30)
    network.settle()
    network.heal()
    network.node(1).report_unreachable(3)
    network.tick(1)
    network.settle()
    assert network.node(3).applied == network.node(1).applied == 22


# --- Proposals ---------------------------------------------------------------------------------


def test_follower_forwards_a_proposal() -> None:
    """§8: a server that is not leader redirects."""
    network = Network()
    network.elect(1)
    network.node(2).propose([Entry(data=b"x")])
    [message] = network.hosts[2].take_ready()
    assert isinstance(message, MsgProp)
    network.step(message)
    network.settle()
    assert network.hosts[3].applied[-1].data == b"x"


def test_follower_that_may_not_forward_drops() -> None:
    """The host forwards commands itself."""
    network = Network(disable_proposal_forwarding=True)
    network.elect(1)
    with pytest.raises(ProposalDropped) as caught:
        network.node(2).propose([Entry(data=b"x")])
    assert caught.value.reason is DropReason.NO_LEADER


def test_proposal_at_the_uncommitted_limit_is_taken_and_one_past_it_dropped() -> None:
    """A limit in bytes on a leader's uncommitted payload; a dropped proposal appends nothing."""
    network = Network(max_uncommitted_entries_size=10)
    leader = network.elect(1)
    network.isolate(2, 3)
    network.propose(b"12345")
    network.propose(b"67890")
    assert leader.uncommitted_bytes == 10
    before = leader.last_index
    with pytest.raises(ProposalDropped) as caught:
        network.propose(b"", b"x")
    assert caught.value.reason is DropReason.UNCOMMITTED_LIMIT
    assert leader.last_index == before
    network.propose(b"")
    assert leader.last_index == before + 1


def test_first_proposal_is_taken_whatever_its_size_and_applying_frees_the_limit() -> None:
    """A limit never stops progress."""
    network = Network(max_uncommitted_entries_size=10)
    leader = network.elect(1)
    network.propose(b"x" * 50)
    network.settle()
    assert leader.uncommitted_bytes == 0
    network.propose(b"x" * 50)


def test_offsets_are_assigned_densely_with_the_index() -> None:
    """Base offset is the previous entry's plus its records; Raft's own entries use none."""
    network = Network()
    leader = network.elect(1)
    first, second = network.propose(b"a", b"b", records=3)
    assert (first.base_offset, second.base_offset, leader.next_offset()) == (0, 3, 6)
    network.settle()
    network.elect(2)
    noop = network.hosts[2].applied[-1]
    assert (noop.kind, noop.records, noop.base_offset) == (EntryKind.NOOP, 0, 6)
    [third] = network.propose(b"c", records=1)
    assert third.base_offset == 6
    assert network.leader.next_offset() == 7


def test_offsets_begin_where_a_truncated_suffix_began() -> None:
    """Offsets of entries that were overwritten are assigned again."""
    network = Network()
    network.elect(1)
    network.isolate(1)
    network.propose(b"lost", records=9)
    network.settle()
    network.heal()
    network.isolate(1)
    network.node(2).campaign()
    network.settle()
    network.leader.propose([Entry(data=b"kept", records=2)])
    network.settle()
    network.heal()
    network.tick(2)
    network.settle()
    assert network.node(1).next_offset() == network.node(2).next_offset() == 2


def test_offsets_continue_after_a_restart() -> None:
    """The next offset comes from storage."""
    network = Network()
    network.elect(1)
    network.propose(b"a", records=5)
    network.settle()
    network.crash(2)
    assert network.node(2).next_offset() == 5


# --- Flow control ------------------------------------------------------------------------------


def test_probe_sends_one_message_until_answered() -> None:
    """Thesis §10.2.1: no pipelining before it is known where the logs agree."""
    network = Network()
    network.elect(1)
    network.node(1).report_unreachable(2)
    network.isolate(3)
    network.propose(b"a")
    network.propose(b"b")
    assert [len(m.entries) for m in appends(network, 1) if m.to == 2] == [1]


def test_replicating_peer_is_sent_ahead_up_to_the_limit() -> None:
    """Thesis §10.2.1: pipelined, bounded by messages in flight."""
    network = Network(max_inflight_msgs=3)
    leader = network.elect(1)
    for _ in range(5):
        network.propose(b"x")
    assert [m.to for m in appends(network, 1)].count(2) == 3
    progress = leader.progress(2)
    assert progress is not None
    assert progress.inflights.is_full
    assert progress.is_paused
    network.step(MsgAppResp(1, 2, 1, leader.last_index - 4))
    assert [len(m.entries) for m in appends(network, 1) if m.to == 2][-1] == 2


def test_full_window_is_probed_by_empty_messages_after_a_heartbeat() -> None:
    """All messages in flight may have been lost: one empty MsgApp per heartbeat detects that."""
    network = Network(max_inflight_msgs=1)
    network.elect(1)
    network.isolate(2)
    network.propose(b"a")
    network.propose(b"b")
    network.settle()
    network.heal()
    assert network.node(2).last_index == 2
    network.tick(1)
    network.settle()
    assert network.node(2).applied == 4


def test_window_in_bytes_lets_one_message_go_beyond() -> None:
    """Full at the limit, not full one byte below it."""
    window = Inflights(10, bytes_max=5)
    full = []
    for last, payload_bytes in ((1, 4), (2, 100)):
        window.add(last, payload_bytes)
        full.append(window.is_full)
    for index in (1, 2):
        window.free_to(index)
        full.append(window.is_full)
    assert full == [False, True, True, False]
    assert len(window) == 0


def test_messages_are_cut_to_their_size_limit() -> None:
    """max_size_per_msg counts payload and overhead; one entry always fits."""
    network = Network(max_size_per_msg=2 * (10 + ENTRY_OVERHEAD_BYTES))
    network.elect(1)
    network.isolate(2)
    network.propose(*[b"x" * 10] * 5)
    assert [len(m.entries) for m in appends(network, 1) if m.to == 3] == [2]
    network.settle()
    assert network.node(3).applied == 7


def test_stale_rejection_changes_nothing() -> None:
    """§5.3: answers may be reordered; one below the match index is outdated."""
    progress = Progress(next_index=10, inflights=Inflights(4), is_learner=False)
    progress.match = 5
    progress.become_replicate()
    assert not progress.maybe_decrease(rejected=5, hint=2)
    assert progress.maybe_decrease(rejected=6, hint=2)
    assert progress.next == 6
    progress.become_probe()
    progress.next = 9
    assert not progress.maybe_decrease(rejected=3, hint=2)
    assert progress.maybe_decrease(rejected=8, hint=6)
    assert progress.next == 7


def test_progress_that_leaves_a_snapshot_probes_behind_it() -> None:
    """§7: entries covered by the snapshot are not sent again."""
    progress = Progress(next_index=10, inflights=Inflights(4), is_learner=False)
    progress.become_snapshot(20)
    assert progress.state is SNAPSHOT
    assert progress.is_paused
    progress.become_probe()
    assert progress.state is PROBE
    assert progress.next == 21
    progress.become_replicate()
    assert progress.state is REPLICATE
    assert progress.next == 1


# --- Messages deferred to the next Ready -------------------------------------------------------


def test_batched_appends_leave_in_one_message_a_peer() -> None:
    """Batching comes from the loop: a turn's proposals and commit are sent together."""
    network = Network(batch_appends=True, async_storage_writes=True)
    leader = network.elect(1)
    for _ in range(3):
        network.propose(b"x")
    assert leader.has_ready()
    sent = appends(network, 1)
    assert [(m.to, len(m.entries)) for m in sent] == [(2, 3), (3, 3)]
    [work] = network.hosts[1].append_work
    assert [type(r).__name__ for r in work.responses] == ["MsgAppResp", "MsgStorageAppendResp"]


def test_batched_acknowledgements_fold_into_the_last() -> None:
    """Acknowledgements are cumulative; refusals are not."""
    network = Network(batch_appends=True)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    network.step(MsgApp(2, 1, 1, 1, 2, [Entry(1, 3)], 1))
    assert answer(network).index == 3


def test_batched_cluster_commits_like_any_other() -> None:
    """Only the time of sending differs."""
    network = Network(batch_appends=True, async_storage_writes=True)
    network.elect(1)
    for _ in range(10):
        network.propose(b"x", b"y")
        network.settle()
    assert [network.node(n).applied for n in (1, 2, 3)] == [22] * 3


def test_replica_that_never_answers_costs_a_turn_no_more_however_long_it_is_away() -> None:
    """The interval between its heartbeats grows up to a bound; so does the counter for it."""
    progress = Progress(next_index=1, inflights=Inflights(1), is_learner=False)
    gaps = []
    for round_ in range(10_000):
        progress.tried(round_, asks=True)
        gaps.append(progress.ask_round - round_)
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (1, ROUNDS_BETWEEN_MAX)
    assert progress.tries == TRIES_MAX
    progress.answered()
    progress.tried(10_000, asks=True)
    assert progress.ask_round == 10_001
