"""Requests with many elements: split into parts, one a turn, with the answer of one request."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import pytest

from tests.price import wishes
from tests.unit.kafka.fake_host import Client, World, batch
from tests.unit.kafka.permissions.test_permissions import GROUP, TOPIC, Do, bind, client, secured
from tests.wire import codec, codec_of
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.api import API, ROWS
from vdl.kafka.codegen.samples import Sampler
from vdl.kafka.codegen.schema import load_all
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections import wide_request
from vdl.kafka.connections.wide_request import (
    JoinedAnswer,
    PartSize,
    WideRequest,
    arranged,
    in_parts,
    parts_of,
)
from vdl.kafka.limits.decoding import LOOP_BYTES, Decoding
from vdl.kafka.limits.memory import partitions_bytes
from vdl.kafka.parts import (
    LARGE_ELEMENTS,
    LOOP_ELEMENTS,
    PAGE_ELEMENTS,
    PART_ELEMENTS,
    PARTS,
    REPLICAS_MAX,
    WHOLE_ELEMENTS,
    Page,
    Parts,
    Whole,
)
from vdl.kafka.security.principal import Principal
from vdl.kafka.wire import (
    alter_partition_reassignments,
    consumer_group_heartbeat,
    create_topics,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_topic_partitions,
    find_coordinator,
    list_offsets,
    metadata,
    offset_fetch,
    produce,
)
from vdl.kafka.wire.create_acls import AclCreation, CreateAclsRequest
from vdl.state import commands
from vdl.state.commands import AclFilter

FACTS = {api.key: api for api in load_all()}
CUT = [
    pytest.param(API[key], row, id=f"{API[key].name}-{row.asked}")
    for key, rows in PARTS.items()
    if isinstance(rows, tuple)
    for row in rows
    if isinstance(row, Parts)
]
MANY = 20 * PART_ELEMENTS
NAMES = [f"n{number}" for number in range(MANY)]
"""Names that no resource has."""
SMALL = 7
"""Elements of a part in tests that need many parts of few elements."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_request, "PART_ELEMENTS", SMALL)


@pytest.fixture
def even_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part is as large as the others, which take no time here."""
    monkeypatch.setattr(wide_request, "FIRST_ELEMENTS", PART_ELEMENTS)


def samples(key: int, version: int, rng: random.Random, *, side: int) -> Any:
    api = FACTS[key]
    sampler = Sampler(rng, is_modest=True)
    return sampler.message(api, api.messages[side], version)


def grown(message: Any, names: list[str], more: Any, rng: random.Random) -> None:
    """Lengthen the lists of a message, also with elements of other samples."""
    name, *deeper = names
    items = getattr(message, name) or []
    for _ in range(rng.randint(0, 9)):
        items = items + (getattr(more(), name) or [])
    setattr(message, name, items)
    if deeper:
        for item in items:
            inner = getattr(item, deeper[0])
            if inner and rng.random() < 0.3:
                setattr(item, deeper[0], inner * rng.randint(1, 12))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("api", "row"), CUT)
def test_joined_answer_has_the_bytes_of_the_whole(api: Any, row: Parts) -> None:
    """Holds in every version, for any other fields of the answer and any depth of the split."""
    rng = random.Random(row.answered)
    names = row.answered.split(".")
    cut = 0
    for version in range(api.min_version, api.max_version + 1):
        for _ in range(20):
            answer = samples(api.key, version, rng, side=1)
            grown(answer, names, lambda v=version: samples(api.key, v, rng, side=1), rng)
            if not getattr(answer, names[0]):
                continue
            whole = b"".join(api.wire.encode_response(answer, version))
            joined = JoinedAnswer(Parts(row.asked, row.answered), api.wire, version)
            same = Parts(row.answered, row.answered)
            parts = list(
                parts_of(same, answer, arranged(same, getattr(answer, names[0])), PartSize(SMALL))
            )
            for place, part in parts:
                joined.add(place, part)
            cut += len(parts) > 1
            assert b"".join(joined.encoded()) == whole, (version, len(parts))
    assert cut > 4


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("api", "row"), CUT)
def test_parts_have_few_elements_and_all_of_them(api: Any, row: Parts) -> None:
    """No element is lost or duplicated, and elements of one parent stay together."""
    rng = random.Random(row.asked)
    names = row.asked.split(".")
    for version in range(api.min_version, api.max_version + 1):
        request = samples(api.key, version, rng, side=0)
        grown(request, names, lambda v=version: samples(api.key, v, rng, side=0), rng)
        items = getattr(request, names[0])
        if not items:
            continue
        plain = Parts(row.asked, row.answered)
        parts = [
            part for _, part in parts_of(plain, request, arranged(plain, items), PartSize(SMALL))
        ]
        assert [*leaves(items, names[1:])] == [
            leaf for part in parts for leaf in leaves(getattr(part, names[0]), names[1:])
        ]
        for part in parts:
            held = len(names) - 1  # the elements around a slice
            assert weight(getattr(part, names[0]), names[1:]) <= SMALL + held, part


def test_error_of_one_slice_is_that_of_the_whole_element() -> None:
    """The other slices are left out: the client may not see them, or they are wrong by now."""
    group, member = describe_groups.DescribedGroup, describe_groups.DescribedGroupMember
    response = describe_groups.DescribeGroupsResponse
    for codes in ((0, 29, 0), (29, 0, 0), (0, 0, 29)):
        joined = JoinedAnswer(row_of(15), API[15].wire, 5)
        joined.add((), response(groups=[group(group_id="before")]))
        for code in codes:
            slice_of = group(code, group_id="g", members=[] if code else [member("m")])
            joined.add((1,), response(groups=[slice_of]))
        joined.add((), response(groups=[group(group_id="behind")]))
        told = codec(15).decode_response(memoryview(b"".join(joined.encoded())), 5)
        assert [one.group_id for one in told.groups] == ["before", "g", "behind"]
        assert (told.groups[1].error_code, told.groups[1].members) == (29, [])


def weight(items: list[Any], names: list[str]) -> int:
    """Return the number of elements in a list and in its nested lists."""
    inner = [getattr(item, names[0]) or [] for item in items] if names else []
    return len(items) + sum(weight(some, names[1:]) for some in inner)


def leaves(items: list[Any], names: list[str]) -> Iterator[Any]:
    """Yield the innermost elements, each with the fields of its parents."""
    for item in items:
        inner = getattr(item, names[0]) if names else None
        if not inner:
            yield repr(item)
            continue
        for leaf in leaves(inner, names[1:]):
            yield (
                [getattr(item, field.name) for field in fields(item) if field.name != names[0]],
                leaf,
            )


def test_every_api_with_a_list_says_how_it_is_cut_or_why_not() -> None:
    """A new API cannot be served without a decision about its longest list."""
    with_lists = {
        api.key
        for api in ROWS
        if any("list[" in str(field.type) for field in fields(request_class(api)))
    }
    assert PARTS.keys() == with_lists
    for key, rows in PARTS.items():
        wire, request = API[key].wire, request_class(API[key])
        response = getattr(wire, f"{API[key].name}Response")
        counted = set()
        for row in () if isinstance(rows, Page) else rows if isinstance(rows, tuple) else (rows,):
            for one in row.lists if isinstance(row, Whole) else (row,):
                counted.add(one.asked.partition(".")[0])
                assert has_path(wire, request, one.asked), (key, one)
                if isinstance(row, Parts):
                    # The answer to an element may itself be made in parts.
                    assert one.asked.count(".") <= one.answered.count("."), (key, one)
                if one.answered:
                    assert has_path(wire, response, one.answered), (key, one)
            if isinstance(row, Whole):
                assert len(row.why) > 20, key
        lists = {one.name for one in fields(request) if "list[" in str(one.type)}
        assert isinstance(rows, Page) or counted == lists, key


def request_class(api: Any) -> Any:
    return getattr(api.wire, f"{api.name}Request")


def has_path(wire: Any, of: Any, path: str) -> bool:
    for name in path.split("."):
        if not is_dataclass(of):
            return False
        (found,) = (field for field in fields(of) if field.name == name)
        text = str(found.type).removesuffix(" | None")
        if not text.startswith("list["):
            return False
        of = getattr(wire, text[5:-1].rpartition(".")[2], None)
    return True


SILENT = {(35, 1), (35, 2)}
"""DescribeLogDirs: its answer has no error code in these versions, and is empty, as it is without
permission."""
WHOLES = {
    key: rows if isinstance(rows, tuple) else (rows,)
    for key, rows in PARTS.items()
    if isinstance(rows, Whole) or (isinstance(rows, tuple) and isinstance(rows[0], Whole))
}


@pytest.mark.parametrize("key", WHOLES, ids=lambda key: API[key].name)
def test_what_is_not_cut_is_refused_when_it_is_too_much(
    key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every version, and for each list that is long: one error, or one for each element, a part
    per turn. No handler is called, and a client without permission is refused too."""
    api = API[key]
    seen: list[Any] = []
    monkeypatch.setattr(api, "handler", lambda ctx, request: seen.append(request))
    small = tuple(replace(row, at_once=SMALL, times=0) for row in WHOLES[key])
    monkeypatch.setitem(PARTS, key, small)  # type: ignore[arg-type]
    monkeypatch.setattr(wide_request, "REPLICAS_TIMES", 0)
    for who in ("root", "alice"):
        world = secured()
        for version in range(api.min_version, api.max_version + 1):
            for path in wishes.paths(key, version):
                wish = wishes.Wish(path, elements=1_500, others=1)
                body = wishes.write(key, version, wish).body
                asker = client(world, Principal(who))
                asker.session.receive(asker.frame(key, version, body))
                world.run(1_000)
                (answer,) = asker.answers()
                codes = {*errors_in(answer)} - {ErrorCode.NONE}
                if (key, version) in SILENT:
                    assert not codes
                elif who == "root":
                    assert codes == {ErrorCode.INVALID_REQUEST}, (version, path)
                else:
                    assert codes, (version, path)
                assert not asker.closed
        assert (world.context.requests.used, world.context.answers.used) == (0, 0)
    assert not seen


def errors_in(answer: Any) -> Iterator[int]:
    """Yield each error code of an answer."""
    for field in fields(answer):
        value = getattr(answer, field.name)
        if field.name.endswith("error_code"):
            yield value
        elif isinstance(value, list):
            for item in value:
                if is_dataclass(item):
                    yield from errors_in(item)


def largest_that_are_usual() -> dict[str, tuple[int, int, Any]]:
    """Return, by name, (API key, version, request) of a request about as many partitions as a set
    of three servers may have, each in its own topic."""
    count = KafkaOptions().replicas_per_server_max
    heartbeat, reassign = consumer_group_heartbeat, alter_partition_reassignments
    return {
        "heartbeat": (68, 1, heartbeat.ConsumerGroupHeartbeatRequest(
            "g", "m", 1, None, None, 1_000, NAMES[:count], None, None,
            [heartbeat.TopicPartitions(bytes(16), [0])] * count,
        )),
        "reassignments": (45, 1, reassign.AlterPartitionReassignmentsRequest(1_000, True, [
            reassign.ReassignableTopic(name, [reassign.ReassignablePartition(0, [1, 2, 3])])
            for name in NAMES[:count]
        ])),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["heartbeat", "reassignments"])
def test_what_names_all_that_a_set_may_have_is_done(name: str) -> None:
    """Clients take INVALID_REQUEST for final."""
    key, version, request = largest_that_are_usual()[name]
    body = b"".join(codec(key).encode_request(request, version))
    found = wide_request.decoded(API[key], version, memoryview(body))
    assert isinstance(found, wide_request.Decoded)
    assert found.wide is None


@pytest.mark.parametrize("key", [1, 68], ids=["Fetch", "ConsumerGroupHeartbeat"])
def test_server_that_may_have_more_replicas_is_asked_for_more_at_once(key: int) -> None:
    """A consumer may read all partitions that a server leads, up to the configured maximum."""
    version = API[key].max_version
    path = next(path for path in wishes.paths(key, version) if len(path) == 1)
    wish = wishes.Wish(path, elements=5 * REPLICAS_MAX)
    body = memoryview(wishes.write(key, version, wish).body)
    for replicas_max, is_done in ((REPLICAS_MAX, False), (2 * REPLICAS_MAX, True)):
        found = wide_request.decoded(API[key], version, body, replicas_max)
        assert isinstance(found, wide_request.Decoded)
        assert (found.wide is None) is is_done


HELD = [
    pytest.param(API[key], row, held, id=f"{API[key].name}-{held}")
    for key, rows in PARTS.items()
    if isinstance(rows, tuple)
    for row in rows
    if isinstance(row, Parts)
    for held in row.held
]


@pytest.mark.parametrize(("api", "row", "held"), HELD)
def test_element_with_a_list_that_is_too_long_is_refused(api: Any, row: Parts, held: str) -> None:
    """It cannot be split. An element at the limit is handled, in a part of its own."""
    path = f"{row.asked}.{held}".split(".")
    version = api.max_version
    camel = next(
        one
        for one in wishes.paths(api.key, version)
        if [name.lower() for name in one] == ["".join(name.split("_")) for name in path]
    )
    for more, is_refused in ((-100, False), (500, True)):
        wish = wishes.Wish(camel, elements=WHOLE_ELEMENTS + more)
        body = wishes.write(api.key, version, wish).body
        found = wide_request.decoded(api, version, memoryview(body))
        assert isinstance(found, wide_request.Decoded)
        assert found.wide is not None
        assert found.wide._is_refused is is_refused
        part = found.wide.next_part()
        assert found.wide.is_done
        # The refusal may name the list's elements, so it must not see them in one turn.
        (item,) = getattr(part, row.asked)
        assert bool(getattr(item, path[len(row.asked.split("."))])) is not is_refused


@pytest.mark.parametrize(("api", "row", "held"), HELD)
def test_no_handler_sees_an_element_with_a_list_that_is_too_long(
    api: Any, row: Parts, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler does not see the other elements of the request either."""
    seen: list[Any] = []
    monkeypatch.setattr(api, "handler", lambda ctx, request: seen.append(request))
    path = f"{row.asked}.{held}".replace("_", "").lower()
    version = api.max_version
    (camel,) = [one for one in wishes.paths(api.key, version) if ".".join(one).lower() == path]
    body = wishes.write(api.key, version, wishes.Wish(camel, elements=WHOLE_ELEMENTS + 500)).body
    world = secured()
    asker = client(world, Principal("root"))
    asker.session.receive(asker.frame(api.key, version, body))
    world.run(1_000)
    (answer,) = asker.answers()
    assert {*errors_in(answer)} - {ErrorCode.NONE} == {ErrorCode.INVALID_REQUEST}
    assert not seen


@pytest.mark.parametrize(("api", "row", "held"), HELD)
def test_lists_that_are_not_cut_count_where_an_element_belongs(
    api: Any, row: Parts, held: str
) -> None:
    """Several elements with long lists are not put into one part."""
    wire = api.wire
    path = f"{row.asked}.{held}".split(".")
    camel = next(
        one
        for one in wishes.paths(api.key, api.max_version)
        if [name.lower() for name in one] == ["".join(name.split("_")) for name in path]
    )
    body = wishes.write(api.key, api.max_version, wishes.Wish(camel, "even", elements=20_000)).body
    message = wire.decode_request(memoryview(body), api.max_version)
    items = getattr(message, row.asked)
    parts = [
        part
        for _, part in parts_of(
            row, message, arranged(Parts("", ""), items), PartSize(PART_ELEMENTS)
        )
    ]
    assert [one for part in parts for one in getattr(part, row.asked)] == items
    heaviest = max(weight([item], held.split(".")) for item in items)
    for part in parts:
        some = getattr(part, row.asked)
        assert len(some) == 1 or weight(some, held.split(".")) <= PART_ELEMENTS + heaviest


@pytest.mark.parametrize(("key", "version"), [(34, 2), (51, 0), (24, 3), (1, 6)])
def test_each_element_of_what_is_refused_has_its_answer(key: int, version: int) -> None:
    """This includes elements that are nested more deeply in the request than in the answer."""
    api, row = API[key], WHOLES[key][0]
    assert isinstance(row, Whole)
    world = secured()
    asker = client(world, Principal("root"))
    for path in wishes.paths(key, version):
        for shape in ("inner", "outer"):
            wish = wishes.Wish(path, shape, elements=row.most(REPLICAS_MAX) + 2_000, others=1)
            body = wishes.write(key, version, wish).body
            request = api.wire.decode_request(memoryview(body), version)
            asked = {
                one.asked: elements_of(request, one.asked)
                for one in row.lists
                if one.answered and getattr(request, one.asked.partition(".")[0])
            }
            asker.session.receive(asker.frame(key, version, body))
            world.run(1_000)
            (answer,) = asker.answers()
            found = elements_of(answer, row.lists[0].answered)
            if path[0] != "ForgottenTopicsData":
                assert len(found) == sum(map(len, asked.values())) > 0, (path, shape)


# --- on a connection -----------------------------------------------------------------------------

BRANCHES = 9
"""Maximum number of authorization checks for an element: to see it, and for its other
operations."""


def asked_for() -> dict[int, tuple[int, Any]]:
    """Return {API key: (version, request about many resources)}; any client may send them."""
    return {
        2: (10, list_offsets.ListOffsetsRequest(topics=[
            list_offsets.ListOffsetsTopic(name, [list_offsets.ListOffsetsPartition(0)])
            for name in NAMES[: MANY // 2]
        ])),
        3: (12, metadata.MetadataRequest(
            [metadata.MetadataRequestTopic(bytes(16), name) for name in NAMES],
            allow_auto_topic_creation=False,
        )),
        9: (9, offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(name, topics=[]) for name in NAMES]
        )),
        10: (6, find_coordinator.FindCoordinatorRequest(coordinator_keys=NAMES)),
        15: (6, describe_groups.DescribeGroupsRequest(NAMES)),
        19: (7, create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic(name, 1, 1) for name in NAMES], 1_000
        )),
        20: (6, delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(name) for name in NAMES], [], 1_000
        )),
        30: (3, CreateAclsRequest([AclCreation(2, n, 3, "User:a", "*", 3, 3) for n in NAMES])),
        32: (4, describe_configs.DescribeConfigsRequest(
            [describe_configs.DescribeConfigsResource(2, name, None) for name in NAMES]
        )),
    }  # fmt: skip


ASKED = asked_for()


def elements_of(answer: Any, path: str) -> list[Any]:
    items: list[Any] = [answer]
    for name in path.split("."):
        items = [one for item in items for one in getattr(item, name)]
    return items


def row_of(key: int) -> Parts:
    rows = PARTS[key]
    assert isinstance(rows, tuple), key
    return rows[0]


def turns(
    world: World, asker: Client, key: int, version: int, request: Any
) -> tuple[Any, int, int]:
    """Send a request. Return (answer, maximum number of checks in one turn, number of turns)."""
    authorizer = world.context.authorizer
    assert authorizer is not None
    most, count, before = 0, 0, authorizer.decisions
    asker.request(key, version, request)
    while not asker.received:
        most, before = max(most, authorizer.decisions - before), authorizer.decisions
        count += 1
        assert world.time.step(), "no answer"
    (answer,) = asker.answers()
    return answer, max(most, authorizer.decisions - before), count


@pytest.mark.parametrize("key", ASKED, ids=lambda key: API[key].name)
def test_wide_request_without_permission_gives_the_loop_back(key: int) -> None:
    """A turn handles a bounded number of elements, and each element is refused."""
    version, request = ASKED[key]
    world = secured()
    answer, most, count = turns(world, client(world), key, version, request)
    assert most <= PART_ELEMENTS * BRANCHES
    assert count >= MANY // PART_ELEMENTS
    row = row_of(key)
    found = elements_of(answer, row.answered if key == 2 else row.answered.partition(".")[0])
    assert len(found) == (MANY // 2 if key == 2 else MANY)
    assert {one.error_code for one in found} <= {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }


@pytest.mark.parametrize("key", [2, 3, 19, 20, 32], ids=lambda key: API[key].name)
def test_wide_request_is_answered_as_if_it_were_small(
    key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With some permissions, the same elements get the same answers, split or not."""
    operations = (Do.DESCRIBE, Do.DESCRIBE_CONFIGS, Do.CREATE, Do.DELETE)
    bindings = [bind(do, TOPIC, name) for do in operations for name in NAMES[:40:3]]
    version, request = ASKED[key]
    name = row_of(key).asked.partition(".")[0]
    items = getattr(request, name)
    request = replace(request, **{name: [*items[:100], *items[2:12]]})
    told = []
    for size in (SMALL, 1 << 30):
        monkeypatch.setattr(wide_request, "PART_ELEMENTS", size)
        world = secured(*bindings)
        world.topic("n3")
        answer = client(world).ask(key, version, request, wait_ms=1_000)
        row = row_of(key)
        first = row.answered.partition(".")[0]
        told.append(sorted(map(repr, getattr(answer, first))))
        setattr(answer, first, [])
        told[-1].append(repr(answer))
    if key == 19:  # topic ids are random
        told = [[re.sub(r"topic_id=b'[^,]*", "", one) for one in some] for some in told]
    assert told[0] == told[1]


def test_what_is_sent_behind_a_wide_request_is_answered_after_it() -> None:
    """The order is kept while other connections are served between its parts."""
    world = secured()
    asker, other = client(world), client(world)
    version, request = ASKED[10]
    asker.request(10, version, request)
    asker.request(10, version, find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"]))
    other.request(10, version, find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"]))
    while not other.received:
        assert world.time.step()
    assert not asker.received
    world.run(1_000)
    assert [len(answer.coordinators) for answer in asker.answers()] == [MANY, 1]


def test_connection_that_closes_ends_its_wide_request() -> None:
    """No further element is checked, and its memory is released."""
    world = secured()
    asker = client(world)
    version, request = ASKED[10]
    asker.request(10, version, request)
    for _ in range(4):
        world.time.step()
    authorizer = world.context.authorizer
    assert authorizer is not None
    assert 0 < authorizer.decisions < MANY
    assert world.context.answers.used > 0
    asker.session.connection_lost()
    before = authorizer.decisions
    world.run(1_000)
    assert authorizer.decisions == before
    assert (world.context.requests.used, world.context.answers.used) == (0, 0)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable the garbage collector, so that an object in a cycle stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_of(kind: type) -> int:
    return sum(isinstance(one, kind) for one in gc.get_objects())


def wide_requests() -> list[WideRequest]:
    return [one for one in gc.get_objects() if isinstance(one, WideRequest)]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("parts", [0, 1, 3])
def test_wide_request_is_freed_with_its_connection(parts: int) -> None:
    """A full collection may come minutes later, and would free millions of objects in one turn."""
    world = secured(bind(Do.DESCRIBE, GROUP, "*"))
    jobs: list[tuple[Any, Any]] = []
    world.context.decoding = Decoding(lambda job, done: jobs.append((job, done)))
    asker = client(world)
    version, request = ASKED[10]
    asker.request(10, version, request)
    job, done = jobs.pop()
    if not parts:
        asker.session.connection_lost()
    done(job())
    del job, done
    for _ in range(parts):
        world.time.step()
    assert bool(wide_requests()) is bool(parts)
    if parts:
        asker.session.connection_lost()
    world.run(1_000)
    assert not wide_requests()


@pytest.mark.usefixtures("even_parts")
@pytest.mark.usefixtures("no_collection")
def test_elements_are_freed_with_their_parts() -> None:
    """Otherwise one turn would free 200,000 elements."""
    kind = metadata.MetadataRequestTopic
    others = count_of(kind)
    request = metadata.MetadataRequest([kind(name=name) for name in NAMES])
    wide = wide_request.in_parts(API[3], 4, request).wide
    assert wide is not None
    wide.judge(cast("Any", None))
    left = MANY
    while not wide.is_done:
        assert count_of(kind) - others == left
        wide.next_part()
        left -= PART_ELEMENTS
    assert left == 0
    assert wide.message is request


@pytest.mark.usefixtures("even_parts")
@pytest.mark.usefixtures("no_collection")
def test_refused_wide_request_is_freed_with_its_answer() -> None:
    world = World()
    asker = world.client()
    topics = [create_topics.CreatableTopic(name, 100, 1) for name in NAMES]
    asker.request(19, 7, create_topics.CreateTopicsRequest(topics))
    world.run(10_000)
    (answer,) = asker.answers()
    assert {one.error_code for one in answer.topics} == {ErrorCode.POLICY_VIOLATION}
    del answer
    assert not wide_requests()


def test_connection_that_closes_while_its_request_is_decoded_holds_it_until_then() -> None:
    """The thread uses the bytes, whether the connection is open or not."""
    world = secured()
    jobs: list[tuple[Any, Any]] = []
    world.context.decoding = Decoding(lambda job, done: jobs.append((job, done)))
    asker = client(world)
    version, request = ASKED[10]
    asker.request(10, version, request)
    asker.session.connection_lost()
    assert world.context.requests.used > 0
    ((job, done),) = jobs
    done(job())
    world.run(1_000)
    assert world.context.requests.used == 0
    assert not asker.received


def test_long_requests_are_decoded_in_turns_between_their_senders() -> None:
    """A client that sends many delays only itself. A malformed request ends its connection."""
    world = secured()
    jobs: list[tuple[Any, Any]] = []
    world.context.decoding = Decoding(lambda job, done: jobs.append((job, done)))
    many = [client(world) for _ in range(3)]
    other = client(world, Principal("bob"))
    version, request = ASKED[10]
    for asker in [*many, other]:
        asker.request(10, version, request)
    order = []
    while jobs:
        ((job, done),) = jobs
        jobs.clear()
        done(job())
        world.run(1_000)
        order += [asker for asker in [*many, other] if asker.received]
        for asker in order:
            asker.received.clear()
    assert order == [many[0], many[1], other, many[2]]
    many[0].session.receive(many[0].frame(10, version, b"\xff" * (LOOP_BYTES + 1)))
    ((job, done),) = jobs
    done(job())
    world.run(1)
    assert many[0].closed


@pytest.mark.usefixtures("even_parts")
def test_part_is_judged_by_what_its_client_may_do_then() -> None:
    """A permission that is removed between two parts applies to the second."""
    world = secured(bind(Do.DESCRIBE, GROUP, "*"))
    asker = client(world)
    version, request = ASKED[10]
    asker.request(10, version, request)
    for _ in range(6):
        world.time.step()
    world.host.apply(commands.DeleteAcls([AclFilter(2, None, 1, None, None, 1, 1)]))
    world.host.apply(commands.DeleteAcls([AclFilter(3, None, 1, None, None, 1, 1)]))
    world.run(1_000)
    (answer,) = asker.answers()
    codes = [one.error_code for one in answer.coordinators]
    refused = codes.index(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert refused % PART_ELEMENTS == 0
    assert 0 < refused < MANY
    assert set(codes[refused:]) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}


def test_topics_of_all_parts_together_are_bounded() -> None:
    """The maximum number of partitions applies to the request, not to a part of it."""
    world = secured(partitions_per_request_max=MANY - 1)
    version, request = ASKED[19]
    root = client(world, Principal("root"))
    answer = root.ask(19, version, request, wait_ms=1_000)
    assert {one.error_code for one in answer.topics} == {ErrorCode.POLICY_VIOLATION}
    assert len(world.host.catalog.topics) == 1


def test_name_that_is_given_twice_far_apart_is_a_mistake_all_the_same() -> None:
    """CreateTopics creates neither, and a repeated name has one entry in the answer."""
    world = secured()
    request = create_topics.CreateTopicsRequest(
        [create_topics.CreatableTopic(name, 1, 1) for name in ["twice", *NAMES[:2_000], "twice"]],
        1_000,
    )
    root = client(world, Principal("root"))
    answer = root.ask(19, 7, request, wait_ms=1_000)
    found = {topic.name: topic.error_code for topic in answer.topics}
    assert len(answer.topics) == 2_001
    assert found.pop("twice") == ErrorCode.INVALID_REQUEST
    assert set(found.values()) == {ErrorCode.NONE}
    assert "twice" not in world.host.catalog.topics


@pytest.mark.parametrize("who", ["alice", "root"])
def test_topics_are_described_in_pages_that_a_turn_can_make(who: str) -> None:
    """DescribeTopicPartitions: each page has the cursor of the next one, also for a client without
    permission. All pages together have each name once."""
    described = describe_topic_partitions
    names = NAMES[: 3 * PAGE_ELEMENTS]
    world = secured(*(bind(Do.DESCRIBE, TOPIC, name) for name in names[::7]))
    world.topic("n70", 3)
    asker = client(world, Principal(who))
    cursor = None
    told: list[str] = []
    for _ in range(5):
        request = described.DescribeTopicPartitionsRequest(
            [described.TopicRequest(name) for name in reversed(names)], 2_000, cursor
        )
        answer, most, _ = turns(world, asker, 75, 0, request)
        assert most <= PAGE_ELEMENTS * BRANCHES
        assert len(answer.topics) <= PAGE_ELEMENTS
        told += [topic.name for topic in answer.topics]
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert sorted(told) == sorted(names)
    wrong = described.Cursor("nowhere", 0)
    request = described.DescribeTopicPartitionsRequest(
        [described.TopicRequest(name) for name in names], 2_000, wrong
    )
    answer = asker.ask(75, 0, request)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_REQUEST}
    assert len(answer.topics) == PAGE_ELEMENTS


def produced(names: list[str], size: int, *, acks: int = -1) -> produce.ProduceRequest:
    """Return a request with one batch of one record of `size` for each topic's first partition."""
    return produce.ProduceRequest(
        None,
        acks,
        1_000,
        [
            produce.TopicProduceData(
                name, bytes(16), [produce.PartitionProduceData(0, bytes(batch(1, size)))]
            )
            for name in names
        ],
    )


@pytest.mark.parametrize("acks", [-1, 0])
def test_batches_behind_a_wide_produce_get_their_place_behind_all_its_parts(acks: int) -> None:
    """Idempotent producers and readers rely on the order in which a connection sent batches."""
    world = World()
    (stream,) = world.topic("last")
    asker = world.client()
    asker.request(0, 9, produced([*NAMES[: 2 * PART_ELEMENTS], "last"], 10, acks=acks))
    asker.request(0, 9, produced(["last"], 20, acks=acks))
    world.run(1_000)
    sizes = [len(one.data) for one in stream.batches]
    assert sizes == sorted(sizes)
    assert len(sizes) == 2
    if not acks:
        assert not asker.received
        return
    wide, small = asker.answers()
    codes = [topic.partition_responses[0].error_code for topic in wide.responses]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2 * PART_ELEMENTS + [ErrorCode.NONE]
    assert small.responses[0].partition_responses[0].base_offset == 1


def test_produce_of_many_partitions_is_decoded_in_a_thread_and_keeps_its_place() -> None:
    """The number of partitions does not follow from the size, as most bytes are records. Earlier
    requests continue, later ones wait."""
    world = World()
    (stream,) = world.topic("last")
    jobs: list[tuple[Any, Any]] = []
    world.context.decoding = Decoding(lambda job, done: jobs.append((job, done)))
    asker = world.client()
    asker.request(0, 9, produced(["last"], 10))
    asker.request(0, 9, produced([*NAMES[:LOOP_ELEMENTS], "last"], 20))
    asker.request(0, 9, produced(["last"], 30))
    world.run(100)
    assert len(asker.answers()) == 1
    ((job, done),) = jobs
    assert len(stream.batches) == 1
    done(job())
    world.run(1_000)
    sizes = [len(one.data) for one in stream.batches]
    assert (len(sizes), sizes) == (3, sorted(sizes))
    assert len(asker.answers()) == 2
    assert (world.context.requests.used, world.context.answers.used) == (0, 0)


@pytest.mark.parametrize("is_gone", [False, True])
def test_produce_is_charged_for_its_partitions_once_they_are_known(*, is_gone: bool) -> None:
    """While it waits to be decoded, only its frame is charged. A client that disconnects is charged
    for nothing."""
    world = World()
    world.topic("last")
    jobs: list[tuple[Any, Any]] = []
    world.context.decoding = Decoding(lambda job, done: jobs.append((job, done)))
    memory = world.context.requests
    asker = world.client()
    request = produced([*NAMES[:MANY], "last"], 20)
    asker.request(0, 9, request)
    world.run(100)
    waiting = memory.used
    assert 0 < waiting <= 2 * len(b"".join(codec_of(produce).encode_request(request, 9)))
    if is_gone:
        asker.session.connection_lost()
    ((job, done),) = jobs
    done(job())
    known = 0 if is_gone else waiting + partitions_bytes(request)
    assert memory.used == known
    world.run(1_000)
    assert (memory.used, world.context.answers.used) == (0, 0)


def test_produce_of_one_large_batch_is_decoded_on_the_loop() -> None:
    """Its records are not decoded."""
    world = World()
    world.topic("last")
    asker = world.client()
    assert asker.ask(0, 9, produced(["last"], 900_000)).responses[0].partition_responses
    assert world.context.decoding.left_loop == 0


def test_wide_produce_without_permission_gives_the_loop_back() -> None:
    """With acks=0 the connection is closed after the permitted batches are in the log."""
    world = secured(bind(Do.WRITE, TOPIC, "t"))
    names = [*NAMES[: 3 * PART_ELEMENTS], "t"]
    answer, most, _ = turns(world, client(world), 0, 9, produced(names, 1))
    assert most <= PART_ELEMENTS * BRANCHES
    codes = {t.name: t.partition_responses[0].error_code for t in answer.responses}
    assert codes.pop("t") == ErrorCode.NONE
    assert set(codes.values()) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    silent = client(world)
    silent.request(0, 9, produced(names, 1, acks=0))
    world.run(1_000)
    assert silent.closed
    (group,) = world.host.catalog.topics["t"].partitions
    assert len(world.host.streams[group].batches) == 2


def test_connection_that_closes_during_a_wide_produce_gives_back_its_memory() -> None:
    """No further part is handled."""
    world = World()
    (stream,) = world.topic("last")
    asker = world.client()
    asker.request(0, 9, produced([*NAMES[: 2 * PART_ELEMENTS], "last"], 10))
    world.time.step()
    assert world.context.requests.used > 0
    asker.session.connection_lost()
    world.run(1_000)
    assert (world.context.requests.used, world.context.answers.used) == (0, 0)
    assert not stream.batches


@pytest.mark.parametrize("key", sorted(LARGE_ELEMENTS))
def test_elements_with_large_answers_begin_in_parts_of_one(key: int) -> None:
    """A short request may name a group of ten thousand members several times."""
    api = API[key]
    version = api.max_version
    path = next(wishes.paths(key, version))
    body = wishes.write(key, version, wishes.Wish(path, elements=11)).body
    message = api.wire.decode_request(memoryview(body), version)
    row = wide_request.row_of(PARTS[key], message)
    assert isinstance(row, Parts)
    name = row.asked.partition(".")[0]
    assert len(getattr(message, name)) > 1
    wide = in_parts(api, version, message).wide
    assert wide is not None
    for _ in range(2):
        assert len(getattr(wide.next_part(), name)) == 1
        wide.used(10 * MS)
        wide.part_over()


def test_group_of_an_element_with_a_large_answer_stays_whole() -> None:
    """A client that asks for a group's offsets expects those of one moment, by one read."""
    asked = offset_fetch.OffsetFetchRequestTopics("t", partition_indexes=[*range(12)])
    groups = [offset_fetch.OffsetFetchRequestGroup(name, topics=[asked]) for name in "abc"]
    message = offset_fetch.OffsetFetchRequest(groups=groups)
    wide = in_parts(API[offset_fetch.API_KEY], 9, message).wide
    assert wide is not None
    for name in "abc":
        part = wide.next_part()
        assert [(one.group_id, one.topics) for one in part.groups] == [(name, [asked])]
        wide.used(10 * MS)
        wide.part_over()


def test_short_request_for_several_groups_is_cut() -> None:
    """It is decoded on the loop, where only longer requests may be cut otherwise."""
    world = World()
    asker = world.client()
    asker.request(15, 5, describe_groups.DescribeGroupsRequest(["a", "b", "a"]))
    started = asker.session.admission.started
    assert started
    assert started[0].wide is not None
