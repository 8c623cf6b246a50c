"""The catalog's decisions at apply: registration, topics, placement, producer ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.catalog_answers import GroupAdded, GroupRemoved, ServerRegistered


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")[:16]


def register(catalog: Catalog, server_id: int, *, directory: bytes = b"", rack: str = "") -> Any:
    return catalog.apply(
        commands.RegisterServer(
            server_id,
            directory or bytes([server_id]) * 16,
            rack,
            {"PLAINTEXT": ("127.0.0.1", 9091 + server_id)},
            True,
        ),
        0,
        1,
    )


def create(catalog: Catalog, name: str, **fields: Any) -> Any:
    shared = {
        key: fields.pop(key) for key in ("validate_only", "default_partitions") if key in fields
    }
    new = commands.NewTopic(name, fields.pop("topic_id", topic_id(name)), **fields)
    return catalog.apply(commands.CreateTopics([new], **shared), 0, 1)


def grow(
    catalog: Catalog,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    *,
    validate_only: bool = False,
    replicas_max: int = 0,
) -> Any:
    new = commands.NewPartitions(name, count, assignments)
    command = commands.CreatePartitions([new], validate_only, [], replicas_max)
    return catalog.apply(command, 0, 1)


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog("cluster")
    for server_id in (1, 2, 3):
        register(catalog, server_id)
    return catalog


def test_time_of_the_first_command_is_noted_until_there_is_a_note() -> None:
    """A server killed before the first `NoteTime` has a lower bound of the time in its next run.

    It is the only server of its cluster.
    """
    catalog = Catalog("cluster", initial_voters={1: b"a"})
    catalog.apply(commands.AllocateProducerIds(1), 5_000, 1)
    assert catalog.noted_ms == 5_000
    again = Catalog("cluster", initial_voters={1: b"a"})
    again.load([(key, value) for key, value in catalog.take_dirty() if value is not None])
    assert again.noted_ms == 5_000
    again.apply(commands.AllocateProducerIds(1), 6_000, 2)
    assert again.noted_ms == 5_000, "from then on only a note moves it"
    again.apply(commands.NoteTime(), 7_000, 3)
    assert again.noted_ms == 7_000


def test_time_of_several_servers_is_only_what_was_noted() -> None:
    """A note is made while their clocks agree; at the first command they may not."""
    catalog = Catalog("cluster", initial_voters={1: b"a", 2: b"b", 3: b"c"})
    catalog.apply(commands.AllocateProducerIds(1), 5_000, 1)
    assert catalog.noted_ms == 0
    catalog.apply(commands.NoteTime(), 7_000, 2)
    assert catalog.noted_ms == 7_000


def test_registration_repeated_changes_nothing(catalog: Catalog) -> None:
    """A restart registers again; only changes produce an event and a write."""
    catalog.take_dirty()
    assert register(catalog, 1).events == []
    assert catalog.take_dirty() == []
    assert register(catalog, 1, rack="r").events == [ServerRegistered(1)]
    assert len(catalog.take_dirty()) == 1


def test_registration_with_another_directory_is_refused(catalog: Catalog) -> None:
    """A wiped server is not the server that holds its replicas (101)."""
    answer = register(catalog, 1, directory=b"x" * 16)
    assert answer.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    answer = register(catalog, 4, directory=bytes([1]) * 16)
    assert answer.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert sorted(catalog.servers) == [1, 2, 3]


def test_topic_created_has_groups_numbered_after_the_coordinators(catalog: Catalog) -> None:
    """Group 0 is the catalog, 1 to 8 the coordinators; partitions come after, in order."""
    answer = create(catalog, "t", partitions=3)
    (created,) = answer.topics
    assert created.group_ids == [9, 10, 11]
    assert answer.events == [GroupAdded(9), GroupAdded(10), GroupAdded(11)]
    assert catalog.topics["t"].partitions == [9, 10, 11]
    assert catalog.topics_by_id[topic_id("t")] is catalog.topics["t"]
    assert [catalog.groups[group].partition for group in (9, 10, 11)] == [0, 1, 2]
    leaders = {catalog.groups[group].replicas[0].server_id for group in (9, 10, 11)}
    assert leaders == {1, 2, 3}


def test_group_ids_are_never_reused(catalog: Catalog) -> None:
    """A deleted topic's groups stay unused: files of its replicas may still exist."""
    create(catalog, "t", partitions=2)
    catalog.apply(commands.DeleteTopics(["t"]), 0, 1)
    create(catalog, "t", partitions=2, topic_id=b"second..second..")
    assert catalog.topics["t"].partitions == [11, 12]
    assert catalog.next_group_id == 13


def test_defaults_fill_what_was_not_asked(catalog: Catalog) -> None:
    """KIP-464: -1 is the server's default.

    The default factor is limited to the number of servers.
    """
    (created,) = create(catalog, "t", default_partitions=4).topics
    assert (created.partitions, created.replication_factor) == (4, 3)
    single = Catalog()
    register(single, 7)
    (created,) = create(single, "t").topics
    assert (created.partitions, created.replication_factor) == (1, 1)


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (".", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("ü", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 249, {}, ErrorCode.NONE),
        ("here", {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("t", {"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ("t", {"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ("t", {"partitions": 100_001}, ErrorCode.INVALID_PARTITIONS),
        ("t", {"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("t", {"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("t", {"assignments": [[1, 2], [2, 3]]}, ErrorCode.NONE),
        ("t", {"assignments": []}, ErrorCode.INVALID_PARTITIONS),
        ("t", {"assignments": [[1, 1]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", {"assignments": [[1], [2, 3]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", {"assignments": [[9]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", {"assignments": [[1]], "partitions": 1}, ErrorCode.INVALID_REQUEST),
        ("t", {"topic_id": topic_id("here")}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_topic_that_cannot_be_created_gets_kafkas_error(
    catalog: Catalog, name: str, fields: dict[str, Any], error: ErrorCode
) -> None:
    """Names 17, existing 36, partitions 37, factor 38, assignment 39; nothing is changed."""
    create(catalog, "here")
    before = catalog.items()
    (created,) = create(catalog, name, **fields).topics
    assert created.error is error
    if error is not ErrorCode.NONE:
        assert catalog.items() == before
        assert created.message


def test_topics_whose_metrics_would_have_one_name_collide(catalog: Catalog) -> None:
    """The names 'a.b' and 'a_b' are exclusive, as in Kafka, also after a restart.

    Once one is deleted the other may be created.
    """
    assert create(catalog, "a.b_c").topics[0].error is ErrorCode.NONE
    again = Catalog("c")
    again.load(catalog.items())
    for one in (catalog, again):
        refused = create(one, "a_b.c").topics[0]
        assert refused.error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "a.b_c" in refused.message
        assert create(one, "a.b_c").topics[0].error is ErrorCode.TOPIC_ALREADY_EXISTS
    catalog.apply(commands.DeleteTopics(["a.b_c"]), 0, 1)
    assert create(catalog, "a_b.c").topics[0].error is ErrorCode.NONE


def test_topic_validated_only_is_not_created(catalog: Catalog) -> None:
    """`validate_only` answers as a creation would and changes nothing."""
    before = catalog.items()
    (created,) = create(catalog, "t", partitions=5, validate_only=True).topics
    assert created.error is ErrorCode.NONE
    assert (created.partitions, created.replication_factor) == (5, 3)
    assert catalog.items() == before


def test_explicit_assignment_is_taken_as_it_is(catalog: Catalog) -> None:
    """The first server named is the preferred leader."""
    create(catalog, "t", assignments=[[3, 1], [2, 3]])
    placed = [
        [replica.server_id for replica in catalog.groups[group].replicas]
        for group in catalog.topics["t"].partitions
    ]
    assert placed == [[3, 1], [2, 3]]


def test_topics_are_deleted_by_name_and_by_id(catalog: Catalog) -> None:
    """Unknown names are 3, unknown ids 100.

    The result names the groups for the servers with replicas.
    """
    create(catalog, "a")
    create(catalog, "b", partitions=2)
    answer = catalog.apply(commands.DeleteTopics(["a", "no"], [topic_id("b"), topic_id("a")]), 0, 1)
    assert [(topic.name, topic.error) for topic in answer.topics] == [
        ("a", ErrorCode.NONE),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", ErrorCode.NONE),
        ("", ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert answer.events == [GroupRemoved(9), GroupRemoved(10), GroupRemoved(11)]
    assert (catalog.topics, catalog.topics_by_id, catalog.groups) == ({}, {}, {})


def test_producer_id_blocks_do_not_overlap(catalog: Catalog) -> None:
    """Two servers never allocate the same id, also after a restart."""
    first = catalog.apply(commands.AllocateProducerIds(1000), 0, 1)
    copy = Catalog("cluster")
    copy.load(catalog.items())
    second = copy.apply(commands.AllocateProducerIds(1000), 0, 2)
    assert (first.first, first.count, second.first) == (0, 1000, 1000)


NAMES = st.sampled_from(["a", "b", "c", "a.b"])
STEPS = st.one_of(
    st.builds(
        lambda name, n, rf, seq: commands.CreateTopics(
            [commands.NewTopic(name, bytes([seq]) * 16, n, rf)]
        ),
        NAMES,
        st.integers(-1, 4),
        st.integers(-1, 4),
        st.integers(0, 255),
    ),
    st.builds(commands.DeleteTopics, st.lists(NAMES, max_size=2)),
    st.builds(commands.AllocateProducerIds, st.integers(1, 5)),
    st.builds(
        lambda server, rack: commands.RegisterServer(server, bytes([server]) * 16, rack, {}, True),
        st.integers(1, 5),
        st.sampled_from(["", "r"]),
    ),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=25), st.integers(0, 25))
def test_replay_gives_equal_bytes_over_any_checkpoint(steps: list[Any], cut: int) -> None:
    """Replay gives equal bytes on every replica.

    It goes through encode and decode, and through a checkpoint at any point. Dirty keys merged are
    the whole state; indexes by name and id agree.
    """
    straight, restarted = Catalog("c"), Catalog("c")
    disk: dict[bytes, bytes] = {}

    def checkpoint() -> None:
        for key, value in restarted.take_dirty():
            if value is None:
                disk.pop(key, None)
            else:
                disk[key] = value

    for index, command in enumerate(steps):
        data = commands.encode(commands.Envelope(1, 1, index, 5, command))
        straight.apply(command, 5, index)
        restarted.apply(commands.decode(data).command, 5, index)
        if index == cut:
            checkpoint()
            restarted = Catalog("c")
            restarted.load(sorted(disk.items()))
    checkpoint()
    assert straight.items() == restarted.items()
    assert dict(straight.items()) == {**dict(Catalog().items()), **disk}
    assert {t.name for t in straight.topics_by_id.values()} == set(straight.topics)
    listed = [group for topic in straight.topics.values() for group in topic.partitions]
    assert sorted(listed) == sorted(straight.groups)
    for group in straight.groups.values():
        servers = [replica.server_id for replica in group.replicas]
        assert len(set(servers)) == len(servers)
        assert group.group_id < straight.next_group_id


def test_two_additions_to_a_list_that_race_are_both_kept(catalog: Catalog) -> None:
    """The result of an addition to a list is computed at apply (KIP-339).

    Each of two proposers read the list without the other's addition. Invalid elements are refused.
    """
    create(catalog, "t")

    def change(part: str, *, subtracts: bool = False) -> ErrorCode:
        one = commands.ListChange(
            "cleanup.policy", [part], subtracts, "delete", ["delete", "compact", "x"]
        )
        answer = catalog.apply(
            commands.AlterTopicConfigs([commands.ConfigChange("t", lists=[one])]), 0, 1
        )
        return ErrorCode(answer.errors[0])

    assert [change("compact"), change("x")] == [ErrorCode.NONE] * 2
    assert catalog.topics["t"].configs["cleanup.policy"] == "delete,compact,x"
    assert change("compact", subtracts=True) is ErrorCode.NONE
    assert change("y") is ErrorCode.INVALID_CONFIG
    assert catalog.topics["t"].configs["cleanup.policy"] == "delete,x"


def test_altered_configs_are_set_unset_or_replaced(catalog: Catalog) -> None:
    """Each topic is altered independently.

    Nothing is stored for a value that is back at its default.
    """
    create(catalog, "t", configs={"a": "1", "b": "2"})

    def alter(**change: Any) -> list[ErrorCode]:
        command = commands.AlterTopicConfigs([commands.ConfigChange("t", **change)])
        return list(catalog.apply(command, 0, 1).errors)

    assert alter(set={"c": "3", "a": "9"}, unset=["b"]) == [ErrorCode.NONE]
    assert catalog.topics["t"].configs == {"a": "9", "c": "3"}
    assert alter(set={"b": "2"}, replaces=True) == [ErrorCode.NONE]
    assert catalog.topics["t"].configs == {"b": "2"}
    assert catalog.topics_by_id[topic_id("t")] is catalog.topics["t"]
    copy = Catalog("cluster")
    copy.load(catalog.items())
    assert copy.topics["t"].configs == {"b": "2"}
    nobody = commands.AlterTopicConfigs([commands.ConfigChange("nobody")])
    assert catalog.apply(nobody, 0, 1).errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_topic_that_grows_keeps_its_groups_and_what_was_stored(catalog: Catalog) -> None:
    """New groups are numbered after all others; the stored state restores the same catalog."""
    create(catalog, "t", partitions=2)
    create(catalog, "u", partitions=1)
    kept = {group: catalog.groups[group] for group in (9, 10, 11)}
    answer = grow(catalog, "t", 4)
    assert answer.events == [GroupAdded(12), GroupAdded(13)]
    assert answer.topics[0].group_ids == [12, 13]
    assert catalog.topics["t"].partitions == [9, 10, 12, 13]
    assert {group: catalog.groups[group] for group in (9, 10, 11)} == kept
    assert [catalog.groups[group].partition for group in (12, 13)] == [2, 3]
    again = Catalog("cluster")
    again.load([(key, value) for key, value in catalog.take_dirty() if value is not None])
    assert again.items() == catalog.items()
    catalog.apply(commands.DeleteTopics(["t"]), 0, 1)
    assert sorted(catalog.groups) == [11]


def test_topic_grows_once_however_often_it_is_asked(catalog: Catalog) -> None:
    """The command names the total number of partitions: repeating it adds nothing."""
    create(catalog, "t", partitions=1)
    grow(catalog, "t", 3)
    again = grow(catalog, "t", 3)
    assert again.topics[0].error is ErrorCode.INVALID_PARTITIONS
    assert again.events == []
    assert len(catalog.topics["t"].partitions) == 3


def test_new_partitions_spread_beside_all_others(catalog: Catalog) -> None:
    """The preferred leaders of six partitions, also after growing, are two on each server."""
    create(catalog, "t", partitions=2)
    grow(catalog, "t", 6)
    leaders = [catalog.groups[g].replicas[0].server_id for g in catalog.topics["t"].partitions]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]


def test_new_partitions_have_as_many_replicas_as_the_first(catalog: Catalog) -> None:
    """The topic has no factor of its own; an assignment with another one is refused."""
    create(catalog, "t", partitions=1, replication_factor=2)
    grow(catalog, "t", 2)
    assert len(catalog.groups[catalog.topics["t"].partitions[1]].replicas) == 2
    refused = grow(catalog, "t", 3, [[1, 2, 3]])
    assert refused.topics[0].error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_topic_does_not_grow_beyond_what_servers_may_have(catalog: Catalog) -> None:
    """The limit holds for each server; validation reports it too, and reserves nothing."""
    create(catalog, "t", partitions=2)
    assert grow(catalog, "t", 5, replicas_max=4).topics[0].error is ErrorCode.POLICY_VIOLATION
    one_server = [[1], [1], [1]]
    create(catalog, "u", partitions=1, replication_factor=1)
    refused = grow(catalog, "u", 4, one_server, replicas_max=4)
    assert refused.topics[0].error is ErrorCode.POLICY_VIOLATION
    for _ in range(2):
        fits = grow(catalog, "t", 3, validate_only=True, replicas_max=4)
        assert (fits.topics[0].error, fits.events) == (ErrorCode.NONE, [])
    assert len(catalog.topics["t"].partitions) == 2
