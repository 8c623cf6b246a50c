"""One new record, written with the right of the user.

Does not depend on HTTP.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Final

from vdl.console.parameters import long
from vdl.console.problems import ConsoleError, refuse
from vdl.console.question import PRODUCE, Question
from vdl.kafka.client import Unreachable
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.records.batch import Record, build_batch

_FIELDS: Final = frozenset({"topic", "partition", "key", "value", "headers", "encoding"})
_HEADERS_MAX: Final = 100
_TIMEOUT_MS_MAX: Final = 10_000
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


def produce(question: Question, body: Mapping[str, Any]) -> dict[str, Any]:
    """Answer `POST records`."""
    if not question.settings.changes:
        raise ConsoleError("read_only", "changes are off: http.console_changes is not true")
    if unknown := body.keys() - _FIELDS:
        raise ConsoleError("bad_request", f"{min(unknown)[:40]}: unknown field")
    encoding = body.get("encoding", "text")
    if encoding not in ("text", "hex"):
        raise ConsoleError("bad_request", "encoding: expected text or hex")
    name = body.get("topic")
    if not isinstance(name, str) or not name:
        raise ConsoleError("bad_request", "topic: required")
    record = Record(
        _bytes("key", body.get("key"), encoding),
        _bytes("value", body.get("value"), encoding),
        _headers(body.get("headers", []), encoding),
        time.time_ns() // 1_000_000,
    )
    topic = question.topic(name)
    number = _partition(body.get("partition"), record.key, len(topic.partitions))
    leader = topic.partitions[number].leader_id
    place = f"{name}-{number}"
    if leader < 0:
        raise ConsoleError("unreachable", f"{place} has no leader")
    batch = memoryview(build_batch([record]))
    data = TopicProduceData(name, topic.topic_id, [PartitionProduceData(number, batch)])
    timeout_ms = min(_TIMEOUT_MS_MAX, int(question.left_s() * 900))
    request = ProduceRequest(None, acks=-1, timeout_ms=timeout_ms, topic_data=[data])
    try:
        answer = question.ask_server(leader, PRODUCE, request)
    except Unreachable as error:
        raise ConsoleError(
            "unreachable", f"{error}; the record may have been written or not"
        ) from None
    (found,) = answer.responses[0].partition_responses
    if found.error_code:
        texts = [one.batch_index_error_message for one in found.record_errors]
        refuse(found.error_code, place, next(filter(None, texts), None) or found.error_message)
    return {
        "topic": name,
        "partition": number,
        "offset": long(found.base_offset),
        "timestamp": long(
            record.timestamp if found.log_append_time_ms < 0 else found.log_append_time_ms
        ),
    }


def _bytes(name: str, given: object, encoding: str) -> bytes | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise ConsoleError("bad_request", f"{name}: expected a string or null")
    try:
        return bytes.fromhex(given) if encoding == "hex" else given.encode()
    except ValueError:
        problem = "pairs of hexadecimal digits" if encoding == "hex" else "text"
        raise ConsoleError("bad_request", f"{name}: expected {problem}") from None


def _headers(given: object, encoding: str) -> list[tuple[str, bytes | None]]:
    if not isinstance(given, list) or len(given) > _HEADERS_MAX:
        raise ConsoleError("bad_request", f"headers: expected a list of at most {_HEADERS_MAX}")
    found = []
    for one in given:
        if not isinstance(one, dict) or one.keys() - {"name", "value"}:
            raise ConsoleError("bad_request", "headers: expected objects with name and value")
        name = _bytes("headers", one.get("name"), "text")
        if name is None:
            raise ConsoleError("bad_request", "headers: a name is required")
        found.append((name.decode(), _bytes("headers", one.get("value"), encoding)))
    return found


def _partition(given: object, key: bytes | None, count: int) -> int:
    """Return the partition as given, else that of the key, else any."""
    if given is None:
        if key is None:
            return random.randrange(count)
        return (murmur2(key) & 0x7FFFFFFF) % count
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < count:
        raise ConsoleError("bad_request", f"partition: expected a number from 0 to {count - 1}")
    return given


def murmur2(data: bytes) -> int:
    """Return the hash by which Kafka's own producers choose the partition of a key."""
    found = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _WORD
        word = (word ^ word >> 24) * _M & _WORD
        found = (found * _M & _WORD) ^ word
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _M & _WORD
    found = (found ^ found >> 13) * _M & _WORD
    return found ^ found >> 15
