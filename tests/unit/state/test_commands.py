"""Commands: decoding inverts encoding, and unknown content is refused."""

from __future__ import annotations

import msgspec
import pytest

from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.coordinator import Coordinator

EXAMPLES = [
    commands.RegisterServer(1, b"d" * 16, "r1", {"PLAINTEXT": ("10.0.0.1", 9092)}, True),
    commands.RegisterServer(1, b"d" * 16, "", {}, True, {"group.version": (0, 1, 1)}),
    commands.CreateTopics(
        [commands.NewTopic("t", b"i" * 16, 3, configs={"b": "1", "a": "2"})], alive=[1, 2]
    ),
    commands.DeleteTopics(["t"], [b"i" * 16]),
    commands.AllocateProducerIds(1000),
    commands.ReplaceServer(3, b"o" * 16, b"n" * 16),
    commands.AdmitServer(4, b"n" * 16, "10.0.0.4", 9192),
    commands.DecommissionServer(4, b"n" * 16),
    commands.DecommissionServer(4, b"n" * 16, is_leaving=False),
    commands.DrainServers([1, 2, 3], 32, 1000),
    commands.RemoveServer(4, b"n" * 16),
    commands.DecommissionVoter(1, b"o" * 16),
    commands.MoveVotes([2, 3, 4]),
    commands.ReplaceReplicas(3, b"n" * 16, [commands.LostReplica(9, 1)]),
    commands.AlterTopicConfigs([commands.ConfigChange("t", {"b": "1", "a": "2"}, ["c"], True)]),
    commands.AlterResourceConfigs([(4, commands.ConfigChange("", {"a": "1"}))]),
    commands.UpdateFeatures([commands.FeatureUpdate("group.version", 1, 3)], True),
    commands.AlterScramCredentials(
        [("a", "SCRAM-SHA-256")],
        [commands.ScramUpsert("b", "SCRAM-SHA-512", 4096, b"s", b"k", b"v")],
        b"d" * 32,
    ),
    commands.JoinGroup(
        "g", "", "c-1", None, "c", "/h", 1, 2, "consumer",
        [commands.Protocol("range", b"\x00")], True, 10, False,
    ),
    commands.SyncGroup("g", 1, "m", "i", None, "range", [("m", b"a")]),
    commands.LeaveGroup("g", [commands.LeavingMember("m"), commands.LeavingMember("", "i")]),
    commands.ExpireMembers("g", ["m"]),
    commands.CompleteJoin("g", 3),
    commands.DeleteGroups(["g", "ü"]),
    commands.CommitOffsets("g", 1, "m", None, [commands.OffsetCommit("t", b"", 0, 5, 1, "x")]),
    commands.CommitOffsets("g", 1, "m", None, [commands.OffsetCommit("t", b"", 0, 5, 1, "x", 9)]),
    commands.ExpireOffsets(1),
    commands.ExpireOffsets(1, [9, 12]),
    commands.ExpireOffsets(1, [], 1_700_000_000_000),
    commands.DeleteOffsets("g", [("t", 0), ("u", 7)]),
    commands.ExpireOffsetsOf(["g", "ü"], 1, [9, 12], 1_700_000_000_000),
    commands.RaisePositionsBound(64 << 20, 1_000_000),
    commands.InitTransactions("x", 60_000, 7, 5, 32_766),
    commands.AddToTransaction("x", 7, 1, [3, 900], verify_only=True, version=2),
    commands.EndTransaction("x", 7, 1, commits=True, version=2, new_producer_id=8),
    commands.CompleteTransactions([("x", 7, 3)]),
    commands.AbortTransactions([("x", 7, 3)]),
    commands.TimeOutTransactions([("x", 7, 3)]),
    commands.DowngradeConsumerGroup("g"),
    commands.ExpireTransactionalIds(604_800_000, 1_700_000_000_000, 100),
    commands.CommitTransactionOffsets(
        "g", 3, "m", None, 7, 1, 4, [commands.OffsetCommit("t", b"i" * 16, 0, 9, 1, "")], 80
    ),
    commands.EndTransactionOffsets(7, 1, 4, commits=False),
    commands.NoteTime(),
    commands.CreatePartitions(
        [commands.NewPartitions("t", 3), commands.NewPartitions("u", 2, [[1, 2]])], False, [1], 9
    ),
    commands.AlterReassignments(
        [commands.Reassign("t", 0, [4, 1, 2]), commands.Reassign("t", 1, None)], False, 9
    ),
    commands.FinishReassignments([commands.FinishedMove(9, 2)]),
    commands.ConsumerHeartbeat(
        "g", "m", 0, "i", "r", "c", "/h", 9, ["t"], "t.*", "uniform", ((b"i" * 16, (0, 2)),), 5
    ),
    commands.ConsumerHeartbeat(
        "g", "m", 3, None, None, "c", "/h", -1, None, None, None, None, 5
    ),
    commands.LeaveConsumerGroup("g", "m", None, False),
    commands.AssignTargets(
        "g", 3, 4, [commands.SubscribedTopic("t", b"i" * 16, 3, 12)],
        [commands.ResolvedPattern("t.*", ["t"])], [("m", ((b"i" * 16, (0, 1)),)), ("n", ())],
    ),
    commands.ExpireConsumers("g", [("m", -1), ("n", 4)]),
    commands.CreateAcls([commands.AclBinding(2, "t", 4, "User:ü", "*", 3, 2)]),
    commands.AlterQuotas(
        [commands.QuotaChange([("user", None), ("client-id", "c")], {"a": 0.5}, ["b"])]
    ),
    commands.CreateDelegationToken(
        "t", "User:ü", "User:b", ["User:c"], 9, 3,
        [commands.ScramUpsert("t", "SCRAM-SHA-256", 4_096, b"s", b"k", b"v")],
    ),
    commands.AlterDelegationToken("t", "User:b", -1),
    commands.DeleteAcls([commands.AclFilter(1, None, 2, None, "10.0.0.1", 1, 1)]),
    commands.JoinShareGroup(
        "g", "m", "r", "c", "/h", ["t"], [commands.ShareTopic("t", b"i" * 16, [11, 12])], 5
    ),
    commands.LeaveShareGroup("g", ["m"], []),
    commands.RefreshShareGroup("g", [commands.ShareTopic("t", b"i" * 16, [11])]),
    commands.ClaimSharePartition("g", b"i" * 16, 1, 7, 3),
    commands.WriteShareState(
        [commands.ShareWrite("g", b"i" * 16, 1, 2, 7, 3, 1, 40, [(41, 45, 1, 2), (46, 46, 2, 0)])]
    ),
    commands.AlterShareOffsets("g", [(b"i" * 16, 1, 12, 40)], [(b"i" * 16, [11, 12])], True),
    commands.DeleteShareOffsets("g", [b"i" * 16]),
]  # fmt: skip


@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: type(command).__name__)
def test_envelope_decoded_is_what_was_encoded(command: commands.Command) -> None:
    """An entry's payload carries command and waiter's name, in any kind of buffer."""
    envelope = commands.Envelope(3, 1 << 60, 7, 1_700_000_000_000, command)
    data = commands.encode(envelope)
    assert commands.decode(memoryview(bytearray(data))) == envelope
    assert commands.encode(commands.decode(data)) == data


def test_every_command_has_an_example_and_its_own_tag() -> None:
    """Tags are never shared: a replica must not confuse two commands."""
    kinds = commands.Command.__subclasses__()
    assert {type(example) for example in EXAMPLES} == set(kinds)
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert len(set(tags)) == len(tags)


def test_every_command_is_understood_by_one_machine() -> None:
    """A leader appends what its machine can apply.

    A command that no machine knows is never appended.
    """
    machines = (Catalog(), Coordinator())
    for example in EXAMPLES:
        known = [machine for machine in machines if machine.understands(example)]
        assert len(known) == 1, example


def test_command_with_an_unknown_field_is_refused() -> None:
    """A replica that does not understand a command stops instead of diverging."""
    data = commands.encode(commands.Envelope(1, 1, 1, 1, commands.AllocateProducerIds(5)))
    envelope = msgspec.msgpack.decode(data)
    envelope[4].append("from the future")
    with pytest.raises(msgspec.ValidationError):
        commands.decode(msgspec.msgpack.encode(envelope))


def test_command_that_no_replica_could_apply_is_refused() -> None:
    """Such a command is refused before it is in the log, where it would stop every replica."""
    data = commands.encode(commands.Envelope(1, 1, 1, 1, commands.AllocateProducerIds(0)))
    with pytest.raises(commands.DecodeError):
        commands.decode(data)


def test_command_with_text_that_is_none_is_refused() -> None:
    """Undecodable text from a faulty peer is refused as any other malformed command."""
    command = commands.DeleteTopics(["name"])
    envelope = commands.encode(commands.Envelope(1, 1, 1, 1, command))
    for decode, data in (
        (commands.decode, envelope),
        (commands.decode_command, commands.encode_command(command)),
    ):
        with pytest.raises(commands.DecodeError):
            decode(data.replace(b"name", b"nam\x96"))


def test_dict_order_does_not_reach_the_bytes() -> None:
    """Equal commands are equal bytes, independent of the insertion order of a dict."""
    one = commands.NewTopic("t", b"i" * 16, configs={"a": "1", "b": "2"})
    two = commands.NewTopic("t", b"i" * 16, configs={"b": "2", "a": "1"})
    encoded = [
        commands.encode(commands.Envelope(1, 1, 1, 1, commands.CreateTopics([topic])))
        for topic in (one, two)
    ]
    assert encoded[0] == encoded[1]
