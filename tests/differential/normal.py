"""Normalization of answers: fields that must differ between two clusters, and their replacements.

`NORMAL` is the complete list: any other field is compared as it is.

Does not depend on the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from vdl.kafka.wire.runtime import ZERO_UUID
from vdl.records.batch import (
    CorruptBatch,
    crc_matches,
    iter_records,
    read_header,
    split_batches,
)

Tree = Any
"""None, a number, a text, a list of trees, or a dict of field name -> tree."""

NODES = frozenset({1, 2, 3})


def _node(value: Any) -> Tree:
    """Replace a server id: it depends on placement and elections."""
    return "a server" if value in NODES else value


def _nodes(value: Any) -> Tree:
    """Replace the servers of a partition by their number, without duplicates."""
    return value if value is None or not set(value) <= NODES else f"{len(set(value))} servers"


def _epoch(value: Any) -> Tree:
    """Replace a leader epoch: Kafka counts from 0 per partition, a Raft term begins with 1."""
    return value if value < 0 else "an epoch"


def _time(value: Any) -> Tree:
    return value if value < 0 else "a time"


def _id(value: Any) -> Tree:
    """Replace an id that the cluster allocated."""
    return value if value in {0, -1} else "an id"


def _text(value: Any) -> Tree:
    """Replace a message for people by its presence."""
    return "a text" if value else "no text"


def _rows_there(value: Any) -> Tree:
    """Replace a list by null, empty or "rows"."""
    return value and "rows"


def _nothing(_: Any) -> Tree:
    return "not compared"


NORMAL: Mapping[str, tuple[Callable[[Any], Tree], str]] = {
    "throttle_time_ms": (_nothing, "no quotas are set; neither is ever throttled"),
    "host": (_nothing, "both listen on loopback"),
    "port": (_id, "each server has its own"),
    "cluster_id": (_nothing, "drawn when the cluster is created"),
    "controller_id": (_node, "any server"),
    "node_id": (_node, "who coordinates depends on a hash; of brokers it is the sort key"),
    "broker_id": (_node, "the same"),
    "leader_id": (_node, "depends on placement and elections"),
    "replica_nodes": (_nodes, "depends on placement"),
    "isr_nodes": (_nodes, "depends on placement"),
    "leader_epoch": (_epoch, "Kafka counts from 0, a Raft term from 1"),
    "session_id": (_id, "drawn by the server"),
    "producer_id": (_id, "given out by the cluster"),
    "log_append_time_ms": (_time, "the server's clock"),
    "error_message": (_text, "the text is each project's own"),
    "batch_index_error_message": (_text, "the same"),
    "documentation": (_text, "the same"),
    "CreatableTopicResult.configs": (_rows_there, "describe_all_configs compares settings"),
    "CreatableTopicResult.topic_id": (_nothing, "Kafka names one also where it only validates"),
    "log_dir": (_nothing, "where it is on disk"),
    "partition_size": (_nothing, "a format of its own"),
    "total_bytes": (_nothing, "the disk's"),
    "usable_bytes": (_nothing, "the disk's"),
    "last_timestamp": (_time, "Kafka's is the record's, or the server's clock"),
    "transaction_start_time_ms": (_time, "the server's clock"),
    "subscription_id": (_nothing, "a checksum of what is asked for and of the version"),
    "finalized_features_epoch": (_epoch, "counts changes of the cluster"),
}
"""Field, or struct and field -> replacement of its value, and the reason.

A field has the same meaning in every API, unless the struct is named.
"""

KEYS: tuple[tuple[str, ...], ...] = (
    ("resource_type", "resource_name"),
    ("entity_type", "entity_name"),
    ("name",),
    ("topic",),
    ("topic_name",),
    ("topic_id",),
    ("group_id",),
    ("transactional_id",),
    ("user",),
    ("member_id", "group_instance_id"),
    ("key",),
    ("partition_index",),
    ("partition",),
    ("index",),
    ("batch_index",),
    ("api_key",),
    ("mechanism",),
)
"""Fields that identify a struct in a list: the first of these that it has and that are not empty.

Lists are compared by them and not in their order, because Kafka's own order is often that of a hash
map. Among structs with equal fields the order counts.
"""


class Symbols:
    """Names for values that a cluster allocated: topic ids, member ids."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}

    def learn(self, value: object, name: str) -> None:
        if value not in {ZERO_UUID, ""}:
            self._names[value] = name

    def name(self, value: Any) -> Tree:
        if isinstance(value, bytes | memoryview | bytearray):
            value = bytes(value)
            return self._names.get(value, value.hex())
        return self._names.get(value, value) if isinstance(value, str) else value


def normal(message: Any, symbols: Symbols) -> Tree:
    """Return the normalized tree of a message."""
    if is_dataclass(message):
        return {
            field.name: _field(
                type(message).__name__, field.name, getattr(message, field.name), symbols
            )
            for field in fields(message)
        }
    if isinstance(message, list):
        if message and is_dataclass(message[0]):
            return _rows(message, symbols)
        return [normal(element, symbols) for element in message]
    return symbols.name(message)


def _rows(rows: list[Any], symbols: Symbols) -> Tree:
    """Return structs by their identifying fields, with a plus appended to repeated keys."""
    found: dict[str, Tree] = {}
    for name, row in sorted(((_key(row, symbols), row) for row in rows), key=lambda pair: pair[0]):
        while name in found:
            name += "+"
        found[name] = normal(row, symbols)
    return found


def _key(row: Any, symbols: Symbols) -> str:
    for fields_of_key in KEYS:
        values = [getattr(row, field, None) for field in fields_of_key]
        if any(value not in {None, "", ZERO_UUID} for value in values):
            return f"[{', '.join(str(symbols.name(value)) for value in values)}]"
    return "[]"


def _field(struct: str, name: str, value: Any, symbols: Symbols) -> Tree:
    if name == "records" and isinstance(value, bytes | memoryview):
        return _batches(memoryview(value))
    for key in (f"{struct}.{name}", name):
        if key in NORMAL:
            return NORMAL[key][0](value)
    return normal(value, symbols)


def _batches(view: memoryview) -> Tree:
    """Return headers and records of record batches, without the fields that the leader sets."""
    try:
        return [_batch(batch) for batch in split_batches(view)]
    except CorruptBatch:
        return f"{len(view)} bytes that are no batches"


def _batch(batch: memoryview) -> Tree:
    header = read_header(batch)
    tree: dict[str, Tree] = {
        field.name: getattr(header, field.name)
        for field in fields(header)
        if field.name not in {"crc", "leader_epoch", "producer_id"}
    }
    if header.is_log_append_time:
        tree["max_timestamp"] = "a time"
    if header.codec:
        tree["batch_length"] = "depends on the library that compressed it"
    tree["crc"] = "sound" if crc_matches(batch) else "broken"
    tree["producer_id"] = _id(header.producer_id)
    tree["records"] = [
        f"{record.offset}: {_bytes(record.key)} = {_bytes(record.value)}"
        for record in iter_records(batch)
    ]
    return tree


def _bytes(value: Any) -> Tree:
    return None if value is None else bytes(value).hex()
