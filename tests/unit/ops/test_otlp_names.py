"""Names of metrics for OpenTelemetry."""

import re

import pytest

from vdl.server.metrics import HELP
from vdl.server.otlp_names import otel_name
from vdl.server.renamed_metrics import RENAMED, REPLACED


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vdl_request_seconds", ("vdl.request.duration", "s")),
        ("vdl_kafka_requests_total", ("vdl.kafka.requests", "")),
        ("vdl_kafka_request_bytes_total", ("vdl.kafka.request.size", "By")),
        ("vdl_store_cache_bytes", ("vdl.store.cache.size", "By")),
        ("vdl_server_cold_read_bytes_per_second", ("vdl.server.cold_read.rate", "By/s")),
        ("vdl_server_room_used_ratio", ("vdl.server.room_used.utilization", "1")),
        ("vdl_topic_bytes_in_total", ("vdl.topic.bytes_in", "")),
        ("process_cpu_seconds_total", ("process.cpu.time", "s")),
    ],
)  # fmt: skip
def test_name_follows_the_conventions(name, expected):
    assert otel_name(name) == expected


def test_names_are_valid_and_each_has_one_metric():
    """Two metrics must not become one; names are those that the specification allows."""
    old = {row.name for row in RENAMED.values()} | REPLACED.keys()
    names = [otel_name(name)[0] for name in HELP if name not in old]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+", name), name
