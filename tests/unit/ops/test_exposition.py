"""The page of metrics: made in parts, histograms in seconds, old names beside new ones."""

import asyncio
import logging
import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from segments.histogram import Histogram
from vdl.events import Events
from vdl.kafka.connections.request_stats import ApiStats
from vdl.log import EventLog
from vdl.server import http
from vdl.server.exposition import LABEL_CHARS_MAX, Distribution, Exposition, Sample, Source
from vdl.server.http import LATE_SLICE_SECONDS, HttpServer, Response
from vdl.server.metrics import HELP, WAITING_APIS, latency_distributions
from vdl.server.renamed_metrics import RENAMED, REPLACED

LOG = EventLog(logging.getLogger("test"), Events(lambda: 0))
MS = 1_000_000


def page(*sources, help_texts=()):
    *_, whole = Exposition(sources, dict(help_texts)).page()
    return whole.body.decode()


def values(text):
    return {
        (one.name, *sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_histogram_bucket_holds_durations_up_to_its_bound():
    """`le` is inclusive, and what is above all bounds is in the last bucket."""
    histogram = Histogram((10, 20))
    for duration in (0, 10, 11, 20, 21, 1_000):
        histogram.observe(duration)
    assert histogram.counts == [2, 2, 2]
    assert histogram.sum_ns == 1_062


def test_page_has_histograms_with_cumulative_buckets_in_seconds():
    histogram = Histogram((1 * MS, 2 * MS))
    for ms in (1, 2, 2, 7):
        histogram.observe(ms * MS)
    found = values(page(Source("x", lambda: [Distribution("seconds", (("api", "A"),), histogram)])))
    assert {key[-1][1]: n for key, n in found.items() if key[0] == "vdl_x_seconds_bucket"} == {
        "0.001": 1, "0.002": 3, "+Inf": 4,
    }  # fmt: skip
    assert found["vdl_x_seconds_sum", ("api", "A")] == pytest.approx(0.012)
    assert found["vdl_x_seconds_count", ("api", "A")] == 4


def test_page_has_an_old_name_beside_the_new_one_in_the_old_unit():
    numbers = {"journal_write_max_seconds": 0.25, "journal_write_ns_total": 7}
    text = page(Source("store", lambda: numbers))
    assert "\nvdl_store_journal_write_max_seconds 0.25\n" in text
    assert "\nvdl_store_journal_write_ns_max 2.5e+08\n" in text
    for old, new in (("ns_max", "max_seconds"), ("ns_total", "seconds_sum")):
        line = next(
            x for x in text.splitlines() if x.startswith(f"# HELP vdl_store_journal_write_{old}")
        )
        assert "Deprecated" in line
        assert f"vdl_store_journal_write_{new}" in line


def test_long_labels_are_cut_and_stay_apart():
    """Two series of one name would make the whole page unreadable."""
    names = ["g" * LABEL_CHARS_MAX, "g" * 30_000, "g" * 30_001]
    samples = [Sample("lag_records", (("group", name),), len(name)) for name in names]
    text = page(Source("group", lambda: samples))
    found = {key[1][1]: value for key, value in values(text).items() if "group" in key[0]}
    assert sorted(found.values()) == [LABEL_CHARS_MAX, 30_000, 30_001]
    assert names[0] in found
    assert max(map(len, found)) < LABEL_CHARS_MAX + 10


def test_old_names_are_not_names_of_today():
    old = {one.name for one in RENAMED.values()}
    assert not old & (RENAMED.keys() | HELP.keys())
    assert not REPLACED.keys() & RENAMED.keys()


def test_api_phases_add_up_to_the_total():
    """A request has each phase once, whether its answer is known at once or later."""
    stats = ApiStats()
    stats.requests = 3
    stats.answered(0, 1 * MS, 0, 0, 4 * MS)
    stats.answered(0, 1 * MS, 3 * MS, 30 * MS, 40 * MS)
    stats.answered(0, 1 * MS, 3 * MS, 2 * MS, 4 * MS)  # known in a turn that began before
    phases = (stats.queue, stats.work, stats.wait, stats.send)
    assert [one.sum_ns // MS for one in phases] == [3, 7, 27, 11]
    assert sum(one.sum_ns for one in phases) == stats.total.sum_ns
    assert [sum(one.counts) for one in (*phases, stats.total)] == [3] * 5
    assert stats.wait.counts[0] == 2
    assert stats.total.counts == [0, 0, 0, 0, 2, 0, 0, 1, *[0] * 9]


@pytest.mark.parametrize("name", ["Produce", *sorted(WAITING_APIS)])
def test_api_that_waits_for_others_than_replicas_says_so(name):
    stats = ApiStats()
    stats.requests = 1
    phases = {dict(one.labels)["phase"] for one in latency_distributions({name: stats})}
    between = "replication" if name == "Produce" else "wait"
    assert phases == {"queue", "work", between, "send", "total"}


def test_page_prepares_a_source_in_steps_before_it_reads_it():
    order = []

    def prepare():
        for step in range(3):
            order.append(step)
            yield

    def read():
        order.append("read")
        return [Sample("n", (), 1)]

    parts = list(Exposition([Source("x", read, prepare)], {}).page())
    assert order == [0, 1, 2, "read"]
    assert parts[:-1] == [None] * 4
    assert b"vdl_x_n 1.0\n" in parts[-1].body


def test_http_long_page_lets_other_work_run_between_its_parts(monkeypatch):
    """Each turn of the loop makes a bounded part of a page."""
    monkeypatch.setattr(http, "SLICE_SECONDS", 0.0)
    seen = []

    async def run():
        turns = 0

        def page():
            for _ in range(5):
                seen.append(turns)
                yield None
            yield Response(200, "text/plain", b"hello")

        server = HttpServer({"/x": page}, LOG)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        received = asyncio.ensure_future(reader.read())
        while not received.done():
            turns += 1
            await asyncio.sleep(0)
        writer.close()
        server.close()
        return received.result()

    assert asyncio.run(run()).endswith(b"hello")
    assert len(set(seen)) == 5


def test_http_page_that_is_late_gets_more_of_each_turn(monkeypatch):
    """An overloaded server is late in every turn, and still has to be scraped."""
    monkeypatch.setattr(http, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(http, "LATE_AFTER_SECONDS", 0.0)
    seen = []

    async def run():
        turns = 0

        def page():
            for _ in range(15):
                seen.append(turns)
                end_s = time.thread_time() + LATE_SLICE_SECONDS / 4
                while time.thread_time() < end_s:
                    pass
                yield None
            yield Response(200, "text/plain", b"hello")

        server = HttpServer({"/x": page}, LOG)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        received = asyncio.ensure_future(reader.read())
        while not received.done():
            turns += 1
            await asyncio.sleep(0)
        writer.close()
        server.close()
        return received.result()

    assert asyncio.run(run()).endswith(b"hello")
    in_turn = Counter(seen).values()
    assert max(in_turn) > 1, "as if it were in time"
    assert max(in_turn) <= 4, "more than the part of a turn that it may take"


def test_http_scrapers_at_one_time_get_one_page(monkeypatch):
    """Many scrapers take no more of a turn than one, and the next page is a new one."""
    monkeypatch.setattr(http, "SLICE_SECONDS", 0.0)
    begun = []

    async def ask(port, method):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(method + b" /x HTTP/1.1\r\n\r\n")
        received = await reader.read()
        writer.close()
        return received

    async def run():
        asked = asyncio.Event()

        def page():
            number = len(begun)
            begun.append(number)
            while not asked.is_set():
                yield None
            yield Response(200, "text/plain", b"page %d" % number)

        server = HttpServer({"/x": page}, LOG)
        port = await server.start("127.0.0.1", 0)
        asking = [asyncio.ensure_future(ask(port, b"GET")) for _ in range(7)]
        asking.append(asyncio.ensure_future(ask(port, b"HEAD")))
        while not any(len(one.readers) == 8 for one in server._pages.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        asked.set()
        received = await asyncio.gather(*asking)
        received.append(await ask(port, b"GET"))
        assert not server._pages
        server.close()
        return received

    *first, head, later = asyncio.run(run())
    assert all(one.endswith(b"page 0") for one in first)
    assert head.endswith(b"\r\n\r\n")
    assert later.endswith(b"page 1")
    assert begun == [0, 1]


def test_http_page_whose_reader_is_gone_is_not_made_further(monkeypatch):
    monkeypatch.setattr(http, "SLICE_SECONDS", 0.0)
    made = []

    async def run():
        def page():
            while True:
                made.append(1)
                yield None

        server = HttpServer({"/x": page}, LOG)
        port = await server.start("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        while not made:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        server.close()
        before = len(made)
        for _ in range(5):
            await asyncio.sleep(0)
        writer.close()
        return len(made) - before

    assert asyncio.run(run()) == 0
