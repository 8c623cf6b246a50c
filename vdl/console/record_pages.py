"""Records of a partition, page by page.

Everything is bounded: records and text of a page, and for a search also what it fetches, reads and
unpacks. A page that stops early says where it goes on.

Does not depend on HTTP.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vdl.console.parameters import INT64_MAX, Parameters, integer, long
from vdl.console.problems import ConsoleError, refuse
from vdl.console.question import EARLIEST, FETCH, LATEST, Question
from vdl.console.record_stream import ALL, Budget, OverBudget, Read, read_records
from vdl.console.registered_values import Decoded
from vdl.console.shown_values import DECODED_FORMS, FORMS, SHOWN_BYTES_MAX, Room, shown
from vdl.errors import ErrorCode
from vdl.kafka.client import Unreachable
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.records.batch import BatchHeader, CorruptBatch, read_header, split_batches
from vdl.records.compression import Compression

RECORDS: Final = ("topic", "partition", "from", "count", "key", "key_is", "form", "isolation")
COUNT_MAX: Final = 200
COUNT_DEFAULT: Final = 50
SCANNED_MAX: Final = 20_000
FETCH_BYTES: Final = 1 << 20
FETCHED_BYTES_MAX: Final = 8 << 20
UNPACKED_BYTES_MAX: Final = 256 << 20
KEPT_BYTES_MAX: Final = 16 << 20
"""Bytes of the records of a page that are kept until it is made."""
COMMITTED: Final = 1


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One page, as it was asked for."""

    topic: Any
    partition: int
    leader: int
    count: int
    key: bytes
    is_exact: bool
    form: str
    isolation: int

    def finds(self, record: Read) -> bool:
        """Return True if a record has the key that is searched for."""
        if not self.key:
            return True
        found = record.key
        if found is None:
            return False
        if self.is_exact:
            return not found.is_cut and found.kept == self.key
        return self.key in found.kept


@dataclass(slots=True)
class _Scan:
    """Progress of a page."""

    next: int
    end: int
    budget: Budget
    scanned: int = 0
    fetched: int = 0
    is_complete: bool = True
    aborted: dict[int, list[int]] = field(default_factory=dict)


def records(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET records`."""
    name = given.text("topic", most=249)
    topic = question.topic(name)
    number = given.integer("partition", 0, len(topic.partitions) - 1)
    leader = topic.partitions[number].leader_id
    wanted = _Wanted(
        topic,
        number,
        leader,
        given.integer("count", 1, COUNT_MAX, COUNT_DEFAULT),
        given.text("key", "", most=1_000).encode("utf-8", "surrogateescape"),
        given.choice("key_is", ("contains", "exact")) == "exact",
        given.choice("form", FORMS),
        COMMITTED if given.choice("isolation", ("committed", "uncommitted")) == "committed" else 0,
    )
    if leader < 0:
        raise ConsoleError("unreachable", f"partition {name}-{number} has no leader")
    place = {(name, number): leader}
    start = _known(question.offsets(place, EARLIEST)[name, number], leader)
    end = _known(question.offsets(place, LATEST, isolation=wanted.isolation)[name, number], leader)
    asked = given.text("from", "end", most=25)
    first = _first(question, wanted, asked, start, end)
    scan = _Scan(first, end, Budget(UNPACKED_BYTES_MAX, question.check))
    found = _page(question, wanted, scan, is_from_end=asked == "end")
    return _answer(wanted, scan, found, start, first, _decoded(question, wanted, found))


def _decoded(
    question: Question, wanted: _Wanted, found: list[tuple[Read, BatchHeader]]
) -> Mapping[bytes, Decoded]:
    """Return keys and values with schemas, if there is a registry."""
    if question.schemas is None or wanted.form not in DECODED_FORMS:
        return {}
    fields = [field for record, _ in found for field in (record.key, record.value)]
    whole = [field.kept for field in fields if field is not None and not field.is_cut]
    return question.schemas.decoded(whole, question.left_s())


def _known(offset: int | None, leader: int) -> int:
    if offset is None:
        raise ConsoleError("unreachable", f"server {leader}, which leads, does not answer")
    return offset


def _first(question: Question, wanted: _Wanted, asked: str, start: int, end: int) -> int:
    """Return the offset of the first record to read."""
    if asked == "start":
        return start
    if asked == "end":
        return max(start, end - (SCANNED_MAX if wanted.key else wanted.count))
    if asked.startswith("@"):
        time_ms = integer("from", asked[1:], 0, INT64_MAX)
        place = wanted.topic.name, wanted.partition
        found = _known(question.offsets({place: wanted.leader}, time_ms)[place], wanted.leader)
        return end if found < 0 else max(start, min(found, end))
    return max(start, min(integer("from", asked, 0, INT64_MAX), end))


def _page(
    question: Question, wanted: _Wanted, scan: _Scan, *, is_from_end: bool
) -> list[tuple[Read, BatchHeader]]:
    """Return the records of the page: the first that are found, or the last."""
    found: deque[tuple[Read, BatchHeader]] = deque()
    kept = 0
    try:
        for record, header in _read(question, wanted, scan):
            scan.scanned += 1
            scan.next = record.offset + 1
            if wanted.finds(record):
                record = record.cut(SHOWN_BYTES_MAX)
                found.append((record, header))
                kept += record.kept_bytes
                if is_from_end and wanted.key:
                    while len(found) > wanted.count or kept > KEPT_BYTES_MAX:
                        kept -= found.popleft()[0].kept_bytes
                elif len(found) == wanted.count or kept >= KEPT_BYTES_MAX:
                    scan.is_complete = len(found) == wanted.count or scan.next >= scan.end
                    return list(found)
            if scan.scanned >= SCANNED_MAX:
                scan.is_complete = scan.next >= scan.end
                return list(found)
    except OverBudget:
        scan.is_complete = False
        if not scan.scanned:
            raise ConsoleError(
                "too_large",
                f"the batch at offset {scan.next} unpacks to more than "
                f"{UNPACKED_BYTES_MAX >> 20} MiB before the record",
            ) from None
    except ConsoleError:
        if not found or not question.is_late:
            raise
        scan.is_complete = False
    except CorruptBatch as error:
        raise ConsoleError(
            "failed", f"the batch at offset {scan.next} cannot be read: {error.what}"
        ) from None
    except (MemoryError, OSError):
        raise ConsoleError(
            "too_large", f"the batch at offset {scan.next} needs more memory than the console has"
        ) from None
    return list(found)


def _read(question: Question, wanted: _Wanted, scan: _Scan) -> Iterator[tuple[Read, BatchHeader]]:
    """Yield the records up to the end. `scan.next` goes on behind batches without records."""
    while scan.next < scan.end:
        if scan.fetched >= FETCHED_BYTES_MAX:
            scan.is_complete = False
            return
        fetched = _fetch(question, wanted, scan.next)
        batches = split_batches(memoryview(fetched.records or b""))
        scan.fetched += sum(map(len, batches))
        aborted = _Aborted(fetched.aborted_transactions or [])
        before = scan.next
        for batch in batches:
            header = read_header(batch)
            if header.last_offset < scan.next:
                aborted.passed(header)
                continue
            if not aborted.passed(header):
                for record in read_records(batch, scan.next, scan.budget):
                    if record.offset >= scan.end:
                        return
                    yield record, header
            scan.next = max(scan.next, header.last_offset + 1)
        if scan.next == before:
            return  # the end that was known lies behind the last record


class _Aborted:
    """Aborted transactions in an answer, as Kafka's clients follow them."""

    def __init__(self, listed: list[Any]) -> None:
        self._waiting = deque(sorted((one.first_offset, one.producer_id) for one in listed))
        self._open: set[int] = set()

    def passed(self, header: BatchHeader) -> bool:
        """Return True if a batch has no records for readers: markers, or aborted ones. To be called
        for each batch in order."""
        while self._waiting and self._waiting[0][0] <= header.last_offset:
            self._open.add(self._waiting.popleft()[1])
        if header.is_control:
            self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def _fetch(question: Question, wanted: _Wanted, offset: int) -> Any:
    partition = FetchPartition(
        wanted.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
    )
    topic = FetchTopic(wanted.topic.name, wanted.topic.topic_id, [partition])
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=FETCH_BYTES,
        isolation_level=wanted.isolation,
        topics=[topic],
    )
    name = f"{wanted.topic.name}-{wanted.partition}"
    try:
        answer = question.ask_server(wanted.leader, FETCH, request)
    except Unreachable as error:
        raise ConsoleError("unreachable", str(error)) from None
    if answer.error_code:
        refuse(answer.error_code, name)
    (found,) = answer.responses[0].partitions
    if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise ConsoleError("not_found", f"{name}: offset {offset} is no longer there")
    if found.error_code:
        refuse(found.error_code, name)
    return found


def _answer(
    wanted: _Wanted,
    scan: _Scan,
    found: list[tuple[Read, BatchHeader]],
    start: int,
    first: int,
    decoded: Mapping[bytes, Decoded],
) -> dict[str, Any]:
    room = Room()
    rows = [_row(record, header, wanted.form, room, decoded) for record, header in found]
    begin = found[0][0].offset if found and not wanted.key else first
    return {
        "topic": wanted.topic.name,
        "partition": wanted.partition,
        "start": long(start),
        "end": long(scan.end),
        "records": rows,
        "next": long(scan.next) if scan.next < scan.end else None,
        "previous": long(max(start, begin - wanted.count)) if begin > start else None,
        "scanned": scan.scanned,
        "is_complete": scan.is_complete,
        "now_ms": time.time_ns() // 1_000_000,
    }


def _row(
    record: Read, header: BatchHeader, form: str, room: Room, decoded: Mapping[bytes, Decoded]
) -> dict[str, Any]:
    left_out = record.headers_left_out
    return {
        "offset": long(record.offset),
        "timestamp": long(record.timestamp),
        "timestamp_type": "append" if header.is_log_append_time else "create",
        "key": shown(record.key, form, room, decoded),
        "value": shown(record.value, form, room, decoded),
        "headers": [
            {"name": shown(name, "auto", room), "value": shown(value, form, room)}
            for name, value in record.headers
        ],
        "headers_left_out": left_out if left_out != ALL else None,
        "compression": Compression(header.codec).name.lower(),
    }
