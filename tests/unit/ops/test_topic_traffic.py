"""Traffic by topic: few names, counters that never move back, and nothing lost between them."""

import pytest

from segments.histogram import Histogram
from vdl.logstream.group.measures import Measures
from vdl.server.topic_traffic import OTHER, BusiestTopics


class Server:
    def __init__(self, topics_max):
        self.measures = Measures(lambda: 0, Histogram())
        self.busiest = BusiestTopics(self.measures.traffic, topics_max)
        self.existing = set()
        self.replicas = {}

    def write(self, topic, count):
        self.existing.add(topic)
        traffic = self.replicas.setdefault(topic, self.measures.traffic_of(topic))
        traffic.bytes_in += count
        traffic.records_in += 1

    def look(self):
        list(self.busiest.look(self.existing))
        return {
            dict(one.labels)["topic"]: one.value
            for one in self.busiest.samples()
            if one.key == "bytes_in_total"
        }


def test_topics_up_to_the_bound_have_names_from_their_first_byte():
    server = Server(topics_max=2)
    for topic, count in (("a", 5), ("b", 7), ("c", 9)):
        server.write(topic, count)
    assert server.look() == {"a": 5, "b": 7, OTHER: 9}


def test_topic_twice_as_busy_takes_the_place_of_the_least_busy_one():
    """Its series begins at 0; the other's traffic is counted as other from then on."""
    server = Server(topics_max=2)
    for topic, count in (("a", 5), ("b", 700), ("c", 9)):
        server.write(topic, count)
    server.look()
    server.write("c", 1_000)
    assert server.look() == {"a": 5, "b": 700, OTHER: 1_009}
    server.write("a", 3)
    server.write("c", 4)
    assert server.look() == {"b": 700, "c": 4, OTHER: 1_012}


def test_topic_that_is_a_little_busier_waits():
    server = Server(topics_max=1)
    server.write("a", 100)
    server.look()
    server.write("b", 150)
    server.look()
    assert server.look() == {"a": 100, OTHER: 150}


def test_topic_named_other_is_one_of_the_others():
    """Two series of one name would make the whole page unreadable."""
    server = Server(topics_max=5)
    server.write(OTHER, 3)
    server.write("a", 4)
    assert server.look() == {"a": 4, OTHER: 3}


def test_deleted_topic_is_forgotten_and_may_come_back():
    server = Server(topics_max=5)
    server.write("a", 4)
    server.look()
    server.existing.clear()
    server.replicas.clear()
    assert server.look() == {OTHER: 0}
    assert not server.measures.traffic
    server.write("a", 1)
    assert server.look() == {"a": 1, OTHER: 0}


def test_topics_without_replicas_here_leave_nothing_where_nobody_looks():
    """A server that is not scraped must not remember each topic that it ever had."""
    server = Server(topics_max=5)
    for n in range(100):
        server.write(f"t{n}", 1)
        server.replicas.clear()
    assert not server.measures.traffic


def test_traffic_before_the_last_replica_went_is_counted():
    server = Server(topics_max=5)
    server.write("a", 40)
    server.look()
    server.write("a", 2)
    server.replicas.clear()
    assert server.look() == {"a": 42, OTHER: 0}


@pytest.mark.parametrize("topics_max", [0, 3])
def test_sum_over_all_series_grows_by_all_traffic_while_names_change(topics_max):
    server = Server(topics_max)
    before = {}
    for turn in range(30):
        came = 0
        for n in range(8):
            count = 1 + (turn * (n + 1)) % 7 * 100
            server.write(f"t{n}", count)
            came += count
        found = server.look()
        assert len(found) <= topics_max + 1
        grown = sum(value - before.get(topic, 0) for topic, value in found.items())
        assert grown == came
        assert all(value >= before.get(topic, 0) for topic, value in found.items())
        before = found
