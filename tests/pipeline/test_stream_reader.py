"""End of a micro-batch as the stream's reader reports it to Spark; without a cluster or Spark."""

from __future__ import annotations

import traceback

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from vdl.pipeline.errors import LogShrank, RowsGone, TopicRecreated
from vdl.pipeline.options import parse
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.source import BrokerTask, LostRange, VdlStreamReader


def at(offsets: dict[int, int], *, topic_id: str = "id") -> Positions:
    return Positions({"t": TopicPositions(topic_id, offsets)})


class Cluster:
    """Starts and ends of one topic's logs; moved by tests."""

    def __init__(self) -> None:
        self.first, self.end = at({0: 0, 1: 0}), at({0: 20, 1: 20})
        self.asked_for_begins = 0

    def begins(self) -> Positions:
        self.asked_for_begins += 1
        return self.first

    def ends(self) -> Positions:
        return self.end

    def row_bytes(self, where: object) -> dict[tuple[str, int], float]:
        return {}


def reader(cluster: Cluster, **more: str) -> VdlStreamReader:
    made = VdlStreamReader(parse({"bootstrap": "nowhere:9092", "topics": "t", **more}))
    made._topics = cluster
    return made


def latest(made: VdlStreamReader, start: Positions, limit: ReadLimit) -> Positions:
    return Positions.from_json(made.latestOffset(start.to_json(), limit))


LIMITS = [ReadMaxRows(10), ReadAllAvailable()]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("loss", ["false", "true"])
def test_stream_of_a_log_that_shrank_stops(limit: ReadLimit, loss: str) -> None:
    """Retention removes the start of a log only. A lost end is never an allowed loss.

    Other records will be written at these offsets.
    """
    cluster = Cluster()
    made = reader(cluster, allowLoss=loss)
    latest(made, at({0: 20, 1: 7}), limit)
    cluster.end = at({0: 15, 1: 20})
    with pytest.raises(LogShrank, match="t/0: read up to 20, but the log ends at 15"):
        latest(made, at({0: 20, 1: 7}), limit)


def test_stream_of_a_log_that_was_trimmed_goes_on_where_loss_is_allowed() -> None:
    cluster = Cluster()
    begin = at({0: 5, 1: 20})
    end = latest(reader(cluster), begin, ReadMaxRows(100))
    cluster.first = at({0: 8, 1: 0})
    with pytest.raises(RowsGone, match="the log begins at 8: 3 records were lost unread"):
        reader(cluster).partitions(begin.to_json(), end.to_json())
    (task,) = reader(cluster, allowLoss="true").partitions(begin.to_json(), end.to_json())
    assert task.value == BrokerTask((OffsetRange("t", 0, 8, 20),))


def test_stream_of_a_log_that_was_trimmed_tells_what_is_gone() -> None:
    """A job keeps it as a dead letter of these offsets."""
    cluster = Cluster()
    begin = at({0: 5, 1: 2})
    end = latest(reader(cluster), begin, ReadMaxRows(100))
    cluster.first = at({0: 8, 1: 30})
    made = reader(cluster, allowLoss="true", unreadable="letter")
    tasks = [task.value for task in made.partitions(begin.to_json(), end.to_json())]
    stop = end.offset("t", 1) or 0
    assert tasks == [
        BrokerTask((OffsetRange("t", 0, 8, 20),)),
        LostRange(OffsetRange("t", 0, 5, 8)),
        LostRange(OffsetRange("t", 1, 2, stop)),
    ]


def test_stream_that_has_nothing_new_asks_only_for_ends() -> None:
    """Spark requests them all the time."""
    cluster = Cluster()
    made = reader(cluster)
    assert latest(made, cluster.end, ReadMaxRows(10)) == cluster.end
    assert cluster.asked_for_begins == 0


def test_stream_of_a_recreated_topic_stops() -> None:
    cluster = Cluster()
    cluster.end = at({0: 1, 1: 1}, topic_id="new")
    with pytest.raises(TopicRecreated):
        latest(reader(cluster), at({0: 20, 1: 7}), ReadMaxRows(10))


@pytest.mark.parametrize("limit", LIMITS)
def test_stream_of_what_is_there_now_ends_there(limit: ReadLimit) -> None:
    """Covers a stream that begins at the end, which was requested a moment after its target."""
    cluster = Cluster()
    made = reader(cluster)
    made.prepareForTriggerAvailableNow()
    cluster.end = at({0: 30, 1: 20})
    begin = at({0: 18, 1: 20})
    assert latest(made, begin, limit) == at({0: 20, 1: 20})
    for start in (at({0: 20, 1: 20}), at({0: 25, 1: 20})):
        assert latest(made, start, limit) == start


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("loss", ["false", "true"])
def test_partition_that_was_added_and_trimmed_begins_where_its_log_does(
    limit: ReadLimit, loss: str
) -> None:
    """Its removed records were never part of a plan, so nothing is lost."""
    cluster = Cluster()
    made = reader(cluster, allowLoss=loss)
    cluster.first, cluster.end = at({0: 0, 1: 0, 2: 500}), at({0: 20, 1: 20, 2: 505})
    begin = at({0: 20, 1: 20})
    end = latest(made, begin, limit)
    assert end == cluster.end
    # It is trimmed further before the batch is planned.
    cluster.first = at({0: 0, 1: 0, 2: 502})
    tasks = [task.value for task in made.partitions(begin.to_json(), end.to_json())]
    assert tasks == [BrokerTask((OffsetRange("t", 2, 502, 505),))]
    # It is trimmed completely: the batch has nothing of it, and the next one reports the loss.
    cluster.first = cluster.end = at({0: 20, 1: 20, 2: 600})
    assert not [t for t in made.partitions(begin.to_json(), end.to_json()) if t.value]
    if loss == "false":
        with pytest.raises(
            RowsGone, match="t/2: offset 505 is required, but the log begins at 600"
        ):
            made.partitions(end.to_json(), cluster.end.to_json())


def test_progress_of_a_stream_tells_its_lag() -> None:
    """The lag is by partition, relative to the last planned batch."""
    cluster = Cluster()
    made = reader(cluster)
    assert made.reportLatestOffset() is None
    end = latest(made, at({0: 0, 1: 20}), ReadMaxRows(5))
    assert end == at({0: 5, 1: 20})
    told = made.reportLatestOffset()
    assert told == {"t": {"id": "id", "offsets": {"0": 20, "1": 20}, "lag": {"0": 15, "1": 0}}}


def test_error_of_a_stream_is_told_without_its_causes() -> None:
    """Spark would show them all, each with its traceback."""

    class Broken(Cluster):
        def ends(self) -> Positions:
            try:
                raise OSError("no route")
            except OSError as error:
                raise LogShrank("t", 0, known=5, end=3) from error

    with pytest.raises(LogShrank) as found:
        latest(reader(Broken()), at({0: 5, 1: 5}), ReadMaxRows(1))
    assert found.value.__suppress_context__
    assert "no route" not in "".join(traceback.format_exception(found.value))
    assert len(traceback.format_exception(found.value)) <= 6
