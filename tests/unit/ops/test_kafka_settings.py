"""Kafka's settings in this server: honoured, without effect, shown, refused; and with which values.

`python -m tests.unit.ops.test_kafka_settings` writes `docs/kafka-settings.md` anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from vdl.config.settings import KEYS, Config, parse_config
from vdl.config.values import ADMIN_SETTING, FILE_SYSTEM_SETTING
from vdl.kafka.configs.broker_configs import DYNAMIC, KNOWN_OF_SERVERS, Source
from vdl.kafka.configs.kafka_settings import TYPES
from vdl.kafka.configs.topic_configs import KNOWN, NO_EFFECT_PREFIX, Standing, TopicConfig
from vdl.server.file_settings import file_settings

PAGE = Path(__file__).parents[3] / "docs" / "kafka-settings.md"
OF_THE_CLUSTER = frozenset(
    f"{topic}.{what}"
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    for what in ("num.partitions", "replication.factor", "min.isr")
)
WORDS = ("honoured", "shown", "no effect", "refused")
HEAD = """# Kafka's settings

What each setting of Kafka 4.3.1 does here. A test keeps this page true.

* **honoured**: it does what it does in Kafka. *File*: it stands in `[kafka]` of a server's file.
  *Run time*: it can be changed by `kafka-configs`.
* **shown**: a server describes itself by it, with the true value. It cannot be set under this name,
  or at all.
* **no effect**: any value is taken, and changes nothing. Its meaning is always met, or it tunes
  what is not there.
* **refused**: of a topic any value but the default is refused, with the reason. Of a server it is
  an unknown key of the file, and an error at run time; it is not shown, or shows the only value it
  can have.
"""

Row = tuple[str, str, str]
"""Name, effect here, explanation."""


def rows_of_servers() -> Iterator[Row]:
    described = {*file_settings(Config()), *KNOWN_OF_SERVERS, *OF_THE_CLUSTER}
    described |= {"broker.id", "node.id", "broker.rack"}
    for name in sorted(TYPES):
        config = DYNAMIC.get(name)
        if config is not None and config.standing is not Standing.HONOURED:
            yield name, config.standing.value, _why(config)
        elif f"kafka.{name}" in KEYS or config is not None:
            places = [
                place
                for place, there in (("file", f"kafka.{name}" in KEYS), ("run time", config))
                if there
            ]
            yield name, "honoured", ", ".join(places)
        elif name in described:
            yield name, "shown", ""
        else:
            yield name, "refused", ""


def rows_of_topics() -> Iterator[Row]:
    for config in KNOWN:
        why = "" if config.standing is Standing.HONOURED else _why(config)
        yield config.name, config.standing.value, why


def _why(config: TopicConfig) -> str:
    return config.documentation.removeprefix(NO_EFFECT_PREFIX)


def page() -> str:
    topics, servers = list(rows_of_topics()), list(rows_of_servers())
    refused = ", ".join(f"`{name}`" for name, standing, _ in servers if standing == "refused")
    return "\n".join(
        [
            HEAD,
            f"## Of topics\n\n{_counted(topics)}\n",
            *_table(topics),
            f"\n## Of servers\n\n{_counted(servers)}\n",
            *_table(row for row in servers if row[1] != "refused"),
            f"\nRefused are {refused}.\n",
        ]
    )


def _counted(rows: list[Row]) -> str:
    counts = Counter(standing for _, standing, _ in rows)
    told = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    return f"Of {len(rows)}: {told}."


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| setting | | |\n| --- | --- | --- |"
    for name, standing, why in rows:
        yield f"| `{name}` | {standing} | {why} |"


def test_page_of_kafkas_settings_is_true() -> None:
    """Each of them is in it, counted by category."""
    assert len(TYPES) == 340
    assert PAGE.read_text(encoding="utf-8") == page()


def test_what_stands_in_the_file_under_kafkas_name_is_shown() -> None:
    """All except super users, our own bound, and settings that Kafka calls internal."""
    shown = {*file_settings(Config()), *KNOWN_OF_SERVERS}
    of_kafka = {key.removeprefix("kafka.") for key in KEYS if key.startswith("kafka.")}
    hidden = of_kafka - shown
    assert hidden == {
        "allow.everyone.if.no.acl.found", "max.partitions.per.request",
        "producer.id.expiration.check.interval.ms", "super.users",
    }  # fmt: skip


CONFIG = """
[server]
id = 2
rack = "r1"
data_dir = "store"

[cluster.seeds]
1 = "10.0.0.1:19092"
2 = "10.0.0.2:19092"

[peer]
listen = "0.0.0.0:19092"

[[listeners]]
name = "OUT"
listen = "0.0.0.0:9092"
advertise = "example.org:9092"

[[listeners]]
name = "IN"
listen = "[::1]:29092"

[admin]
listen = "127.0.0.1:9112"

[retention]
check_interval = "5s"

[kafka]
replica.lag.time.max.ms = "10s"
"""


@pytest.mark.parametrize(
    ("name", "value", "source"),
    [
        ("listeners", "IN://[::1]:29092,OUT://0.0.0.0:9092", Source.STATIC_BROKER),
        ("advertised.listeners", "IN://[::1]:29092,OUT://example.org:9092", Source.STATIC_BROKER),
        ("listener.security.protocol.map", "OUT:PLAINTEXT,IN:PLAINTEXT", Source.STATIC_BROKER),
        ("security.inter.broker.protocol", "PLAINTEXT", Source.DEFAULT),
        ("sasl.enabled.mechanisms", "", Source.DEFAULT),
        (
            "controller.quorum.voters",
            "1@10.0.0.1:19092,2@10.0.0.2:19092",
            Source.STATIC_BROKER,
        ),
        ("broker.rack", "r1", Source.STATIC_BROKER),
        ("log.dirs", "/where/store", Source.STATIC_BROKER),
        ("delete.topic.enable", "true", Source.DEFAULT),
        ("replica.lag.time.max.ms", "10000", Source.STATIC_BROKER),
        ("producer.id.expiration.ms", "86400000", Source.DEFAULT),
        ("log.retention.check.interval.ms", "5000", Source.STATIC_BROKER),
        ("group.share.record.lock.duration.ms", "30000", Source.DEFAULT),
        ("group.share.min.record.lock.duration.ms", "15000", Source.DEFAULT),
        ("group.consumer.max.session.timeout.ms", "60000", Source.DEFAULT),
        (ADMIN_SETTING, "ADMIN://127.0.0.1:9112", Source.DEFAULT),
    ],
)
def test_server_is_described_by_what_its_file_says(name: str, value: str, source: Source) -> None:
    """Settings are shown under Kafka's names, also where the file uses others.

    Client addresses are those for clients only.
    """
    config = parse_config(CONFIG, source="vdl.toml", folder=Path("/where"))
    layer = file_settings(config)[name]
    assert (layer.value, layer.source) == (value, source)


def test_server_without_an_admin_service_shows_none() -> None:
    """A server without an admin service is shown as such, and `vdl status` reports it."""
    config = parse_config('[admin]\nlisten = "off"', source="vdl.toml", folder=Path("/where"))
    assert ADMIN_SETTING not in file_settings(config)


def test_servers_of_one_disk_show_the_same_file_system(tmp_path: Path) -> None:
    """A directory that is not there yet is on the file system of the folder above it."""
    shown = [
        file_settings(parse_config("", source="vdl.toml", folder=folder))[FILE_SYSTEM_SETTING].value
        for folder in (tmp_path / "a", tmp_path / "b", Path("/proc/1"))
    ]
    assert shown[0] == shown[1] != shown[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
