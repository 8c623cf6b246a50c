"""The metrics of whole servers that have had producers, a consumer and a consumer group.

The servers are simulated, so that their numbers are the same in each run.
"""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cost.cluster import TOPIC
from tests.cost.workloads import Load, Workload
from tests.unit.ops.prometheus_files import NO_PROMTOOL, PROMTOOL, metrics_used
from vdl.clock import MS
from vdl.config.settings import MetricsOptions
from vdl.kafka.wire import offset_commit
from vdl.server.metrics import Health, operations_routes
from vdl.server.renamed_metrics import RENAMED, REPLACED
from vdl.server.sources import ServerSources
from vdl.sim.client import Failure

REQUESTS, COMMITTED = 40, 13
LOAD = Workload(
    name="metrics",
    about="one record a request to one partition, read by a consumer",
    unit="record",
    units=REQUESTS,
    partitions=1,
    records_per_request=1,
    requests=REQUESTS,
    requests_to_warm=0,
    in_flight=4,
    consumers=1,
)


class Pages:
    """The pages of a cluster's servers, as last made."""

    def __init__(self, load: Load) -> None:
        self._servers = [machine.server for machine in load.cluster.machines]
        self.sources = [
            ServerSources(one, one.store, MetricsOptions(), tuple) for one in self._servers
        ]
        health = Health(is_ready=True, facts={})
        self._routes = [operations_routes(one.all(), lambda: health) for one in self.sources]
        self.samples: list[dict[tuple[str, ...], float]] = []
        self.texts: list[str] = []

    def make(self) -> None:
        self.texts, self.samples = [], []
        for routes in self._routes:
            *_, page = routes["/metrics"]()
            text = page.body.decode()
            self.texts.append(text)
            self.samples.append(
                {
                    (one.name, *(f"{k}={v}" for k, v in sorted(one.labels.items()))): one.value
                    for family in text_string_to_metric_families(text)
                    for one in family.samples
                }
            )

    def total(self, *key: str) -> float:
        return sum(one.get(key, 0) for one in self.samples)


def commit(load: Load, offset: int) -> None:
    """Commit an offset of a group without members, at whichever server leads its coordinator."""
    client = load.cluster.client()
    partition = offset_commit.OffsetCommitRequestPartition(0, offset)
    topic_id = client.metadata.topic_id(TOPIC)
    topic = offset_commit.OffsetCommitRequestTopic(TOPIC, topic_id, [partition])
    request = offset_commit.OffsetCommitRequest("readers", topics=[topic])
    codes: list[int] = []

    def answered(response: object) -> None:
        assert not isinstance(response, Failure), response
        codes.append(response.topics[0].partitions[0].error_code)

    for server in (1, 2, 3):
        client.call(server, offset_commit, lambda _: request, answered)
    load.cluster.run_until(lambda: len(codes) == 3, 5_000 * MS)
    assert codes.count(0) == 1, codes


@pytest.fixture(scope="module")
def load():
    load = Load(LOAD)
    load.run()
    commit(load, COMMITTED)
    return load


@pytest.fixture(scope="module")
def pages(load):
    """Yield pages that were made twice: what is measured off the loop is in the second."""
    pages = Pages(load)
    pages.make()
    load.cluster.run_for(1_000 * MS)
    pages.make()
    return pages


def test_topic_has_the_records_of_its_producers_and_consumers(pages):
    """Only the leader counts, and each record once for each consumer."""
    label = f"topic={TOPIC}"
    assert pages.total("vdl_topic_records_in_total", label) == REQUESTS
    assert pages.total("vdl_topic_records_out_total", label) == REQUESTS
    assert pages.total("vdl_topic_bytes_in_total", label) > REQUESTS * 1_000
    assert pages.total("vdl_topic_bytes_out_total", label) == pages.total(
        "vdl_topic_bytes_in_total", label
    )
    assert pages.total("vdl_topic_records_in_total", "topic=other") == 0


def test_group_has_its_lag_in_records_and_in_seconds(load, pages):
    """One server reports it: the leader of the coordinator."""
    labels = ("group=readers", f"topic={TOPIC}")
    with_lag = [one for one in pages.samples if ("vdl_group_lag_records", *labels) in one]
    assert len(with_lag) == 1
    assert with_lag[0]["vdl_group_lag_records", *labels] == REQUESTS - COMMITTED
    written_ms = 1_750_000_000_000  # the timestamp of all records of the load
    (leader,) = [number for number, one in enumerate(pages.samples) if one is with_lag[0]]
    host = load.cluster.machines[leader].server.host
    late = with_lag[0]["vdl_group_lag_seconds", *labels]
    assert 0 < late <= (host.agreed_ms() - written_ms) / 1_000
    assert pages.total("vdl_group_lag_partitions_elsewhere") == 0


def test_each_request_is_in_each_phase_once(pages):
    for phase in ("queue", "work", "replication", "send", "total"):
        assert pages.total("vdl_request_seconds_count", "api=Produce", f"phase={phase}") == REQUESTS
    sums = {
        phase: pages.total("vdl_request_seconds_sum", "api=Produce", f"phase={phase}")
        for phase in ("queue", "work", "replication", "send", "total")
    }
    assert sums["total"] == pytest.approx(sum(sums.values()) / 2)
    # In the simulator a sync takes 0.3 ms, and work no time.
    assert sums["replication"] >= REQUESTS * 0.0003
    assert sums["replication"] > 0.9 * sums["total"]


def test_replication_is_measured_at_leaders(pages):
    count = pages.total("vdl_replication_seconds_count")
    assert 0 < count <= REQUESTS
    assert pages.total("vdl_replication_seconds_sum") >= count * 0.0003


def test_end_to_end_lag_is_the_age_of_what_is_given_out(pages):
    assert pages.total("vdl_end_to_end_lag_seconds_count") > 0
    assert pages.total("vdl_end_to_end_lag_seconds_sum") > 0


def test_journal_writes_are_in_the_histogram_one_by_one(pages):
    for one in pages.samples:
        assert one[("vdl_store_journal_write_seconds_count",)] > 0
        assert one[("vdl_store_journal_write_seconds_sum",)] == pytest.approx(
            one[("vdl_store_journal_write_ns_total",)] / 1e9
        )


def test_replicas_that_join_are_counted(pages):
    """Each led group begins with its leader alone, and two join."""
    led = pages.total("vdl_server_leading")
    assert led == pages.samples[0][("vdl_server_groups",)]
    assert pages.total("vdl_server_isr_expands_total") >= 2 * led
    assert pages.total("vdl_server_leaderless") == 0
    assert pages.total("vdl_server_under_replicated_partitions") == 0


def test_free_space_is_known_from_the_second_page_on(load):
    pages = Pages(load)
    pages.make()
    assert ("vdl_store_disk_free_bytes",) not in pages.samples[0]
    load.cluster.run_for(100 * MS)
    pages.make()
    for one in pages.samples:
        assert 0 < one[("vdl_store_disk_free_bytes",)] <= one[("vdl_store_disk_size_bytes",)]


def test_each_new_name_is_on_a_page_with_its_old_one(pages):
    names = {key[0] for one in pages.samples for key in one}
    for new, old in RENAMED.items():
        assert new in names
        assert old.name in names


def test_build_is_named(pages):
    assert all('vdl_build_info{python="3.' in text for text in pages.texts)


def test_each_metric_of_rules_and_dashboards_is_on_a_live_page(pages):
    """A name that no server has would make an alert that never fires."""
    names = {key[0] for one in pages.samples for key in one}
    missing = {name: place for name, place in metrics_used().items() if name not in names}
    assert not missing


def test_rules_and_dashboards_use_no_old_name():
    old = {one.name for one in RENAMED.values()} | REPLACED.keys()
    assert not old & metrics_used().keys()


@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
def test_names_and_units_are_as_prometheus_wants_them(pages):
    """Its linter objects to old names only."""
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=pages.texts[0], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    old = {one.name for one in RENAMED.values()} | REPLACED.keys()
    objections = [line for line in done.stderr.splitlines() if line.split(" ")[0] not in old]
    assert not objections
