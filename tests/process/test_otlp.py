"""Export to OpenTelemetry: real servers, the real SDK, and a receiver that decodes what it gets."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from vdl.testing import Cluster

WAIT_SECONDS_MAX = 90.0
SLOW_SECONDS = 0.3
ROOT = Path(__file__).resolve().parents[2]


class Receiver:
    """A receiver of OTLP over HTTP. `hangs`: it reads requests and does not answer."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.spans: list[ExportTraceServiceRequest] = []
        self.hangs = False
        self.reached = threading.Event()
        self._let_go = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.reached.set()
                if outer.hangs:
                    outer._let_go.wait()
                    return
                answer: Any = ExportTraceServiceResponse()
                if self.path == "/v1/metrics":
                    outer.metrics.append(ExportMetricsServiceRequest.FromString(body))
                    answer = ExportMetricsServiceResponse()
                else:
                    assert self.path == "/v1/traces", self.path
                    outer.spans.append(ExportTraceServiceRequest.FromString(body))
                encoded = answer.SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def exporting(url: str) -> Cluster:
    settings = {
        "otlp.endpoint": url,
        "otlp.interval": "1s",
        "http.listen": "127.0.0.1:0",
    }
    return Cluster(1, settings=settings)


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def produce(cluster: Cluster, topic: str, count: int, client_id: str = "writer") -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "client.id": client_id, "linger.ms": 0}
    producer = Producer({**settings, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, b"x")
        assert not producer.flush(60)


def page(cluster: Cluster) -> dict[str, float]:
    """Return the samples of `/metrics`."""
    config = tomllib.loads((cluster.directory / "1" / "vdl.toml").read_text())
    with urlopen(f"http://{config['http']['listen']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    rows = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def points(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    """Return the metrics of one export by name."""
    (resource,) = request.resource_metrics
    metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
    found = {metric.name: metric for metric in metrics}
    assert len(found) == len(metrics), "two metrics have one name"
    return found


def labels(point: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in point.attributes}


def test_metrics_and_spans_arrive(receiver: Receiver) -> None:
    """Each metric of a scrape arrives under its name of OpenTelemetry, with the same value; a slow
    request arrives as a server span with its stages as children."""
    with exporting(receiver.url) as cluster:
        topic = cluster.topic()
        produce(cluster, topic, 7)
        name = f'vdl_topic_records_in_total{{topic="{topic}"}}'
        eventually(lambda: page(cluster).get(name) == 7, "the scrape")

        def counted() -> Any:
            if not receiver.metrics:
                return None
            metric = points(receiver.metrics[-1]).get("vdl.topic.records_in")
            if metric is None:
                return None
            numbers = metric.sum.data_points
            return next((one for one in numbers if labels(one) == {"topic": topic}), None)

        point = eventually(
            lambda: (found := counted()) is not None and found.as_double == 7 and found,
            "the records of the topic",
        )
        assert 0 < point.start_time_unix_nano < point.time_unix_nano
        found = points(receiver.metrics[-1])
        assert found["vdl.topic.records_in"].sum.is_monotonic
        duration = found["vdl.request.duration"]
        assert duration.unit == "s"
        work = [
            one
            for one in duration.histogram.data_points
            if labels(one) == {"api": "Produce", "phase": "total"}
        ]
        assert [one.count for one in work] == [7]
        assert sum(work[0].bucket_counts) == 7
        assert len(work[0].bucket_counts) == len(work[0].explicit_bounds) + 1
        assert found["process.memory.usage"].gauge.data_points[0].as_double > 1e6
        resource = receiver.metrics[-1].resource_metrics[0].resource
        facts = labels(resource)
        assert facts["service.name"] == "vdl"
        assert facts["service.instance.id"] == "1"
        assert facts["vdl.cluster.id"]
        scraped = {key.partition("{")[0] for key in page(cluster)}
        assert len(found) >= 0.5 * len({one for one in scraped if not one.endswith("_bucket")})

        cluster.slow_disk(1, SLOW_SECONDS)
        produce(cluster, topic, 1, "slow\x1b[31m")
        cluster.slow_disk(1, 0)

        def slow() -> Any:
            for request in receiver.spans:
                for resource_spans in request.resource_spans:
                    for scope in resource_spans.scope_spans:
                        for span in scope.spans:
                            if labels(span).get("messaging.client.id") == "slow\x1b[31m":
                                return span, list(scope.spans)
            return None

        root, spans = eventually(slow, "the span")
        assert root.kind == root.SPAN_KIND_SERVER
        assert root.name == f"Produce {topic}-0"
        assert root.end_time_unix_nano - root.start_time_unix_nano >= SLOW_SECONDS * 1e9
        stages = {one.name: one for one in spans if one.parent_span_id == root.span_id}
        assert {"disk", "send"} <= stages.keys()
        disk = stages["disk"]
        assert disk.trace_id == root.trace_id
        assert disk.end_time_unix_nano - disk.start_time_unix_nano >= SLOW_SECONDS * 1e9 / 2
        assert labels(root)["messaging.destination.name"] == topic


def warnings(cluster: Cluster) -> list[str]:
    return [line for line in cluster.log(1).splitlines() if "otlp" in line or "telemetry" in line]


def test_receiver_that_hangs_stops_nothing(receiver: Receiver) -> None:
    """Records are acknowledged, scrapes are answered and pages are skipped while the receiver reads
    and says nothing. The server also ends."""
    receiver.hangs = True
    with exporting(receiver.url) as cluster:
        topic = cluster.topic()
        assert receiver.reached.wait(WAIT_SECONDS_MAX)
        produce(cluster, topic, 20)
        eventually(lambda: page(cluster)["vdl_otlp_pages_skipped_total"] >= 2, "skipped pages")
        produce(cluster, topic, 20)
        assert len(warnings(cluster)) <= 1
        cluster.stop(1)


def test_receiver_that_is_gone_is_logged_once(receiver: Receiver) -> None:
    """Refused connections make one event, with a count in the metrics."""
    url = receiver.url
    receiver.close()
    with exporting(url) as cluster:
        topic = cluster.topic()
        eventually(lambda: page(cluster)["vdl_otlp_failures_total"] >= 2, "failures")
        produce(cluster, topic, 20)
        found = warnings(cluster)
        assert len(found) == 1, found
        assert "otlp_export_failed" in found[0]
        assert "count=1" in found[0]


def test_server_without_the_extra_says_so(tmp_path: Path) -> None:
    """`vdl serve --check` names the key and what to install; without the key nothing is needed."""
    file = tmp_path / "vdl.toml"
    hidden = (
        "import sys; sys.modules['opentelemetry'] = None; sys.argv = sys.argv[1:]\n"
        "from vdl.cli import main; sys.exit(main())"
    )

    def check(text: str) -> subprocess.CompletedProcess[str]:
        file.write_text(text)
        command = [sys.executable, "-c", hidden, "vdl", "serve", "--check", "--config", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    refused = check('[otlp]\nendpoint = "http://127.0.0.1:4318"\n')
    assert refused.returncode == 2
    assert "otlp.endpoint" in refused.stderr
    assert "vdl-log[otlp]" in refused.stderr
    assert check('[otlp]\nendpoint = "off"\n').returncode == 0
