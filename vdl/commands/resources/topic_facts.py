"""Facts about topics of a cluster: partitions, offsets, sizes, settings.

Does not depend on how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception
from vdl.commands.cluster.direct_requests import NotOffered, direct
from vdl.commands.output import fail
from vdl.kafka.wire.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import ConfigEntry, OffsetSpec, TopicDescription

DESCRIBE_LOG_DIRS = 35
DEFAULT = "DEFAULT_CONFIG"
_TOPICS_AT_ONCE = 500
Where = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force. `source` is Kafka's name, such as DYNAMIC_TOPIC_CONFIG; a sensitive
    value is None."""

    name: str
    value: str | None
    source: str
    is_read_only: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the object of docs/cli.md."""
        return {
            "name": self.name,
            "value": self.value,
            "source": self.source,
            "read_only": self.is_read_only,
        }


def topic_names(cluster: Cluster) -> list[str]:
    """Return the names of all topics that the user may see."""
    return sorted(name for name, found in cluster.metadata().topics.items() if not found.error)


def descriptions(cluster: Cluster, names: Sequence[str]) -> dict[str, TopicDescription]:
    """Return descriptions by name, some topics a request. Raises click.ClickException."""
    from confluent_kafka import TopicCollection

    admin = cluster.admin()
    found = {}
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        some = list(names[start : start + _TOPICS_AT_ONCE])
        asked = admin.describe_topics(
            TopicCollection(some), request_timeout=cluster.timeout_seconds
        )
        found.update({name: cluster.result(asked[name], name) for name in some})
    return found


def offsets(cluster: Cluster, wanted: Iterable[Where], spec: OffsetSpec) -> dict[Where, int | None]:
    """Return an offset of each partition; None where no leader answers."""
    asked = [_partition(where) for where in wanted]
    if not asked:
        return {}
    futures = cluster.admin().list_offsets(
        dict.fromkeys(asked, spec), request_timeout=cluster.timeout_seconds
    )
    found: dict[Where, int | None] = {}
    for where, future in futures.items():
        try:
            found[where.topic, where.partition] = future.result(cluster.result_seconds).offset
        except (kafka_exception(), TimeoutError):
            found[where.topic, where.partition] = None
    return found


def _partition(where: Where) -> TopicPartition:
    from confluent_kafka import TopicPartition

    return TopicPartition(*where)


def earliest_and_latest(
    cluster: Cluster, wanted: Sequence[Where]
) -> tuple[dict[Where, int | None], dict[Where, int | None]]:
    """Return the first offset of each partition, and the one behind its last record."""
    from confluent_kafka.admin import OffsetSpec

    return (
        offsets(cluster, wanted, OffsetSpec.earliest()),
        offsets(cluster, wanted, OffsetSpec.latest()),
    )


def settings(cluster: Cluster, kind: str, names: Sequence[str]) -> dict[str, list[Setting]]:
    """Return the settings of resources, by their names.

    `kind` is TOPIC, BROKER or GROUP. Raises click.ClickException.
    """
    from confluent_kafka.admin import ConfigResource, ResourceType

    asked = {name: ConfigResource(ResourceType[kind], name) for name in names}
    futures = cluster.admin().describe_configs(
        list(asked.values()), request_timeout=cluster.timeout_seconds
    )
    found = {}
    for name, resource in asked.items():
        entries = cluster.result(futures[resource], f"{kind.lower()} {name}")
        found[name] = [_setting(one) for one in entries.values()]
    return found


def _setting(entry: ConfigEntry) -> Setting:
    from confluent_kafka.admin import ConfigSource

    value = None if entry.is_sensitive else entry.value
    source = ConfigSource(entry.source).name
    return Setting(entry.name, value, source, entry.is_read_only)


def alter_settings(
    cluster: Cluster,
    kind: str,
    changes: dict[str, dict[str, str | None]],
    *,
    validate_only: bool = False,
) -> dict[str, str]:
    """Change settings: resource → name → value, None unsets it. Return what was refused: resource →
    reason."""
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    set_it, unset = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    asked = {
        name: ConfigResource(
            ResourceType[kind],
            name,
            incremental_configs=[
                ConfigEntry(
                    key,
                    value,
                    incremental_operation=unset if value is None else set_it,
                )
                for key, value in wanted.items()
            ],
        )
        for name, wanted in changes.items()
    }
    futures = cluster.admin().incremental_alter_configs(
        list(asked.values()),
        validate_only=validate_only,
        request_timeout=cluster.timeout_seconds,
    )
    return refusals(cluster, {name: futures[resource] for name, resource in asked.items()})


def refusals(cluster: Cluster, futures: dict[str, Any]) -> dict[str, str]:
    """Return the reasons of the requests that failed, by name."""
    found = {}
    for name, future in futures.items():
        try:
            future.result(cluster.result_seconds)
        except kafka_exception() as error:
            found[name] = cluster.words(error)
        except TimeoutError:
            found[name] = cluster.no_answer
    return found


def fail_for(refused: dict[str, str]) -> None:
    """End the command if anything was refused. Raises click.ClickException."""
    if refused:
        fail("; ".join(f"{name}: {reason}" for name, reason in sorted(refused.items())))


def replica_bytes(
    cluster: Cluster, found: Iterable[TopicDescription]
) -> dict[Where, dict[int, int]]:
    """Return the bytes of each replica, by partition and server; those that are not known are left
    out."""
    wanted = [
        DescribableLogDirTopic(topic.name, [one.id for one in topic.partitions]) for topic in found
    ]
    try:
        asked = direct(cluster)
    except NotOffered:
        return {}
    message = DescribeLogDirsRequest(wanted)
    sizes: dict[Where, dict[int, int]] = {}
    for server, answer in asked.at_each(asked.addresses, DESCRIBE_LOG_DIRS, message).items():
        if isinstance(answer, NotOffered):
            continue
        for directory in answer.results:
            for topic in directory.topics:
                for one in topic.partitions:
                    if not one.is_future_key:
                        place = sizes.setdefault((topic.name, one.partition_index), {})
                        place[server] = one.partition_size
    return sizes
