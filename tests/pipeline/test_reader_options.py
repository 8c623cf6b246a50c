"""Options of `format("vdl")`, and filters that reduce the offsets to read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from vdl.pipeline.filters import push
from vdl.pipeline.options import At, AtTime, Earliest, Latest, OptionError, parse, parse_where
from vdl.pipeline.positions import OffsetRange

LEAST = {"bootstrap": "127.0.0.1:9092", "topics": "b, a"}


def test_options_at_least_are_servers_and_topics() -> None:
    found = parse(LEAST)
    assert found.topics == ("a", "b")
    assert isinstance(found.start, Earliest)
    assert "headers" not in found.columns
    for missing in LEAST:
        with pytest.raises(OptionError, match=missing):
            parse({name: value for name, value in LEAST.items() if name != missing})


def test_options_in_any_case_are_known() -> None:
    """Spark passes names in lower case."""
    found = parse({**LEAST, "maxrows": "7", "MAXBYTES": "0", "client.check.crcs": "false"})
    assert (found.rows_max, found.bytes_max) == (7, 0)
    assert found.client == {"check.crcs": "false"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxRow", "7"),
        ("maxRows", "0"),
        ("maxRows", "many"),
        ("stallSeconds", "0"),
        ("headers", "yes"),
        ("isolation", "none"),
        ("columns", "key,vlaue"),
        ("start", "yesterday"),
        ("start", '{"a": 5}'),
    ],
)
def test_options_that_are_wrong_are_refused(name: str, value: str) -> None:
    """A misspelt option must not silently become a default."""
    with pytest.raises(OptionError, match=name):
        parse({**LEAST, name: value})


def test_options_columns_keep_their_order() -> None:
    assert parse({**LEAST, "columns": "offset,key"}).columns == ("key", "offset")


def test_options_where_understands_times_and_offsets() -> None:
    assert parse_where("start", " LATEST ") == Latest()
    assert parse_where("start", "2013-01-01T00:00:00Z") == AtTime(1_356_998_400_000)
    assert parse_where("start", "2013-01-01") == AtTime(1_356_998_400_000)
    assert parse_where("start", "1356998400000") == AtTime(1_356_998_400_000)
    found = parse_where("start", '{"a": {"0": 17}}')
    assert isinstance(found, At)
    assert found.positions.offset("a", 0) == 17


@dataclass
class _Comparison:
    attribute: tuple[str, ...]
    value: Any = None


class EqualTo(_Comparison):
    pass


class GreaterThan(_Comparison):
    pass


class GreaterThanOrEqual(_Comparison):
    pass


class LessThan(_Comparison):
    pass


class LessThanOrEqual(_Comparison):
    pass


class In(_Comparison):
    pass


class IsNotNull(_Comparison):
    pass


WANTED = [OffsetRange("t", 0, 10, 50), OffsetRange("t", 1, 0, 30), OffsetRange("u", 0, 0, 5)]


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ([EqualTo(("partition",), 1)], [OffsetRange("t", 1, 0, 30)]),
        ([In(("topic",), ("u", "v"))], [OffsetRange("u", 0, 0, 5)]),
        (
            [GreaterThan(("offset",), 20), LessThanOrEqual(("offset",), 40)],
            [OffsetRange("t", 0, 21, 41), OffsetRange("t", 1, 21, 30)],
        ),
        (
            [GreaterThanOrEqual(("offset",), 4), LessThan(("offset",), 5)],
            [OffsetRange("t", 1, 4, 5), OffsetRange("u", 0, 4, 5)],
        ),
        ([EqualTo(("partition",), 0), EqualTo(("partition",), 1)], []),
        ([IsNotNull(("offset",))], WANTED),
        ([In(("partition",), (0, None)), EqualTo(("topic",), "t")], [OffsetRange("t", 0, 10, 50)]),
        ([In(("topic",), (None,))], []),
    ],
)
def test_filters_on_place_are_done_here(filters: list[Any], kept: list[OffsetRange]) -> None:
    """Nothing is left for Spark, and only the needed offsets are read."""
    pushed, left = push(filters)
    assert left == []
    assert pushed.cut(WANTED) == kept


def test_filters_on_other_columns_are_left() -> None:
    filters = [EqualTo(("value",), b"x"), EqualTo(("a", "b"), 1), IsNotNull(("key",))]
    pushed, left = push(filters)
    assert left == filters
    assert pushed.cut(WANTED) == WANTED


def test_filters_on_time_cut_from_below_and_are_done_again() -> None:
    """Records after the first one of a time can be older than it."""
    when = datetime(2013, 1, 1, microsecond=1500, tzinfo=UTC)
    filters = [GreaterThan(("timestamp",), when), LessThan(("timestamp",), when)]
    pushed, left = push(filters)
    assert left == filters
    assert pushed.time_first_ms == 1_356_998_400_001


CONNECTORS = {
    "kafka.bootstrap.servers": "h:1",
    "subscribe": "a,b",
    "startingOffsets": '{"a":{"0":23,"1":-2}}',
    "endingOffsets": "latest",
    "failOnDataLoss": "false",
    "maxOffsetsPerTrigger": "7",
    "includeHeaders": "true",
    "minPartitions": "3",
    "kafka.isolation.level": "read_uncommitted",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="job" password="se\\"cret";'
    ),
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.truststore.location": "/ca.pem",
    "kafka.ssl.endpoint.identification.algorithm": "",
}


def test_options_by_the_connectors_names_are_the_same() -> None:
    """A query for the official connector works with another format name."""
    found = parse(CONNECTORS)
    own = {
        "bootstrap": "h:1", "topics": "a,b", "start": CONNECTORS["startingOffsets"],
        "allowLoss": "true", "maxRows": "7", "headers": "true", "minPartitions": "3",
        "isolation": "read_uncommitted", "client.security.protocol": "SASL_SSL",
        "client.sasl.mechanism": "PLAIN", "client.sasl.username": "job",
        "client.sasl.password": 'se"cret', "client.ssl.ca.location": "/ca.pem",
        "client.ssl.endpoint.identification.algorithm": "none",
    }  # fmt: skip
    assert found == parse(own)
    assert (found.allow_loss, found.rows_max, found.topics) == (True, 7, ("a", "b"))
    times = parse({**LEAST, "startingTimestamp": "1000", "endingTimestamp": "2000"})
    assert (times.start, times.end) == (AtTime(1000), AtTime(2000))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("kafka.fetch.max.bytes", "1", "without a meaning here"),
        ("kafka.ssl.truststore.location", "/ca.jks", "only PEM certificates"),
        ("kafka.sasl.jaas.config", "com.example.Login required;", "no readable user and password"),
        ("subscribe", "c", "conflicts with topics"),
        ("subscribePattern", "a.*", "unknown option: subscribepattern"),
        ("failOnDataLoss", "maybe", "allowLoss: 'maybe' is not true or false"),
    ],
)
def test_options_of_the_connector_without_meaning_are_refused(
    name: str, value: str, told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        parse({**LEAST, name: value})
