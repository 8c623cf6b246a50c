"""Ready: asynchronous and synchronous storage writes, and what depends on durability."""

from __future__ import annotations

import pytest

from raft import describe
from raft.follower import become_follower
from raft.messages import (
    MsgApp,
    MsgAppResp,
    MsgHeartbeat,
    MsgPreVote,
    MsgPreVoteResp,
    MsgStorageAppend,
    MsgStorageAppendResp,
    MsgStorageApplyResp,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
)
from raft.types import ENTRY_OVERHEAD_BYTES, NONE, Entry, StateType
from tests.unit.raft.network import ELECTION_TICKS, Network


def test_node_that_wants_nothing_is_not_ready() -> None:
    """The host touches only dirty groups."""
    network = Network()
    assert not network.node(1).has_ready()
    network.elect(1)
    assert not network.node(1).has_ready()


def test_has_ready_and_ready_agree() -> None:
    """After any event, a Ready is empty exactly when none was announced."""
    network = Network(async_storage_writes=True)
    network.node(1).campaign()
    for _ in range(200):
        for node in (1, 2, 3):
            announced = network.node(node).has_ready()
            before = len(network.hosts[node].readys)
            network.collect(node)
            text = describe.ready(network.hosts[node].readys[before])
            assert announced is (text != "<empty Ready>")
            network.storage_step(node)
        if network.messages:
            network.deliver()
        if network.node(1).is_leader and network.node(1).last_index < 8:
            network.propose(b"x")


def test_vote_leaves_only_after_its_write() -> None:
    """Figure 2: respond after updating stable storage."""
    network = Network(async_storage_writes=True)
    network.step(MsgVote(2, 1, 1, 1, 1))
    assert network.hosts[2].take_ready() == []
    [work] = network.hosts[2].append_work
    assert (work.term, work.vote, work.must_sync) == (1, 1, True)
    assert work.responses == [MsgVoteResp(1, 2, 1)]


def test_request_for_votes_leaves_only_after_its_write() -> None:
    """Figure 2: currentTerm and votedFor are durable before other servers act on them."""
    network = Network(async_storage_writes=True, durable_campaign=True)
    network.node(1).campaign()
    assert network.hosts[1].take_ready() == []
    [work] = network.hosts[1].append_work
    assert (work.term, work.vote, work.must_sync) == (1, 1, True)
    assert [message.to for message in work.responses] == [1, 2, 3, 1]
    assert work.responses[1:3] == [MsgVote(2, 1, 1, 1, 1), MsgVote(3, 1, 1, 1, 1)]


def test_pre_vote_request_does_not_wait_for_the_disk() -> None:
    """Thesis §9.6: a pre-vote is only a query; nothing is written for it."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.node(1).campaign()
    assert [type(message) for message in network.hosts[1].take_ready()] == [MsgPreVote, MsgPreVote]


def test_candidate_does_not_stand_again_before_its_vote_is_durable() -> None:
    """A new term would start the write over: on a slow disk no candidate would ever win."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    node = network.node(1)
    network.step(MsgPreVoteResp(1, 2, 1))  # not requested: it has no effect
    node.campaign()
    network.step(MsgPreVoteResp(1, 2, 1))
    network.collect(1)
    assert (node.term, node.vote) == (1, 1)
    node.tick(10 * ELECTION_TICKS)
    node.campaign()
    node.campaign_soon(1)
    node.tick(1)
    network.collect(1)
    assert node.term == 1
    assert not [message for message in network.messages if isinstance(message, MsgVote)]
    network.storage_step(1)
    asked = [message for message in network.messages if isinstance(message, MsgVote)]
    assert [message.to for message in asked] == [2, 3]
    # The others' disks may need as long, behind another write: it waits for four times its own.
    node.campaign_soon(1)
    node.tick(40 * ELECTION_TICKS - 1)
    network.collect(1)
    assert (node.term, node.state) == (1, StateType.CANDIDATE)
    node.tick(3 * ELECTION_TICKS)
    network.collect(1)
    assert node.state is StateType.PRE_CANDIDATE


def test_voter_refuses_another_election_while_its_vote_is_on_its_way() -> None:
    """A grant would let the sender campaign in a later term, and make the vote worthless."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.step(MsgVote(2, 1, 1, 1, 1))
    network.collect(2)
    network.messages.clear()
    node = network.node(2)
    node.tick(5 * ELECTION_TICKS)
    assert (node.term, node.vote, node.state) == (1, 1, StateType.FOLLOWER)

    def asked() -> list[bool]:
        network.step(MsgPreVote(2, 3, 2, 1, 1))
        network.collect(2)
        answers = [m.reject for m in network.messages if isinstance(m, MsgPreVoteResp)]
        network.messages.clear()
        return answers

    assert asked() == [True]
    network.storage_step(2)
    network.messages.clear()
    assert asked() == [True]
    node.tick(20 * ELECTION_TICKS - 1)
    assert asked() == [True]
    node.tick(1)
    assert asked() == [False]


def _asked_for_votes(*, slow: tuple[int, ...]) -> Network:
    """Node 1 has requested votes in term 1; the disks of `slow` delay their votes."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.node(1).campaign()
    network.step(MsgPreVoteResp(1, 2, 1))
    network.settle(1)
    for voter in slow:
        network.step(MsgVote(voter, 1, 1, 1, 1))
        network.collect(voter)
    network.messages.clear()
    return network


def test_vote_from_a_slow_disk_counts_though_its_candidate_asks_again() -> None:
    """Otherwise the fastest disk's candidate ends each election before the slowest answers."""
    network = _asked_for_votes(slow=(2,))
    node = network.node(1)
    node.tick(2 * ELECTION_TICKS)
    network.collect(1)
    assert (node.term, node.state) == (1, StateType.PRE_CANDIDATE)
    network.storage_step(2)
    network.settle(1)
    assert (node.term, node.state) == (1, StateType.LEADER)


def test_vote_from_a_slow_disk_counts_after_refusals_of_the_next_election() -> None:
    """A voter waiting for its disk refuses; that ends the pre-vote, not the earlier election."""
    network = _asked_for_votes(slow=(2, 3))
    node = network.node(1)
    node.tick(2 * ELECTION_TICKS)
    network.collect(1)
    for voter in (2, 3):
        network.step(MsgPreVoteResp(1, voter, 1, reject=True))
    assert (node.term, node.state) == (1, StateType.FOLLOWER)
    network.storage_step(3)
    network.settle(1)
    assert (node.term, node.state) == (1, StateType.LEADER)


def test_late_votes_do_not_make_anybody_lead_who_has_restarted_or_follows() -> None:
    """§5.2: it may have led the term before the crash, with other entries; or another one leads."""
    network = _asked_for_votes(slow=(2, 3))
    network.crash(1)
    for voter in (2, 3):
        network.step(MsgVoteResp(1, voter, 1))
    assert (network.node(1).vote, network.node(1).state) == (1, StateType.FOLLOWER)
    network = _asked_for_votes(slow=(2, 3))
    network.step(MsgVoteResp(1, 2, 1))
    become_follower(network.node(1).raft, 1, NONE)
    network.step(MsgVoteResp(1, 3, 1))
    assert network.node(1).state is StateType.FOLLOWER


def test_asker_that_was_given_the_vote_is_not_kept_waiting() -> None:
    """The answer may have been lost with its link."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.step(MsgVote(2, 1, 1, 1, 1))
    network.collect(2)
    network.node(2).tick(5 * ELECTION_TICKS)
    network.storage_step(2)
    network.step(MsgPreVote(2, 3, 2, 1, 1))
    network.step(MsgPreVote(2, 1, 2, 1, 1))
    assert network.hosts[2].take_ready() == [
        MsgPreVoteResp(3, 2, 1, reject=True),
        MsgPreVoteResp(1, 2, 2),
    ]


def test_slow_vote_does_not_make_the_next_failover_slow() -> None:
    """The elected leader may lead for days; after that its silence is detected as fast as ever."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.step(MsgVote(2, 1, 1, 1, 1))
    network.collect(2)
    node = network.node(2)
    node.tick(5 * ELECTION_TICKS)
    network.storage_step(2)
    assert node.ticks_until_due() >= 20 * ELECTION_TICKS
    network.step(MsgHeartbeat(2, 1, 1, 0))
    assert node.ticks_until_due() < 2 * ELECTION_TICKS
    node.forget_leader()
    network.step(MsgPreVote(2, 3, 2, 1, 1))
    assert not network.hosts[2].take_ready()[-1].reject


def test_vote_that_others_made_needless_holds_nothing_up() -> None:
    """Its candidate leads, and fails before this disk has written the vote."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.step(MsgVote(2, 1, 1, 1, 1))
    network.collect(2)
    node = network.node(2)
    node.tick(5 * ELECTION_TICKS)
    network.step(MsgHeartbeat(2, 1, 1, 0))
    node.forget_leader()
    node.campaign_soon(3)
    network.storage_step(2)
    assert node.ticks_until_due() == 3
    network.step(MsgPreVote(2, 3, 2, 1, 1))
    assert not network.hosts[2].take_ready()[-1].reject


def test_of_two_that_ask_at_one_time_one_goes_on() -> None:
    """Two grants would leave one vote each: on slow disks that costs a second election."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.isolate(3)
    for number in (1, 2):
        network.node(number).campaign()
        network.collect(number)
    while network.messages:
        network.deliver(0)
        for number in (1, 2):
            network.collect(number)
    assert (network.node(1).state, network.node(1).term) == (StateType.CANDIDATE, 1)
    assert (network.node(2).state, network.node(2).vote) == (StateType.FOLLOWER, 0)


def test_better_log_goes_on_whatever_its_id() -> None:
    """The other one could not win."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.node(1).campaign()
    network.hosts[1].take_ready()
    network.step(MsgPreVote(1, 3, 1, 1, 5))
    assert network.hosts[1].take_ready() == [MsgPreVoteResp(3, 1, 1)]
    assert network.node(1).state is StateType.FOLLOWER


def test_who_asked_a_while_ago_lets_others_win() -> None:
    """The earlier pre-candidate may be cut off from the voters it needs."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.node(1).campaign()
    network.hosts[1].take_ready()
    network.step(MsgPreVote(1, 3, 1, 1, 1))
    assert [message.reject for message in network.hosts[1].take_ready()] == [True]
    network.node(1).tick(ELECTION_TICKS // 3)
    network.step(MsgPreVote(1, 3, 1, 1, 1))
    assert [message.reject for message in network.hosts[1].take_ready()] == [False]


def test_answer_to_a_pre_vote_does_not_wait_for_the_disk() -> None:
    """Nor does the node's own pre-vote: it commits it to nothing."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.step(MsgPreVote(2, 1, 1, 1, 1))
    assert network.hosts[2].take_ready() == [MsgPreVoteResp(1, 2, 1)]
    network.node(1).campaign()
    network.hosts[1].take_ready()
    network.step(MsgPreVoteResp(1, 2, 1))
    assert network.node(1).state is StateType.CANDIDATE


def test_handed_over_leadership_is_asked_for_only_after_its_write() -> None:
    """Thesis §3.10: an election without pre-vote is otherwise an election like any other."""
    network = Network(async_storage_writes=True, durable_campaign=True, pre_vote=True)
    network.elect(1)
    network.step(MsgTimeoutNow(2, 1, network.node(1).term))
    assert network.hosts[2].take_ready() == []
    assert network.hosts[2].append_work[0].responses[0] == MsgVote(1, 2, 2, 1, 2, True)


def test_term_is_never_led_twice_whatever_a_crash_takes_back() -> None:
    """§5.2: the others' disks are fast, the candidate's own is slow; then its power fails."""
    network = Network(async_storage_writes=True, durable_campaign=True)
    network.node(1).campaign()
    network.collect(1)
    network.settle(2, 3)
    while network.messages:
        network.deliver()
    assert not network.node(1).is_leader
    network.crash(1)
    assert network.node(1).term == 0
    network.elect(1)
    network.crash(1)
    assert (network.node(1).term, network.node(1).vote) == (1, 1)


def test_vote_for_a_log_that_was_lost_does_not_count_for_what_is_left() -> None:
    """§5.4.1: a vote is granted to the log in the request, which must still exist."""
    network = Network(async_storage_writes=True, durable_campaign=True)
    network.step(MsgApp(1, 2, 1, 1, 1, [Entry(1, 2)], 1))
    network.settle(1)
    network.messages.clear()
    network.step(MsgApp(1, 2, 1, 1, 2, [Entry(1, 3)], 2))
    network.step(MsgApp(3, 2, 1, 1, 1, [Entry(1, 2), Entry(1, 3)], 3))
    network.settle(3)
    network.messages.clear()
    network.node(1).campaign()  # its entry 3 is being written
    network.collect(1)
    network.settle(3)
    answers = list(network.messages)
    network.crash(1)
    network.messages.clear()
    network.node(1).campaign()
    network.settle(1)
    for message in answers:
        network.step(message)
    assert not network.node(1).is_leader


def test_heartbeat_answer_does_not_wait_for_the_disk() -> None:
    """A heartbeat's answer acknowledges no entries."""
    network = Network(async_storage_writes=True)
    network.step(MsgHeartbeat(2, 1, 1, 1))
    assert len(network.hosts[2].take_ready()) == 1


def test_append_is_acknowledged_only_after_its_write() -> None:
    """§5.3: an acknowledged entry is on stable storage."""
    network = Network(async_storage_writes=True)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    assert network.hosts[2].take_ready() == []
    [work] = network.hosts[2].append_work
    assert work.responses == [MsgAppResp(1, 2, 1, 2), MsgStorageAppendResp(2, -1, 1, 1, 2)]


def test_repeated_append_is_acknowledged_behind_the_write_under_way() -> None:
    """A write without entries of its own may acknowledge earlier ones: order is kept."""
    network = Network(async_storage_writes=True)
    append = MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1)
    network.step(append)
    network.hosts[2].take_ready()
    network.step(append)
    network.hosts[2].take_ready()
    first, second = network.hosts[2].append_work
    assert first.must_sync
    assert not second.must_sync
    assert second.responses[0] == MsgAppResp(1, 2, 1, 2)


def test_commit_index_alone_needs_no_sync() -> None:
    """Figure 2: commitIndex is volatile; it is learnt again."""
    network = Network(async_storage_writes=True)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    network.settle(2)
    network.step(MsgApp(2, 1, 1, 1, 2, [], 2))
    network.collect(2)
    [work] = network.hosts[2].append_work
    assert (work.term, work.vote, work.commit) == (1, 0, 2)
    assert not work.must_sync


def test_committed_entry_waits_for_the_own_disk_before_it_is_applied() -> None:
    """Two others committed it; here it is applied once it is durable here."""
    network = Network(async_storage_writes=True)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 2))
    network.collect(2)
    assert network.node(2).commit == 2
    assert not network.hosts[2].apply_work
    network.storage_step(2)
    network.collect(2)
    assert [e.index for e in network.hosts[2].apply_work[0].entries] == [2]


def test_pipelined_writes_are_given_out_without_waiting() -> None:
    """Thesis §10.2.1: any number of writes may be in progress."""
    network = Network(async_storage_writes=True)
    network.elect(1)
    for _ in range(3):
        network.propose(b"x")
        network.collect(1)
    assert [len(work.entries) for work in network.hosts[1].append_work] == [1, 1, 1]


def test_answer_of_a_write_given_out_in_an_older_term_is_ignored() -> None:
    """ABA: (1, 2) written, overwritten by (2, 2), written back; the first write's answer comes."""
    network = Network(async_storage_writes=True)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    network.collect(2)
    network.step(MsgApp(2, 3, 2, 1, 1, [Entry(2, 2)], 1))
    network.collect(2)
    network.step(MsgApp(2, 1, 3, 1, 1, [Entry(1, 2), Entry(3, 3)], 1))
    network.collect(2)
    host = network.hosts[2]
    host.complete_append()
    network.deliver_to_self(2)
    assert host.node.stable == 1
    host.complete_append()
    network.deliver_to_self(2)
    assert host.node.stable == 1
    host.complete_append()
    network.deliver_to_self(2)
    assert host.node.stable == 3
    assert [host.storage.term(index) for index in (2, 3)] == [1, 3]


def test_term_change_alone_asks_again_whether_the_tail_is_durable() -> None:
    """Answers to earlier writes no longer count; a later write answers for all."""
    network = Network(async_storage_writes=True)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    network.collect(2)
    network.step(MsgHeartbeat(2, 3, 2, 1))
    network.collect(2)
    answers = [work.responses[-1] for work in network.hosts[2].append_work]
    assert answers == [
        MsgStorageAppendResp(2, -1, 1, 1, 2),
        MsgStorageAppendResp(2, -1, 2, 1, 2),
    ]


def test_crash_before_the_write_loses_the_entry_and_the_vote() -> None:
    """No other node has acted on either."""
    network = Network(async_storage_writes=True)
    network.step(MsgVote(2, 1, 1, 1, 1))
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 1))
    network.collect(2)
    network.crash(2)
    assert (network.node(2).term, network.node(2).vote, network.node(2).last_index) == (0, 0, 1)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_committed_entries_come_in_pages(limit: int) -> None:
    """max_committed_size_per_ready bounds what is being applied at a time."""
    network = Network(
        async_storage_writes=True, max_committed_size_per_ready=limit * ENTRY_OVERHEAD_BYTES
    )
    log = [Entry(1, index) for index in range(2, 8)]
    network.step(MsgApp(2, 1, 1, 1, 1, log, 7))
    network.collect(2)
    network.storage_step(2)
    pages = []
    while network.node(2).applied < 7:
        network.collect(2)
        [work] = network.hosts[2].apply_work
        pages.append(len(work.entries))
        assert not network.node(2).has_ready()
        network.storage_step(2)
    assert pages == [limit] * (6 // limit)


def test_synchronous_ready_is_worked_off_before_the_next() -> None:
    """Order: write, send, apply, advance."""
    network = Network(1)
    node = network.node(1)
    node.campaign()
    ready = node.ready()
    assert not any(isinstance(m, MsgStorageAppend) for m in ready.messages)
    with pytest.raises(AssertionError):
        node.ready()
    node.advance(ready)
    assert node.is_leader


def test_synchronous_entries_are_applied_in_the_ready_that_writes_them() -> None:
    """A synchronous host has made them durable by then."""
    network = Network()
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 2))
    ready = network.node(2).ready()
    assert ready.entries == ready.committed_entries
    assert ready.must_sync


def test_answer_of_an_applier_moves_applied() -> None:
    """The applier answers with the entries it received."""
    network = Network(async_storage_writes=True)
    network.step(MsgApp(2, 1, 1, 1, 1, [Entry(1, 2)], 2))
    network.settle(2)
    assert network.node(2).applied == 2
    network.step(MsgStorageApplyResp(2, -2, 0, []))
    assert network.node(2).applied == 2
