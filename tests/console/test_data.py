"""Each page of the console shows what clients of Kafka see."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.console.asking import Browser, browser
from tests.console.browser.console_set import ConsoleSet, client_settings, consuming, make_topics
from tests.hangs import HANG_SECONDS


@pytest.fixture
def page(port: int) -> Browser:
    return browser(port)


@pytest.fixture
def topic(open_set: ConsoleSet) -> str:
    """Return a new topic of three partitions."""
    name = f"data.{uuid.uuid4().hex[:8]}"
    make_topics(client_settings(open_set), {name: 3})
    return name


def write(servers: ConsoleSet, topic: str, count: int, **settings: str) -> None:
    """Write records 0 to `count` - 1 to partition 0."""
    producer = Producer({**client_settings(servers), "linger.ms": 50, **settings})
    for number in range(count):
        producer.produce(
            topic, f"value {number}", f"key {number}", 0, timestamp=1_700_000_000_000 + number
        )
    assert producer.flush(HANG_SECONDS) == 0


def until(ask: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Return the first answer for which something holds."""
    deadline = time.monotonic() + HANG_SECONDS
    while not holds(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def test_overview_of_three_servers_has_all_of_them(page: Browser, topic: str) -> None:
    found = until(lambda: page.page("overview"), lambda found: found["counts"]["servers_up"] == 3)
    assert [one["id"] for one in found["servers"]] == [1, 2, 3]
    assert found["problems_of"] == "cluster"
    assert found["counts"]["topics"] >= 1
    assert found["counts"]["partitions"] >= 3
    assert {one["state"] for one in found["servers"]} == {"up"}
    assert [one["is_this"] for one in found["servers"]] == [True, False, False]
    assert all(one["version"] for one in found["servers"])


def test_server_shows_its_settings(page: Browser) -> None:
    found = page.page("server", server=2)
    names = {one["name"] for one in found["settings"]}
    assert found["server"]["id"] == 2
    assert "log.retention.ms" in names
    assert page.get("server", server=9).kind == "not_found"
    assert [one["id"] for one in page.page("servers")["servers"]] == [1, 2, 3]


def test_topics_are_searched_sorted_and_paged(page: Browser, open_set: ConsoleSet) -> None:
    mark = uuid.uuid4().hex[:8]
    make_topics(client_settings(open_set), {f"{mark}.a": 1, f"{mark}.b": 3, f"{mark}.c": 2})
    found = page.page("topics", search=mark.upper(), sort="partitions", order="desc", per_page=2)
    assert [one["name"] for one in found["topics"]] == [f"{mark}.b", f"{mark}.c"]
    assert found["page"] == {"page": 1, "per_page": 2, "pages": 2, "total": 3}
    rest = page.page("topics", search=mark, sort="partitions", order="desc", per_page=2, page=2)
    assert [one["name"] for one in rest["topics"]] == [f"{mark}.a"]
    assert page.page("topics", search=mark, page=50)["topics"] == []
    assert found["topics"][0]["replication"] == 3


def test_topic_shows_records_bytes_and_settings(
    page: Browser, open_set: ConsoleSet, topic: str
) -> None:
    write(open_set, topic, 7)
    found = page.page("topic", topic=topic)
    assert found["topic"]["records"] == "7"
    assert int(found["topic"]["bytes"]) > 0
    settings = {one["name"]: one for one in found["settings"]}
    assert settings["cleanup.policy"]["value"] == "delete"
    assert settings["cleanup.policy"]["documentation"]
    assert page.get("topic", topic="there-is-none").kind == "not_found"


def test_partitions_show_leader_replicas_and_offsets(
    page: Browser, open_set: ConsoleSet, topic: str
) -> None:
    write(open_set, topic, 5)
    found = until(
        lambda: page.page("partitions", topic=topic)["partitions"],
        lambda rows: all(len(row["isr"]) == 3 for row in rows),
    )
    assert [(row["partition"], row["start"], row["end"]) for row in found] == [
        (0, "0", "5"), (1, "0", "0"), (2, "0", "0"),
    ]  # fmt: skip
    described = AdminClient(client_settings(open_set)).list_topics(topic, HANG_SECONDS)
    leaders = {one.id: one.leader for one in described.topics[topic].partitions.values()}
    assert {row["partition"]: row["leader"] for row in found} == leaders
    assert all(sorted(row["replicas"]) == [1, 2, 3] and row["term"] >= 1 for row in found)
    assert page.page("partitions", topic=topic, search="2")["page"]["total"] == 1
    assert page.page("partitions", topic=topic, problems="true")["partitions"] == []


def offsets(found: Any) -> list[int]:
    return [int(row["offset"]) for row in found["records"]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_each_codec_are_paged_from_anywhere(
    page: Browser, open_set: ConsoleSet, topic: str, codec: str
) -> None:
    write(open_set, topic, 30, **{"compression.type": codec})
    where = {"topic": topic, "partition": 0, "count": 10}
    found = page.page("records", **where, from_="start")
    assert offsets(found) == list(range(10))
    assert (found["next"], found["previous"], found["end"]) == ("10", None, "30")
    assert {row["compression"] for row in found["records"]} <= {codec, "none"}
    row = found["records"][3]
    assert row["key"] == {"form": "text", "text": "key 3", "bytes": "5", "is_cut": False}
    assert row["value"]["text"] == "value 3"
    assert (row["timestamp"], row["timestamp_type"]) == ("1700000000003", "create")
    found = page.page("records", **where, from_="17")
    assert (offsets(found), found["next"], found["previous"]) == (list(range(17, 27)), "27", "7")
    found = page.page("records", **where)
    assert (offsets(found), found["next"], found["previous"]) == (list(range(20, 30)), None, "10")
    assert offsets(page.page("records", **where, from_="@1700000000025")) == list(range(25, 30))
    assert offsets(page.page("records", **where, from_="999")) == []


def test_records_with_a_key_are_found(page: Browser, open_set: ConsoleSet, topic: str) -> None:
    write(open_set, topic, 300)
    where = {"topic": topic, "partition": 0}
    found = page.page("records", **where, from_="start", key="key 7", count=3)
    assert offsets(found) == [7, 70, 71]
    assert (found["next"], found["scanned"]) == ("72", 72)
    found = page.page("records", **where, from_="end", key="key 7", count=3)
    assert offsets(found) == [77, 78, 79]
    found = page.page("records", **where, from_="start", key="key 7", key_is="exact")
    assert (offsets(found), found["is_complete"]) == ([7], True)


def test_records_of_any_bytes_are_shown(page: Browser, open_set: ConsoleSet, topic: str) -> None:
    producer = Producer(client_settings(open_set))
    big = b'{"big": 12345678901234567890123, "float": 1e999}'
    long = b"x" * 100_000
    for key, value in (
        (b"\xff\x00", b"\xc3\x28"), (None, None), (b"", b""), (b"j", big), (b"l", long),
        (b"n", b"[" * 100_000), (b"c", b"a\x1b[31mb"), (b"u", "ü\u202e".encode()),
    ):  # fmt: skip
        producer.produce(
            topic, value, key, 0, headers=[("\u00e9", b"\xfe\xff"), ("same", None), ("same", b"2")]
        )
    assert producer.flush(HANG_SECONDS) == 0
    rows = page.page("records", topic=topic, partition=0, from_="start")["records"]
    assert rows[0]["key"] == {"form": "hex", "text": "ff 00", "bytes": "2", "is_cut": False}
    assert rows[0]["value"]["text"] == "c3 28"
    assert (rows[1]["key"], rows[1]["value"]) == (None, None)
    assert rows[2]["value"] == {"form": "text", "text": "", "bytes": "0", "is_cut": False}
    assert (rows[3]["value"]["form"], rows[3]["value"]["text"]) == ("json", big.decode())
    assert (len(rows[4]["value"]["text"]), rows[4]["value"]["is_cut"]) == (16_384, True)
    assert rows[4]["value"]["bytes"] == "100000"
    assert rows[5]["value"]["form"] == "text"
    assert rows[6]["value"]["form"] == "hex"
    assert rows[7]["value"]["text"] == "ü\u202e"
    headers = rows[0]["headers"]
    assert [one["name"]["text"] for one in headers] == ["é", "same", "same"]
    assert headers[0]["value"]["text"] == "fe ff"
    assert headers[1]["value"] is None
    hexed = page.page("records", topic=topic, partition=0, from_="3", count=1, form="hex")
    assert hexed["records"][0]["value"]["text"].startswith("7b 22")


def test_records_of_aborted_transactions_are_hidden(
    page: Browser, open_set: ConsoleSet, topic: str
) -> None:
    """Readers of committed records skip aborted ones and markers (KIP-98)."""
    producer = Producer({**client_settings(open_set), "transactional.id": topic})
    producer.init_transactions(HANG_SECONDS)
    for text, is_kept in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce(topic, text, partition=0)
        if is_kept:
            producer.commit_transaction(HANG_SECONDS)
        else:
            producer.flush(HANG_SECONDS)
            producer.abort_transaction(HANG_SECONDS)

    def texts(isolation: str) -> list[str]:
        found = page.page("records", topic=topic, partition=0, from_="start", isolation=isolation)
        return [row["value"]["text"] for row in found["records"]]

    assert texts("committed") == ["a", "c"]
    assert texts("uncommitted") == ["a", "b", "c"]


def test_record_is_written_where_a_java_client_would(
    page: Browser, open_set: ConsoleSet, topic: str
) -> None:
    body = {
        "topic": topic, "partition": None, "key": "customer-42", "value": "äöü",
        "headers": [{"name": "trace", "value": "1"}, {"name": "none", "value": None}],
    }  # fmt: skip
    answer = page.post("records", body)
    assert answer.status == 200, answer.body
    reference = Producer({**client_settings(open_set), "partitioner": "murmur2_random"})
    partitions = []
    reference.produce(
        topic, "x", "customer-42", on_delivery=lambda _, sent: partitions.append(sent.partition())
    )
    assert reference.flush(HANG_SECONDS) == 0
    assert [answer.json["partition"]] == partitions
    consumer = Consumer({**client_settings(open_set), "group.id": "none"})
    consumer.assign([TopicPartition(topic, partitions[0], int(answer.json["offset"]))])
    (read,) = consumer.consume(1, HANG_SECONDS)
    consumer.close()
    assert (read.key(), read.value()) == (b"customer-42", "äöü".encode())
    assert read.headers() == [("trace", b"1"), ("none", None)]
    hexed = {"topic": topic, "partition": 1, "value": "00ff", "encoding": "hex"}
    assert page.post("records", hexed).json["partition"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"topic": 5}, {"topic": ""}, {"partition": 3}, {"partition": True}, {"partition": -1},
        {"partition": 2**70}, {"key": 5}, {"key": "\ud800"}, {"encoding": "base64"},
        {"encoding": "hex", "value": "0"}, {"headers": {}}, {"headers": [5]},
        {"headers": [{"name": None}]}, {"headers": [{"name": "a"}] * 101}, {"else": 1},
    ],
)  # fmt: skip
def test_record_that_is_not_valid_is_refused(
    page: Browser, open_set: ConsoleSet, topic: str, change: dict[str, object]
) -> None:
    answer = page.post("records", {"topic": topic, "partition": 0, "value": "x", **change})
    assert (answer.status, answer.kind) == (400, "bad_request")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_shows_members_and_lag(
    page: Browser, open_set: ConsoleSet, topic: str, protocol: str
) -> None:
    """Groups of both protocols (KIP-848)."""
    write(open_set, topic, 50)
    name = f"{protocol}.{topic}"
    settings = {**client_settings(open_set), "group.protocol": protocol}
    with consuming(settings, topic, name, "till-1"):
        found = until(
            lambda: page.page("group", group=name),
            lambda found: found["members"] and found["members"][0]["assigned"],
        )
        assert found["group"]["type"] == protocol
        assert found["members_total"] == 1
        assert found["members"][0]["client"] == "till-1"
        assert found["members"][0]["assigned"] == [{"topic": topic, "partitions": [0, 1, 2]}]
        assert (found["lag"], found["partitions"][0]["lag"]) == ("30", "30")
        row = found["partitions"][0]
        assert (row["committed"], row["end"]) == ("20", "50")
        assert row["member"] == found["members"][0]["member"]
        assert found["lag_seconds"] == row["lag_seconds"] > 1_000_000
        assert found["series"]["lag"][-1] == "30"
        listed = page.page("groups", search=name)["groups"]
        assert [(one["group"], one["type"]) for one in listed] == [(name, protocol)]
        of_topic = page.page("topic_groups", topic=topic)
        assert [(one["group"], one["lag"]) for one in of_topic["groups"]] == [(name, "30")]


def test_group_that_is_not_there_is_not_found(page: Browser) -> None:
    assert page.get("group", group="there-is-none").kind == "not_found"
    assert page.get("group", group="").kind in ("not_found", "bad_request")


def test_series_follow_the_traffic(page: Browser, open_set: ConsoleSet, topic: str) -> None:
    """The points go on without a browser, and a page asks only for new ones."""
    found = until(lambda: page.page("series"), lambda found: len(found["times"]) >= 2)
    since = found["times"][-1]
    write(open_set, topic, 1_000)

    def requests() -> float:
        values = page.page("series", since=since)["values"]
        return max(values["requests_per_second"], default=0.0)

    until(requests, lambda rate: rate > 0)
    assert page.page("series", since=since)["times"][0] > since
    assert {len(one) for one in found["values"].values()} == {len(found["times"])}


def test_explanation_of_each_kind_has_its_meaning(page: Browser) -> None:
    (found,) = page.page("explain", kind="no_leader")["explanations"]
    assert found["meaning"] == "partitions without a leader"
    assert found["runbook"].endswith("runbook.md#no_leader")
    assert page.get("explain", kind="nonsense").kind == "not_found"
    assert isinstance(page.page("explain")["explanations"], list)


def test_rights_of_an_open_set(page: Browser, open_set: ConsoleSet) -> None:
    """Without an authorizer there are no rules, which is no error; users and quotas are shown."""
    answer = page.page("acls")
    assert (answer["is_enforced"], answer["acls"]) == (False, [])
    assert page.page("users")["users"] == []
    assert page.page("quotas")["quotas"] == []


@pytest.mark.parametrize(
    ("page_name", "parameters"),
    [
        ("topics", {"page": 0}), ("topics", {"per_page": 201}), ("topics", {"sort": "id"}),
        ("topics", {"page": "1e3"}), ("topics", {"else": 1}), ("topics", {"order": "up"}),
        ("topic", {}), ("records", {"topic": "TOPIC", "partition": 99}),
        ("records", {"topic": "TOPIC", "partition": 0, "from": -5}),
        ("records", {"topic": "TOPIC", "partition": 0, "from": "@x"}),
        ("records", {"topic": "TOPIC", "partition": 0, "from": 10**20}),
        ("records", {"topic": "TOPIC", "partition": 0, "count": 201}),
        ("records", {"topic": "TOPIC", "partition": 0, "form": "avro"}),
        ("records", {"topic": "TOPIC"}), ("server", {"server": 0}), ("series", {"since": "x"}),
    ],
)  # fmt: skip
def test_parameter_that_is_not_valid_is_named(
    page: Browser, topic: str, page_name: str, parameters: dict[str, object]
) -> None:
    given = {name: topic if value == "TOPIC" else value for name, value in parameters.items()}
    answer = page.get(page_name, **given)
    assert (answer.status, answer.kind) == (400, "bad_request")
    assert answer.json["error"]["message"]
