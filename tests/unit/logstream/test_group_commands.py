"""Commands from one group to the leader of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rpc.commands import CommandDone, Fate, decode_command, encode_done
from rpc.hello import VERSION_OF_COMMANDS, VERSION_OF_JOINED_COMMANDS
from rpc.peer import FrameType
from vdl.errors import ErrorCode
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.logstream.peers import group_commands
from vdl.state import commands
from vdl.state.commands import CreateTopics, NewTopic
from vdl.state.partition import AdvanceLogStart, encode_command

CUT = encode_command(AdvanceLogStart(1))


def send(cluster: Any, asker: int, group_id: int, data: bytes, *, ms: int = 1_000) -> list[Outcome]:
    """Send a command. The returned list receives its outcome."""
    found: list[Outcome] = []
    cluster.nodes[asker].host.command_group(
        group_id, data, deadline_ns=cluster.deadline(ms), done=found.append
    )
    return found


def applied(found: list[Outcome]) -> ErrorCode:
    (outcome,) = found
    assert outcome.kind is OutcomeKind.APPLIED
    return ErrorCode(outcome.result.error)


def partition(cluster: Any) -> int:
    """Create a partition with two records. Return its group id."""
    group_id = int(cluster.create_topic())
    for _ in range(2):
        cluster.append(cluster.leader(group_id))
    cluster.run(100)
    return group_id


@pytest.mark.parametrize("asker", [1, 2, 3])
def test_command_is_applied_whichever_server_sends_it(cluster: Any, asker: int) -> None:
    """The answer comes from the leader, once it has applied the command."""
    group_id = partition(cluster)
    found = send(cluster, asker, group_id, CUT)
    cluster.run(100)
    assert applied(found) is ErrorCode.NONE
    assert cluster.leader(group_id).log_start_offset == 1


def test_command_outlives_its_leader(cluster: Any) -> None:
    """It is sent again to the next leader; the sender continues to wait."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    cluster.nodes[leader].workers.hold()  # it never commits what it is sent
    for node in cluster.nodes.values():
        if node.id != asker:
            node.workers.hold()
    found = send(cluster, asker, group_id, CUT, ms=20_000)
    cluster.run(100)
    cluster.nodes[leader].crash()
    cluster.nodes[6 - leader - asker].workers.release()
    assert found == []
    cluster.run(5_000)
    assert applied(found) is ErrorCode.NONE
    assert cluster.leader(group_id).log_start_offset == 1


@pytest.mark.parametrize("frame_type", [FrameType.COMMAND, FrameType.COMMAND_DONE])
def test_frame_that_is_lost_is_sent_again(
    cluster: Any, frame_type: FrameType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the answer is lost, the command is applied twice."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    lost: list[int] = []

    def lossy(host: Any) -> Any:
        receive = host.frame

        def frame(server_id: int, kind: FrameType, payload: memoryview) -> None:
            if kind is frame_type and not lost:
                lost.append(server_id)
            else:
                receive(server_id, kind, payload)

        return frame

    for server in (leader, asker):
        host = cluster.nodes[server].host
        monkeypatch.setattr(host, "frame", lossy(host), raising=False)
    found = send(cluster, asker, group_id, CUT, ms=10_000)
    cluster.run(1_000)
    assert (len(lost), found) == (1, [])
    cluster.run(group_commands.ANSWER_NS // 1_000_000)
    assert applied(found) is ErrorCode.NONE


def test_commands_that_are_not_due_are_not_looked_at(cluster: Any) -> None:
    """Thousands may be in flight, and deadlines are checked ten times a second."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    for node in cluster.nodes.values():
        node.workers.hold()  # nothing is applied
    found = [send(cluster, asker, group_id, CUT, ms=10_000) for _ in range(20)]
    under_way = cluster.nodes[asker].host.commands
    sent = under_way._sent = Looked(under_way._sent)
    cluster.run(2_000)
    assert (len(sent), sent.looks) == (20, 0)
    cluster.run(2_000)
    assert 0 < sent.looks < 5, "they were sent again, together"
    for node in cluster.nodes.values():
        node.workers.release()
    cluster.run(4_000)
    assert {applied(one) for one in found} == {ErrorCode.NONE}


class Looked(dict[int, Any]):
    """A dict that counts iterations over all of it."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_command_nobody_can_take_ends_at_its_deadline(cluster: Any) -> None:
    """Certainly not appended if it was sent to no server, otherwise with an unknown outcome."""
    group_id = partition(cluster)
    for server in (2, 3):
        cluster.nodes[server].crash()
    cluster.run(5_000)
    found = send(cluster, 1, group_id, CUT)
    unknown = send(cluster, 1, 9_999, CUT)
    catalog = send(cluster, 1, 0, CUT)
    assert [outcome.kind for outcome in catalog] == [OutcomeKind.NOT_APPENDED]
    cluster.run(1_500)
    assert [outcome.kind for outcome in found + unknown] == [OutcomeKind.NOT_APPENDED] * 2


def test_command_that_no_leader_knows_is_refused_before_it_is_appended(cluster: Any) -> None:
    """In the log it would stop every replica, again at each start."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id)
    before = leader.group.node.last_index
    other = commands.encode_command(commands.AllocateProducerIds(1))
    refused = [
        send(cluster, asker, group, data)
        for asker in (1, 2, 3)
        for group, data in ((group_id, b"\xc1"), (1, b"\xc1"), (1, other))
    ]
    cluster.run(200)
    kinds = [[outcome.kind for outcome in found] for found in refused]
    assert kinds == [[OutcomeKind.TOO_LARGE]] * 9
    assert leader.group.node.last_index == before


def test_server_of_an_older_version_is_sent_nothing(cluster: Any) -> None:
    """The frame would end the link."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    host = cluster.nodes[asker].host
    hello = host.state.alive[leader]
    host.state.alive[leader] = replace(hello, version=VERSION_OF_COMMANDS - 1)
    found = send(cluster, asker, group_id, CUT)
    cluster.run(1_500)
    assert [outcome.kind for outcome in found] == [OutcomeKind.NOT_APPENDED]
    assert leader in host.state.alive


def test_commands_beyond_the_limit_are_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that ends makes room for one; a server that stops answers all."""
    monkeypatch.setattr(group_commands, "WAITING_MAX", 2)
    waiting = [send(cluster, 1, 9_999, CUT) for _ in range(2)]
    third = send(cluster, 1, 9_999, CUT)
    assert [outcome.kind for outcome in third] == [OutcomeKind.NOT_APPENDED]
    assert waiting == [[], []]
    cluster.run(1_500)
    again = send(cluster, 1, 9_999, CUT)
    assert again == []
    cluster.nodes[1].host.close()
    assert [outcome.kind for outcome in again] == [OutcomeKind.UNKNOWN]


@pytest.mark.parametrize("version", [VERSION_OF_COMMANDS, VERSION_OF_JOINED_COMMANDS])
def test_commands_of_a_turn_leave_together_for_a_peer_that_knows_that(
    cluster: Any, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their answers are sent together, too.

    A peer of an older version receives each in a frame of its own. A large command is sent alone.
    """
    monkeypatch.setattr(group_commands, "JOINED_MAX", 4)
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    kinds: list[FrameType] = []
    for server, peer in ((asker, leader), (leader, asker)):
        host = cluster.nodes[server].host
        host.state.alive[peer] = replace(host.state.alive[peer], version=version)
        frame = host.frame

        def noted(server_id: int, kind: FrameType, payload: memoryview, frame: Any = frame) -> None:
            kinds.append(kind)
            frame(server_id, kind, payload)

        monkeypatch.setattr(host, "frame", noted, raising=False)
    found = [send(cluster, asker, group_id, CUT) for _ in range(9)]
    cluster.run(100)
    assert [applied(one) for one in found] == [ErrorCode.NONE] * 9
    joins = version == VERSION_OF_JOINED_COMMANDS
    counts = [kinds.count(kind) for kind in (FrameType.COMMAND, FrameType.COMMANDS)]
    assert counts == ([1, 2] if joins else [9, 0])
    answers = [kinds.count(kind) for kind in (FrameType.COMMAND_DONE, FrameType.COMMANDS_DONE)]
    assert answers == ([1, 2] if joins else [9, 0])


def test_commands_that_could_not_leave_are_sent_again(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link may have reached its limit of buffered bytes."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    transport = cluster.nodes[asker].host.state.transport
    passes = transport.send
    refused: list[FrameType] = []

    def full(server_id: int, kind: FrameType, buffers: Any, **lane: bool) -> bool:
        if kind is FrameType.COMMANDS and not refused:
            refused.append(kind)
            return False
        return bool(passes(server_id, kind, buffers, **lane))

    monkeypatch.setattr(transport, "send", full, raising=False)
    found = [send(cluster, asker, group_id, CUT, ms=2_000) for _ in range(3)]
    cluster.run(group_commands.RETRY_NS // 1_000_000 + 100)
    assert refused
    assert [applied(one) for one in found] == [ErrorCode.NONE] * 3


def lone_partition(cluster: Any, server: int) -> int:
    """Create a partition with two records, on one server alone. Return its group id."""
    new = NewTopic("lone", b"lone".ljust(16), assignments=[[server]])
    group_id = int(cluster.propose(CreateTopics([new])).topics[0].group_ids[0])
    for _ in range(2):
        cluster.append(cluster.leader(group_id))
    cluster.run(200)
    return group_id


def frames_into(cluster: Any, server: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return (sender, kind, payload) of all frames that a server receives from now on."""
    received: list[Any] = []
    host = cluster.nodes[server].host
    frame = host.frame

    def noted(from_server: int, kind: FrameType, payload: memoryview) -> None:
        received.append((from_server, kind, bytes(payload)))
        frame(from_server, kind, payload)

    monkeypatch.setattr(host, "frame", noted, raising=False)
    return received


def test_answer_for_a_former_process_ends_no_command_of_the_next(cluster: Any) -> None:
    """A leader answers when it has applied a command, perhaps seconds later.

    By then the sender may have been killed and restarted, and have sent another command to a group
    without a leader.
    """
    shared = partition(cluster)
    lone = lone_partition(cluster, 3)
    assert cluster.leader(shared).leader_server == 1
    cluster.nodes[3].crash()
    cluster.run(3_000)
    cluster.nodes[2].workers.hold()  # the shared one has no majority for a moment
    former = send(cluster, 2, shared, CUT, ms=10_000)
    cluster.run(20)
    cluster.nodes[2].crash()
    cluster.run(500)
    cluster.nodes[2].start()
    found = send(cluster, 2, lone, CUT, ms=10_000)
    cluster.run(3_000)
    assert (former, found) == ([], [])
    assert cluster.leader(shared).log_start_offset == 1, "the former one was applied"
    cluster.nodes[3].start()
    cluster.run(5_000)
    assert applied(found) is ErrorCode.NONE


def test_number_of_a_former_process_is_not_used_again(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer of an older version sends its answer to the process that is linked by then."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    received = frames_into(cluster, leader, monkeypatch)
    send(cluster, asker, group_id, CUT)
    cluster.run(100)
    numbers = [
        decode_command(memoryview(payload)).request_id
        for _, kind, payload in received
        if kind is FrameType.COMMAND
    ]
    cluster.nodes[asker].crash()
    cluster.run(500)
    cluster.nodes[asker].start()
    cluster.run(1_000)
    found = send(cluster, asker, 9_999, CUT, ms=10_000)
    for number in numbers:
        done = b"".join(map(bytes, encode_done(CommandDone(number, Fate.APPLIED))))
        cluster.nodes[asker].host.frame(leader, FrameType.COMMAND_DONE, memoryview(done))
    assert numbers
    assert found == []


def test_answer_is_not_sent_to_the_next_process(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of an older version numbers its commands from the beginning.

    It would take the answer for one to its own command.
    """
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker, third = (server for server in (1, 2, 3) if server != leader)
    cluster.nodes[third].crash()
    cluster.run(1_000)
    cluster.nodes[asker].workers.hold()
    send(cluster, asker, group_id, CUT, ms=10_000)
    cluster.run(20)
    cluster.nodes[asker].crash()
    cluster.run(500)
    cluster.nodes[asker].start()
    received = frames_into(cluster, asker, monkeypatch)
    cluster.run(3_000)
    assert cluster.leader(group_id).log_start_offset == 1, "it was applied"
    kinds = {kind for _, kind, _ in received}
    assert FrameType.HEARTBEAT in kinds
    assert not kinds & {FrameType.COMMAND_DONE, FrameType.COMMANDS_DONE}


def test_what_waits_for_the_turns_end_is_not_sent_by_the_next_link(cluster: Any) -> None:
    """A link may be replaced within a turn, by one of another process."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker = next(server for server in (1, 2, 3) if server != leader)
    host = cluster.nodes[leader].host
    host.commands._outgoing(asker).answers.append([b"answer"])
    hello = host.state.alive[asker]
    host.link_down(asker, refused=False)
    host.link_up(hello)
    assert not host.commands.out


@pytest.mark.parametrize("was_sent_before", [False, True])
def test_refusal_is_final_unless_another_leader_may_have_taken_the_command(
    cluster: Any, was_sent_before: bool
) -> None:
    """Only a refusal by the server to which the command was sent last counts."""
    group_id = partition(cluster)
    leader = cluster.leader(group_id).leader_server
    asker, third = (server for server in (1, 2, 3) if server != leader)
    for node in cluster.nodes.values():
        node.workers.hold()  # nothing is applied
    found = send(cluster, asker, group_id, CUT, ms=20_000)
    cluster.run(100)
    if was_sent_before:
        cluster.run(group_commands.ANSWER_NS // 1_000_000)
    host = cluster.nodes[asker].host
    (number,) = host.commands._sent
    refused = b"".join(map(bytes, encode_done(CommandDone(number, Fate.REFUSED))))
    host.frame(third, FrameType.COMMAND_DONE, memoryview(refused))
    assert found == []
    host.frame(leader, FrameType.COMMAND_DONE, memoryview(refused))
    kinds = [outcome.kind for outcome in found]
    assert kinds == [OutcomeKind.UNKNOWN if was_sent_before else OutcomeKind.TOO_LARGE]
