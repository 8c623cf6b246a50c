"""Windows: each is written once, and every row is counted in its windows or as late.

The reference model is a loop over the table's commits in plain Python: it takes only the rows of
each commit from the job.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

from vdl.pipeline.errors import JobInvalid, PipelineError, SinkInconsistent
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.open_table import open_table
from vdl.pipeline.positions import Positions, TopicPositions
from vdl.pipeline.table import (
    UNKNOWN,
    Commit,
    DataFile,
    KeptWindows,
    TableSink,
    WindowSink,
    WindowState,
)
from vdl.pipeline.watermark import Heard, Sources
from vdl.pipeline.windows import MERGED_TIMES, duration_us, merge_choice

pa = pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")

KINDS = pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
MINUTE_US = 60_000_000

JOB = """
[job]
name = "windows"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_rows = 150
[decode]
schema = "at timestamp, k string, n bigint, price decimal(10,2), x double"
[transform]
steps = [{{ name = "some", sql = "select * from input where k is null or k <> 'not'" }}]
[window]
time = "at"
size = "{size}"
slide = "{slide}"
late = "10 minutes"
keys = ["k"]
[window.values]
all = "count(*)"
known = "count(n)"
total = "SUM( n )"
low = "min(x)"
high = "max(x)"
mean = "avg(n)"
paid = "sum(price)"
price = "avg(price)"
[sink]
kind = "{kind}"
path = "table"
[errors]
share_max = 0.5
"""


def text_of(
    *, kind: str = "parquet", size: str = "30 minutes", slide: str = "", **more: str
) -> str:
    where = {"bootstrap": "127.0.0.1:9", "topic": "events", **more}
    return JOB.format(kind=kind, size=size, slide=slide, **where)


def load(folder: Path, text: str) -> Job:
    file = folder / "job.toml"
    file.write_text(text, encoding="utf-8")
    return load_job(file)


# --- job files ------------------------------------------------------------------------------------
def test_window_of_a_job_file_is_parsed(tmp_path: Path) -> None:
    window = load(tmp_path, text_of(size="1 hour", slide="10 minutes")).window
    assert window is not None
    assert (window.size_us, window.slide_us) == (60 * MINUTE_US, 10 * MINUTE_US)
    assert (window.time, window.keys, window.late_us) == ("at", ("k",), 10 * MINUTE_US)
    values = [(v.name, v.function, v.column) for v in window.values]
    assert values[:3] == [("all", "count", "*"), ("known", "count", "n"), ("total", "sum", "n")]
    same = load(tmp_path, text_of(size="60 minutes", slide="600 seconds")).window
    assert same is not None
    assert same.definition() == window.definition()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('time = "at"', "", "window.time: is required"),
        ('time = "at"', 'time = ""', "window.time: must name"),
        ('late = "10 minutes"', "", "window.late: is required"),
        ('late = "10 minutes"', 'late = "soon"', "window.late: 'soon' is not a duration"),
        ('late = "10 minutes"', 'late = "-1 minutes"', "window.late"),
        ('size = "30 minutes"', 'size = "30"', "window.size: '30' is not a duration"),
        ('size = "30 minutes"', 'size = "0 hours"', "window.size: must not be 0"),
        ('size = "30 minutes"', 'size = "99999 weeks"', "longer than a hundred years"),
        ('slide = ""', 'slide = "31 minutes"', "window.slide: must not exceed"),
        ('slide = ""', 'slide = "0 minutes"', "window.slide: must not be 0"),
        ('slide = ""', 'slide = "1 second"', "window.slide: each row would be in more than 1000"),
        ('keys = ["k"]', 'keys = ["k", "K"]', "window.keys: 'K' is already used"),
        ('keys = ["k"]', 'keys = ["window_end"]', "window.keys: 'window_end' is already used"),
        ('keys = ["k"]', 'keys = ["_offset"]', "window.keys: _offset"),
        ('all = "count(*)"', 'k = "count(*)"', "window.values: 'k' is already used"),
        ('all = "count(*)"', '_all = "count(*)"', "window.values: '_all' is not a valid name"),
        ('all = "count(*)"', 'all = "median(n)"', "window.values.all: 'median(n)' is not one of"),
        ('all = "count(*)"', 'all = "sum(*)"', "window.values.all: 'sum(*)': only count"),
        ('all = "count(*)"', "all = 5", "window.values.all: '5' is not one of"),
        ('late = "10 minutes"', 'late = "1 day"\nidle = "soon"', "window.idle: 'soon'"),
        ('late = "10 minutes"', 'late = "1 day"\nfuture = "1"', "window.future: '1'"),
        ('keys = ["k"]', 'kyes = ["k"]', "window.kyes: unknown setting"),
        ('kind = "parquet"', 'kind = "topic"\ntopic = "t"', "window: only for sink.kind"),
    ],
)
def test_window_with_a_mistake_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = text_of()
    assert old in text
    with pytest.raises(JobInvalid) as refused:
        load(tmp_path, text.replace(old, new))
    assert any(problem in one for one in refused.value.problems), refused.value.problems


def test_window_with_several_mistakes_tells_all(tmp_path: Path) -> None:
    text = text_of(size="an hour", slide="0 days").replace('"max(x)"', '"max(x, y)"')
    with pytest.raises(JobInvalid) as refused:
        load(tmp_path, text.replace('time = "at"', 'time = ""'))
    assert len(refused.value.problems) == 4
    with pytest.raises(JobInvalid, match="at least one is required"):
        load(tmp_path, text_of().partition("[window.values]")[0] + '[sink]\npath = "t"\n')


def test_window_duration_of_every_unit_is_known() -> None:
    units = ["1 millisecond", "2 seconds", "3 minutes", "4hours", "5 days", "1 week"]
    assert [duration_us(text) // 1000 for text in units] == [
        1, 2_000, 180_000, 14_400_000, 432_000_000, 604_800_000,
    ]  # fmt: skip


# --- tables ---------------------------------------------------------------------------------------
TOPICS = {"t": ("id", 1)}
COLUMNS = pa.schema([("n", pa.int64())])
ONE = KeptWindows(1, 1, 1)


def at(offset: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: offset})})


def windows_of(table: TableSink) -> WindowSink:
    assert isinstance(table, WindowSink)
    return table


def keep(table: TableSink, name: str) -> str:
    """Write a file of open windows; return its name."""
    path = Path(windows_of(table).window_folder()) / name
    pq.write_table(pa.table({"window": [1]}), path)
    return name


def commit(table: TableSink, start: int, end: int, *names: str) -> None:
    """Commit a batch that closes no window."""
    state = WindowState("d", "c", end, dict.fromkeys(names, ONE))
    files: tuple[DataFile, ...] = ()
    table.commit(
        Commit("job", "r", 0, at(start), at(end), 0, 0, files, "n: int64", 3, state), COLUMNS
    )


def kept(table: TableSink) -> set[str]:
    return {path.name for path in Path(windows_of(table).window_folder()).glob("*.parquet")}


@KINDS
def test_table_keeps_windows_with_its_offsets(tmp_path: Path, kind: str) -> None:
    """Holds also if the batch had no row for the table. Files of older commits are gone."""
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    assert windows_of(table).windows is None
    commit(table, 0, 5, keep(table, "a.parquet"))
    commit(table, 5, 9, keep(table, "b.parquet"), keep(table, "c.parquet"))
    again = open_table(kind, str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(9)
    files = {"b.parquet": ONE, "c.parquet": ONE}
    assert windows_of(again).windows == WindowState("d", "c", 9, files)
    assert kept(again) == {"b.parquet", "c.parquet"}
    assert [note.late for note in again.notes()] == [3, 3]
    assert again.files() == []


@KINDS
def test_table_without_a_file_of_its_windows_is_refused(tmp_path: Path, kind: str) -> None:
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    commit(table, 0, 5, keep(table, "a.parquet"))
    (Path(windows_of(table).window_folder()) / "a.parquet").unlink()
    with pytest.raises(SinkInconsistent, match=r"a\.parquet"):
        open_table(kind, str(tmp_path / "t"), "job").open(TOPICS)


@KINDS
def test_table_of_two_runs_keeps_the_windows_of_the_one_that_commits(
    tmp_path: Path, kind: str
) -> None:
    """A refused run removes nothing; the next commit removes its files."""
    table = open_table(kind, str(tmp_path / "t"), "job")
    table.open(TOPICS)
    commit(table, 0, 5, keep(table, "a.parquet"))
    zombie, heir = (open_table(kind, str(tmp_path / "t"), "job") for _ in range(2))
    zombie.open(TOPICS)
    heir.open(TOPICS)
    commit(heir, 5, 8, keep(heir, "heir.parquet"))
    with pytest.raises(PipelineError, match="another run"):
        commit(zombie, 5, 7, keep(zombie, "zombie.parquet"))
    assert kept(heir) == {"heir.parquet", "zombie.parquet"}
    commit(heir, 8, 9, keep(heir, "next.parquet"))
    assert kept(heir) == {"next.parquet"}


@KINDS
def test_run_that_sleeps_after_its_commit_removes_nothing_of_its_successor(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vdl.pipeline.window_files import WindowFiles

    sleeper, successor = (open_table(kind, str(tmp_path / "t"), "job") for _ in range(2))
    sleeper.open(TOPICS)
    commit(sleeper, 0, 5, keep(sleeper, "a.parquet"))
    remove = WindowFiles.remove

    def sleep(files: WindowFiles, paths: list[Path]) -> None:
        monkeypatch.setattr(WindowFiles, "remove", remove)
        successor.open(TOPICS)
        commit(successor, 6, 9, keep(successor, "successor.parquet"))
        remove(files, paths)

    monkeypatch.setattr(WindowFiles, "remove", sleep)
    commit(sleeper, 5, 6, keep(sleeper, "b.parquet"))
    assert kept(successor) == {"successor.parquet"}


@KINDS
def test_late_rows_are_shown_once_wherever_a_run_is_killed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rename after the commit that counts them shows them; the next run finishes it."""
    from vdl.pipeline.window_files import WindowFiles

    shown = tmp_path / "t-late" / "job"
    show, rename = WindowFiles.show_late, Path.rename

    def late_commit(table: TableSink, start: int, end: int, name: str) -> None:
        names = (keep(table, f"{name}-1.parquet"), keep(table, f"{name}-2.parquet"))
        state = WindowState("d", "c", end, {}, {}, names)
        lines = "n: int64"
        table.commit(Commit("job", "r", 0, at(start), at(end), 0, 0, (), lines, 2, state), COLUMNS)

    def count() -> int:
        return pq.read_table(shown).num_rows if shown.exists() else 0

    for killed_at in range(4):
        table = open_table(kind, str(tmp_path / "t"), "job")
        start = table.open(TOPICS).offset("t", 0) or 0
        before = count()
        assert before == 2 * killed_at
        calls = 0

        def renamed(source: Path, target: Path, killed_at: int = killed_at) -> Path:
            nonlocal calls
            if calls == killed_at:
                raise KeyboardInterrupt
            calls += 1
            return rename(source, target)

        def killed(files: WindowFiles, sequence: int, state: WindowState) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "rename", renamed)
                show(files, sequence, state)

        with monkeypatch.context() as patch:
            patch.setattr(WindowFiles, "show_late", killed)
            with contextlib.suppress(KeyboardInterrupt):
                late_commit(table, start, start + 5, f"batch-{killed_at}")
        assert count() in (before, before + 2)
        again = open_table(kind, str(tmp_path / "t"), "job")
        again.open(TOPICS)
        assert count() == before + 2


def test_windows_of_an_older_release_are_read() -> None:
    """Its files do not record their windows, so they may have any."""
    old = {"definition": "d", "columns": "c", "watermark_us": None, "files": ["a.parquet"]}
    assert WindowState.from_json(old) == WindowState("d", "c", None, {"a.parquet": UNKNOWN})
    assert merge_choice({"a.parquet": UNKNOWN}, 0) == ["a.parquet"]
    state = WindowState("d", "c", 4, {"a": ONE}, {"t/0": Heard(5, 6)}, ("l",))
    assert WindowState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_merges_write_little_and_leave_few_files() -> None:
    """A thousand batches: each row is rewritten a few times, though no window is ever closed."""
    files: dict[str, KeptWindows] = {}
    written = most = 0
    for n in range(1000):
        chosen = merge_choice(files, 100)
        rows = 100 + sum(files[name].rows for name in chosen)
        files = {name: one for name, one in files.items() if name not in chosen}
        files[str(n)] = KeptWindows(0, 0, rows)
        written, most = written + rows, max(most, len(files))
    assert sum(one.rows for one in files.values()) == 100_000
    assert most <= 12
    assert written < 15 * 100_000
    sizes = [one.rows for one in files.values()]
    assert all(old > MERGED_TIMES * new for old, new in itertools.pairwise(sizes))


# --- watermarks -----------------------------------------------------------------------------------
MINUTE = 60_000_000


def test_watermark_is_that_of_the_slowest_partition() -> None:
    sources = Sources(10 * MINUTE, MINUTE, {})
    heard = sources.after({"0": 100 * MINUTE, "1": 40 * MINUTE, "2": None}, now_us=0)
    assert sources.watermark(heard, None, now_us=0) == 30 * MINUTE
    assert set(heard) == {"0", "1"}


def test_watermark_does_not_wait_for_a_partition_that_is_silent() -> None:
    """It does once the partition has rows again; the watermark never goes back."""
    heard = Sources(0, MINUTE, {}).after({"0": 50, "1": 40}, now_us=0)
    sources = Sources(0, MINUTE, heard)
    after = sources.after({"0": 90}, now_us=MINUTE)
    assert sources.watermark(after, 40, now_us=MINUTE) == 40
    after = sources.after({"0": 90}, now_us=MINUTE + 1)
    assert sources.watermark(after, 40, now_us=MINUTE + 1) == 90
    later = Sources(0, MINUTE, after).after({"0": 99, "1": 60}, now_us=MINUTE + 2)
    assert later["1"].at_us == 60
    assert sources.watermark(later, 90, now_us=MINUTE + 2) == 90


def test_watermark_without_any_row_stays() -> None:
    sources = Sources(0, MINUTE, {"0": Heard(50, 0)})
    assert sources.watermark(sources.after({}, now_us=10**12), 40, now_us=10**12) == 40
    assert Sources(0, MINUTE, {}).watermark({}, None, now_us=0) is None


def test_delta_windows_survive_the_loss_of_history(tmp_path: Path) -> None:
    """After thirty days the transactions are all that is left of the commits."""
    import deltalake

    table = open_table("delta", str(tmp_path / "t"), "job")
    table.open(TOPICS)
    commit(table, 0, 5, keep(table, "a.parquet"))
    delta = deltalake.DeltaTable(str(tmp_path / "t"))
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    delta.create_checkpoint()
    for file in (tmp_path / "t/_delta_log").glob("*.json"):
        file.unlink()
    again = open_table("delta", str(tmp_path / "t"), "job")
    assert again.open(TOPICS) == at(5)
    assert windows_of(again).windows == WindowState("d", "c", 5, {"a.parquet": ONE})


# --- on Spark -------------------------------------------------------------------------------------
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
Row = dict[str, Any]


@dataclass
class Twin:
    """Reference model of the windows. `rows`: produced row of each offset; None: broken."""

    size: int
    slide: int
    rows: list[Row | None] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    """Offsets of late rows."""
    watermark: int | None = None
    counted: dict[tuple[int, Any], list[Row]] = field(default_factory=lambda: defaultdict(list))

    def commits(self, table: TableSink) -> Twin:
        for note in table.notes():
            first, end = note.start.offset("events", 0) or 0, note.end.offset("events", 0) or 0
            numbered = enumerate(self.rows[first:end], first)
            self._batch([(n, row) for n, row in numbered if row and row["k"] != "not"])
        return self

    def _batch(self, numbered: list[tuple[int, Row]]) -> None:
        before = self.watermark
        rows = [row for _, row in numbered]
        for offset, row in numbered:
            time = row["at"]
            first = -(self.size // self.slide + 1) * self.slide  # Windows may begin before 1970.
            starts = [] if time is None else range(first, time + 1, self.slide)
            mine = [start for start in starts if start <= time < start + self.size]
            missed = [s for s in mine if before is not None and s + self.size <= before]
            if time is None or missed:
                self.late.append(offset)
            for start in mine:
                if start not in missed:
                    self.counted[start, row["k"]].append(row)
        times = [row["at"] for row in rows if row["at"] is not None]
        if times:
            latest = max(times) - 10 * MINUTE_US
            self.watermark = latest if before is None else max(before, latest)

    def closed(self) -> list[Row]:
        return [
            self._value(start, k, rows)
            for (start, k), rows in self.counted.items()
            if self.watermark is not None and start + self.size <= self.watermark
        ]

    def _value(self, start: int, k: Any, rows: list[Row]) -> Row:
        def known(name: str) -> list[Any]:
            return [row[name] for row in rows if row[name] is not None]

        n, x, price = known("n"), known("x"), known("price")
        cents = Decimal("0.000001")
        return {
            "window_start": EPOCH + datetime.timedelta(microseconds=start),
            "window_end": EPOCH + datetime.timedelta(microseconds=start + self.size),
            "k": k,
            "all": len(rows),
            "known": len(n),
            "total": sum(n) if n else None,
            "low": min(x, default=None),
            "high": max(x, default=None),
            "mean": sum(n) / len(n) if n else None,
            "paid": sum(price) if price else None,
            "price": (sum(price) / len(price)).quantize(cents, ROUND_HALF_UP) if price else None,
        }


class Events:
    """Out-of-order rows on a topic of one partition."""

    def __init__(self, bootstrap: str, twin: Twin) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._rng = random.Random(7)
        self._twin = twin
        self._minute = 0

    def produce(self, count: int) -> None:
        """Produce a row a minute: most a little late, some much, some without a time or broken."""
        for _ in range(count):
            self._minute += 1
            luck = self._rng.random()
            if luck < 0.02:
                self._send(None, b"{")
                continue
            back = self._rng.randrange(12) if luck < 0.8 else self._rng.randrange(150)
            self._row(None if luck > 0.97 else max(0, self._minute - back) * MINUTE_US)
        assert self._producer.flush(30) == 0

    def close_all(self) -> None:
        """Produce rows far ahead, in windows that stay open."""
        for _ in range(20):
            self._row((self._minute + 1000) * MINUTE_US)
        assert self._producer.flush(30) == 0

    def _row(self, time: int | None) -> None:
        rng = self._rng
        cents = rng.randrange(100_000)
        row = {
            "at": time,
            "k": rng.choice(["a", "b", None, "not"]),
            "n": rng.choice([None, rng.randrange(1000)]),
            "price": rng.choice([None, Decimal(cents) / 100]),
            "x": rng.choice([None, rng.random()]),
        }
        at = None if time is None else (EPOCH + datetime.timedelta(microseconds=time)).isoformat()
        price = None if row["price"] is None else float(row["price"])
        self._send(row, json.dumps({**row, "at": at, "price": price}).encode())

    def _send(self, row: Row | None, value: bytes) -> None:
        self._twin.rows.append(row)
        self._producer.produce("events", value, partition=0)


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    from tests.pipeline.test_reading import create

    create(bootstrap, "events", partitions=1)
    return "events"


class Killed(PipelineError):
    """Simulated end of the process at one place."""


def kill(patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool]) -> None:
    """End the process when this method is called with arguments that `when` accepts."""
    method = getattr(owner, name)

    def call(self: Any, *arguments: Any) -> Any:
        if when(self, *arguments):
            raise Killed(name)
        return method(self, *arguments)

    patch.setattr(owner, name, call)


def late_offsets(job: Job) -> list[int]:
    """Return the offsets of the late rows that readers find, with duplicates."""
    shown = Path(f"{job.sink.path}-late") / job.name
    return sorted(pq.read_table(shown)["_offset"].to_pylist())


def table_rows(table: TableSink) -> list[Row]:
    return [row for path in table.files() for row in pq.read_table(path).to_pylist()]


def order(row: Row) -> tuple[Any, ...]:
    return (row["window_start"], row["k"] or "")


@pytest.mark.takes_turns(parts=3)
@pytest.mark.spark
@pytest.mark.parametrize(("kind", "slide"), [("parquet", ""), ("delta", "12 minutes")])
def test_windows_of_a_job_killed_everywhere_are_those_of_its_twin(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, kind: str, slide: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No window is duplicated, no row lost, late ones are counted.

    Spark's checkpoint is not used.
    """
    pytest.importorskip("pyspark", reason="needs the `spark` extra")
    from vdl.pipeline.delta_table import DeltaSink
    from vdl.pipeline.metrics import JobMetrics
    from vdl.pipeline.parquet_table import ParquetSink
    from vdl.pipeline.runner import BatchReport, Runner
    from vdl.pipeline.window_files import WindowFiles

    start = topics_end(bootstrap)
    job = load(tmp_path, text_of(kind=kind, slide=slide, bootstrap=bootstrap).replace(
        "max_rows", f"start = '{json.dumps({topic: {'0': start}})}'\nmax_rows"
    ))  # fmt: skip
    twin = Twin(30 * MINUTE_US, duration_us(slide or "30 minutes"), [None] * start)
    events = Events(bootstrap, twin)
    reports: list[BatchReport] = []
    metrics = JobMetrics("windows", "")

    def on_batch(report: BatchReport) -> None:
        reports.append(report)
        metrics.on_batch(report)

    def run(owner: Any = None, name: str = "", when: Callable[..., bool] | None = None) -> None:
        """Run until the topic's end, or a kill; there is never a checkpoint."""
        shutil.rmtree(job.checkpoint, ignore_errors=True)
        with (
            contextlib.closing(Runner(job, spark, on_batch)) as runner,
            monkeypatch.context() as patch,
        ):
            if when is None:
                runner.run(once=True)
            else:
                kill(patch, owner, name, when)
                with pytest.raises(Killed):
                    runner.run(once=True)

    events.produce(200)
    sink = DeltaSink if kind == "delta" else ParquetSink
    # Rows and open windows of the second batch are written, dead letters committed.
    run(sink, "commit", lambda _, it, columns: it.windows is not None and it.batch == 1)
    run()
    events.produce(200)
    # The commit is done, but its result did not arrive.
    if kind == "delta":
        run(sink, "_sync_log", lambda table: Path(table.path).name == "table")
    else:
        run(sink, "_publish", lambda table, it: it["windows"] and it["sequence"] > table.sequence)
    # Files that the commit has made obsolete still exist.
    run(WindowFiles, "remove", lambda files, paths: bool(paths))
    events.produce(40)
    run()
    table = table_of(job)
    found = Twin(twin.size, twin.slide, twin.rows).commits(table)
    assert len(found.late) > 20
    assert sum(note.late for note in table.notes()) == len(found.late)
    assert late_offsets(job) == found.late
    assert sum(note.dead for note in table.notes()) == twin.rows[start:].count(None) > 2
    assert sorted(table_rows(table), key=order) == sorted(found.closed(), key=order)
    assert len(found.closed()) < len(found.counted)
    told = windows_of(table).windows
    assert told is not None
    assert told.watermark_us == found.watermark
    assert 1 <= len(told.files) <= 4
    assert kept(table) == set(told.files)
    last = reports[-1].windows
    assert last is not None
    assert len(found.counted) - len(found.closed()) <= last.open < 2 * len(found.counted)
    sample = metrics.registry.get_sample_value
    assert sample("vdl_pipeline_late_rows_total", {"job": "windows"}) == sum(
        report.windows.late for report in reports if report.windows is not None
    )
    events.close_all()
    with contextlib.closing(Runner(job, spark, on_batch)) as runner:
        totals = runner.backfill("", "latest")
    assert (totals.batches, totals.late) == (1, 0)
    table = table_of(job)
    found = Twin(twin.size, twin.slide, twin.rows).commits(table)
    assert sorted(table_rows(table), key=order) == sorted(found.closed(), key=order)
    assert len(found.closed()) > len(found.counted) - 20
    assert {row["k"] for row in table_rows(table)} == {"a", "b", None}
    check_refusals(tmp_path, job, spark)


@pytest.mark.spark
def test_windows_wait_for_a_partition_that_is_behind_and_not_for_the_future(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    """One partition is hours behind the other: none of its rows is late.

    A row of the year 2999 is late, and closes nothing.
    """
    from confluent_kafka import Producer

    from tests.pipeline.test_reading import create
    from vdl.pipeline.runner import Runner

    create(bootstrap, "apart", partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for n in range(300):
        for partition, ahead in ((0, 600), (1, 0)):
            at = EPOCH + datetime.timedelta(minutes=n + ahead)
            row = {"at": at.isoformat(), "k": "a", "n": n}
            producer.produce("apart", json.dumps(row).encode(), partition=partition)
    row = {"at": "2999-01-01T00:00:00Z", "k": "a", "n": -1}
    producer.produce("apart", json.dumps(row).encode(), partition=1)
    assert producer.flush(30) == 0
    job = load(tmp_path, text_of(bootstrap=bootstrap, topic="apart"))
    with contextlib.closing(Runner(job, spark)) as runner:
        totals = runner.run(once=True)
    assert (totals.batches, totals.late) == (5, 1)
    rows = pq.read_table(Path(f"{job.sink.path}-late") / job.name).to_pylist()
    assert [(row["n"], row["_late"]) for row in rows] == [(-1, "ahead")]
    table = open_table(job.sink.kind, job.sink.path, job.name)
    closed = sorted(table_rows(table), key=order)
    assert [row["all"] for row in closed] == [30] * 9
    assert closed[-1]["window_end"] == EPOCH + datetime.timedelta(minutes=270)


def table_of(job: Job) -> TableSink:
    from vdl.pipeline.topics import Topics

    topics = Topics(job.source.read_options())
    table = open_table(job.sink.kind, job.sink.path, job.name)
    table.open(topics.ids())
    topics.close()
    return table


def topics_end(bootstrap: str) -> int:
    """Return the current end of the topic: both kinds of table share it."""
    from tests.pipeline.test_reading import topics_of

    topics = topics_of(bootstrap, "events")
    end = topics.ends().offset("events", 0) or 0
    topics.close()
    return end


def check_refusals(folder: Path, job: Job, spark: Any) -> None:
    """Assert that a changed job does not run, and that a plan shows the windows."""
    from vdl.pipeline.runner import Runner
    from vdl.pipeline.verify import verify

    def refuse(text: str, problem: str, act: Callable[[Runner], Any]) -> None:
        with contextlib.closing(Runner(load(folder, text), spark)) as runner:
            with pytest.raises(PipelineError) as refused:
                act(runner)
            assert re.search(problem, str(refused.value)), refused.value

    text = (folder / "job.toml").read_text(encoding="utf-8")
    longer = text.replace('size = "30 minutes"', 'size = "45 minutes"')
    refuse(longer, r"window\.size.* differ; use a new table", lambda r: r.run(once=True))
    without = text.partition("[window]")[0] + "[sink]" + text.partition("[sink]")[2]
    refuse(without, "the job has none", lambda r: r.run(once=True))
    wrong = text.replace('"at"', '"k"').replace("sum(price)", "sum(prize)")
    refuse(wrong, r"column prize does .*k is string, not timestamp", lambda r: r.preview(3))
    with contextlib.closing(Runner(job, spark)) as runner:
        columns, rows, _ = runner.preview(3)
    assert columns.splitlines()[:4] == [
        "window_start: timestamp", "window_end: timestamp", "k: string", "all: bigint",
    ]  # fmt: skip
    assert len(rows) == 3
    with pytest.raises(PipelineError, match="cannot be compared with rows"):
        verify(job, spark)
