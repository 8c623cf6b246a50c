"""Segments of a topic in a data directory; a damaged one leaves all to the brokers."""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

from segments.api import MetaBatch
from segments.directory.format_note import FORM, write_form
from segments.directory.identity import Identity, LogIdentity, encode
from segments.format.names import log_directory
from segments.io.fs import RealFileSystem
from segments.log.index_files import IndexWriter
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo, encode_segment_header
from segments.meta.file import Meta
from segments.tool import INDEX_ENTRIES
from vdl.pipeline.options import parse
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.segment_read import Seen
from vdl.pipeline.source import BrokerTask, plan

CATALOG_LOG, LOG, GROUP = 1, 2, 7
TOPIC_ID = bytes(range(16))
ID_TEXT = base64.urlsafe_b64encode(TOPIC_ID).decode().rstrip("=")
EDGES = (0, 40, 100)
"""Base offsets of three segments, two of which are sealed."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Directory as a server leaves it, with a catalog of one topic and a log of its partition."""
    path = tmp_path / "store"
    path.mkdir()
    identity = Identity(bytes(16), next_log_id=3)
    for log_id, group_id in ((CATALOG_LOG, 0), (LOG, GROUP)):
        identity.logs[log_id] = LogIdentity(log_id, group_id, 1, 1, 0, 0)
    (path / "identity").write_bytes(encode(identity))
    write_topic(path, msgspec.msgpack.encode(["t", TOPIC_ID, [GROUP]]))
    logs = Path(log_directory(str(path), LOG))
    logs.mkdir(parents=True)
    for n, base in enumerate(EDGES, start=1):
        header = encode_segment_header(SegmentInfo(n, base + 1, base), LOG, GROUP)
        (logs / f"{n:010d}.log").write_bytes(header)
    index = IndexWriter(LogFiles(RealFileSystem(), str(logs), LOG, GROUP, INDEX_ENTRIES))
    for entry in range(1, EDGES[-1] + 1):
        segment = bisect_right(EDGES, entry - 1)
        index.add(entry, entry - 1, -1, 64, 48, segment, 1, 1, 0)
    index.flush()
    index.close()
    return path


def write_topic(path: Path, value: bytes) -> None:
    meta = Meta(RealFileSystem(), str(path / "meta"), 1 << 20)
    meta.commit([MetaBatch(CATALOG_LOG, 1, [(b"tt", value)])])
    meta.close()


def put_raw(path: Path, item: bytes) -> None:
    """Replace what a server would have written."""
    with (
        lmdb.open(str(path / "meta"), map_size=1 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(CATALOG_LOG.to_bytes(4) + b"ktt", item)


def planned(path: Path, seen: Seen | None = None) -> list[object]:
    """Return the inputs of the tasks for offsets [10, 150)."""
    options = parse({"bootstrap": "nowhere:9092", "topics": "t", "segments": str(path)})
    known = Positions({"t": TopicPositions(ID_TEXT, {0: 150})})
    return [task.value for task in plan(options, [OffsetRange("t", 0, 10, 150)], known, seen)]


def test_plan_with_good_segments_reads_them_and_the_rest_from_brokers(directory: Path) -> None:
    *files, rest = planned(directory)
    assert rest == BrokerTask((OffsetRange("t", 0, 100, 150),))
    assert [piece.wanted for task in files for piece in task.pieces] == [
        OffsetRange("t", 0, 10, 40), OffsetRange("t", 0, 40, 100),
    ]  # fmt: skip


def test_plan_leaves_a_later_versions_directory_to_the_brokers(directory: Path) -> None:
    """Its segments may mean more than is read here."""
    write_form(RealFileSystem(), str(directory), FORM + 1)
    assert planned(directory) == [BrokerTask((OffsetRange("t", 0, 10, 150),))]


def test_plan_looks_at_a_log_again_only_when_it_has_another_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream plans all the time, and a log may have thousands of segments."""
    looked: list[str] = []
    segments = LogFiles.segments

    def look(files: LogFiles, *told: Any, **more: Any) -> Any:
        looked.append(files.directory)
        return segments(files, *told, **more)

    monkeypatch.setattr(LogFiles, "segments", look)
    seen: Seen = {}
    first = planned(directory, seen)
    assert planned(directory, seen) == first
    assert len(looked) == 1
    logs = Path(log_directory(str(directory), LOG))
    header = encode_segment_header(SegmentInfo(4, 141, 140), LOG, GROUP)
    (logs / f"{4:010d}.log").write_bytes(header)
    planned(directory, seen)
    assert len(looked) == 2


def test_plan_sees_a_segment_begin_in_a_file_that_was_there(directory: Path) -> None:
    """The next file is preallocated for large appends.

    It has zeros until a segment begins in it.
    """
    logs = Path(log_directory(str(directory), LOG))
    room = logs / f"{4:010d}.log"
    room.write_bytes(bytes(4096))
    seen: Seen = {}
    assert planned(directory, seen)[-1] == BrokerTask((OffsetRange("t", 0, 100, 150),))
    index = IndexWriter(LogFiles(RealFileSystem(), str(logs), LOG, GROUP, INDEX_ENTRIES))
    for entry in range(101, 141):
        index.add(entry, entry - 1, -1, 64, 48, 3, 1, 1, 0)
    index.flush()
    index.close()
    with room.open("r+b") as file:
        file.write(encode_segment_header(SegmentInfo(4, 141, 140), LOG, GROUP))
    assert planned(directory, seen)[-1] == BrokerTask((OffsetRange("t", 0, 140, 150),))
    assert planned(directory, seen) == planned(directory)


def test_plan_with_room_for_large_appends_looks_at_a_log_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preallocated file exists most of the time."""
    (Path(log_directory(str(directory), LOG)) / f"{4:010d}.log").write_bytes(bytes(4096))
    seen: Seen = {}
    first = planned(directory, seen)
    monkeypatch.setattr(LogFiles, "segments", None)
    assert planned(directory, seen) == first


def test_plan_leaves_segments_that_no_flush_has_come_to(directory: Path) -> None:
    """A large append may have begun the next one before its entries were committed."""
    logs = Path(log_directory(str(directory), LOG))
    (index,) = logs.glob("*.index")
    index.write_bytes(index.read_bytes()[:-40])
    (task, rest) = planned(directory)
    assert [piece.wanted for piece in task.pieces] == [OffsetRange("t", 0, 10, 40)]
    assert rest == BrokerTask((OffsetRange("t", 0, 40, 150),))


def no_meta(path: Path) -> None:
    (path / "meta" / "data.mdb").unlink()
    (path / "meta" / "lock.mdb").unlink()
    (path / "meta").rmdir()


def no_file_in_meta(path: Path) -> None:
    (path / "meta" / "data.mdb").unlink()


def noise(path: Path) -> None:
    (path / "meta" / "data.mdb").write_bytes(b"\xa5" * 16384)


def cut_short(path: Path) -> None:
    file = path / "meta" / "data.mdb"
    file.write_bytes(file.read_bytes()[:8192])


def damaged_page(path: Path) -> None:
    """Make the tree's root name items outside of it. LMDB would end the process."""
    file = path / "meta" / "data.mdb"
    data = bytearray(file.read_bytes())
    for page in range(2 * 4096, len(data), 4096):
        data[page + 16 : page + 64] = b"\xff" * 48
    file.write_bytes(data)


def a_directory_for_a_file(path: Path) -> None:
    no_file_in_meta(path)
    (path / "meta" / "data.mdb").mkdir()


@pytest.mark.parametrize(
    "damage", [no_meta, no_file_in_meta, noise, cut_short, damaged_page, a_directory_for_a_file]
)
def test_plan_with_a_bad_meta_has_all_from_brokers(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    damage(directory)
    assert planned(directory) == [BrokerTask((OffsetRange("t", 0, 10, 150),))]


@pytest.mark.parametrize("item", [b"", b"\x01", bytes(6), bytes(40)])
def test_plan_with_a_value_that_is_none_has_all_from_brokers(directory: Path, item: bytes) -> None:
    put_raw(directory, item)
    assert planned(directory) == [BrokerTask((OffsetRange("t", 0, 10, 150),))]


@pytest.mark.parametrize(
    "fields",
    [b"", b"\xc1", *map(msgspec.msgpack.encode, ([], ["t"], 5, {}, ["t", 1, 2], ["t", "x", [""]]))],
)
def test_plan_with_a_topic_in_another_form_has_all_from_brokers(
    directory: Path, fields: bytes
) -> None:
    """Its CRC is good: a later version may have written it."""
    write_topic(directory, fields)
    assert planned(directory) == [BrokerTask((OffsetRange("t", 0, 10, 150),))]
