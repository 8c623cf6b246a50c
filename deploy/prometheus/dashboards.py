"""Dashboards for Grafana, made from code: `python deploy/prometheus/dashboards.py`.

It writes `dashboards/*.json` beside itself; Grafana imports or provisions them. Panels are rows of
a table here, so that a change is one line, and so that a test can compare the expressions with the
metrics that servers have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
COLUMNS, WIDTH, HEIGHT = 2, 12, 8
"""Panels in a row; Grafana's grid has 24 columns."""
SOURCE = {"type": "prometheus", "uid": "${source}"}
JOB = '{job="$job"}'


@dataclass(frozen=True, slots=True)
class Line:
    """One expression, and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `unit`: Grafana's name, such as `s`, `bytes`, `Bps`, `short`."""

    title: str
    unit: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `uid` is also the name of its file."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def _phase(quantile: str, api: str) -> tuple[Line, ...]:
    name = f"job_api_phase:vdl_request_seconds:{quantile}"
    return (Line(f'{name}{{job="$job", api="{api}"}}', "{{phase}}"),)


DASHBOARDS = (
    Dashboard(
        "vdl-overview",
        "VDL: overview",
        (
            Panel("Servers", "short", (Line(f"up{JOB}", "{{instance}}"),)),
            Panel(
                "Problems",
                "short",
                (Line('vdl_server_problem{job="$job"} == 1', "{{instance}} {{kind}}"),),
            ),
            Panel(
                "Leaders",
                "short",
                (
                    Line(f"vdl_server_leading{JOB}", "{{instance}}"),
                    Line(f"vdl_server_leaderless{JOB}", "{{instance}} without a leader"),
                ),
            ),
            Panel(
                "Replicas not in sync",
                "short",
                (
                    Line(f"vdl_server_under_replicated_partitions{JOB}", "{{instance}}"),
                    Line(f"vdl_server_under_min_isr_partitions{JOB}", "{{instance}} too few"),
                ),
            ),
            Panel(
                "Elections and changes of in-sync replicas",
                "short",
                (
                    Line(
                        f"increase(vdl_server_leaderships_won_total{JOB}[5m])", "{{instance}} won"
                    ),
                    Line(f"increase(vdl_server_isr_shrinks_total{JOB}[5m])", "{{instance}} left"),
                    Line(f"increase(vdl_server_isr_expands_total{JOB}[5m])", "{{instance}} joined"),
                ),
            ),
            Panel(
                "Requests",
                "reqps",
                (Line(f"job_api:vdl_kafka_requests:rate5m{JOB}", "{{api}}"),),
            ),
            Panel(
                "CPU",
                "percentunit",
                (Line(f"rate(process_cpu_seconds_total{JOB}[5m])", "{{instance}}"),),
            ),
            Panel(
                "Memory",
                "bytes",
                (Line(f"process_resident_memory_bytes{JOB}", "{{instance}}"),),
            ),
            Panel(
                "Client connections",
                "short",
                (Line(f"vdl_server_client_connections{JOB}", "{{instance}}"),),
            ),
            Panel("Versions", "short", (Line(f"vdl_build_info{JOB}", "{{instance}} {{version}}"),)),
        ),
    ),
    Dashboard(
        "vdl-latency",
        "VDL: latency",
        (
            Panel("Produce, 99 %, by phase", "s", _phase("p99", "Produce")),
            Panel("Produce, median, by phase", "s", _phase("p50", "Produce")),
            Panel("Fetch, 99 %, by phase", "s", _phase("p99", "Fetch")),
            Panel(
                "All APIs, 99 %, work",
                "s",
                (
                    Line(
                        'job_api_phase:vdl_request_seconds:p99{job="$job", phase="work"}',
                        "{{api}}",
                    ),
                ),
            ),
            Panel(
                "Replication, 99 %", "s", (Line(f"job:vdl_replication_seconds:p99{JOB}", "all"),)
            ),
            Panel(
                "End to end lag, 99 %",
                "s",
                (Line(f"job:vdl_end_to_end_lag_seconds:p99{JOB}", "all"),),
            ),
            Panel(
                "Round trips between servers",
                "s",
                (Line(f"vdl_peer_round_trip_seconds{JOB}", "{{instance}} to {{server}}"),),
            ),
            Panel(
                "Loop late",
                "percentunit",
                (Line(f"rate(vdl_server_loop_late_seconds_total{JOB}[5m])", "{{instance}}"),),
            ),
        ),
    ),
    Dashboard(
        "vdl-topics",
        "VDL: topics and consumer groups",
        (
            Panel(
                "In, by topic",
                "Bps",
                (Line(f"job_topic:vdl_topic_bytes_in:rate5m{JOB}", "{{topic}}"),),
            ),
            Panel(
                "Out, by topic",
                "Bps",
                (Line(f"job_topic:vdl_topic_bytes_out:rate5m{JOB}", "{{topic}}"),),
            ),
            Panel(
                "Records in, by topic",
                "short",
                (Line(f"job_topic:vdl_topic_records_in:rate5m{JOB}", "{{topic}}"),),
            ),
            Panel(
                "Lag in records",
                "short",
                (Line(f"job_group_topic:vdl_group_lag_records:max{JOB}", "{{group}} {{topic}}"),),
            ),
            Panel(
                "Lag in seconds",
                "s",
                (Line(f"job_group_topic:vdl_group_lag_seconds:max{JOB}", "{{group}} {{topic}}"),),
            ),
            Panel(
                "Lag that is not shown",
                "short",
                (
                    Line(f"vdl_group_lag_rows_left_out{JOB}", "{{instance}} rows"),
                    Line(f"vdl_group_lag_partitions_elsewhere{JOB}", "{{instance}} partitions"),
                ),
            ),
        ),
    ),
    Dashboard(
        "vdl-storage",
        "VDL: storage",
        (
            Panel("Free disk", "bytes", (Line(f"vdl_store_disk_free_bytes{JOB}", "{{instance}}"),)),
            Panel(
                "Journal writes, 99 %",
                "s",
                (Line(f"instance:vdl_store_journal_write_seconds:p99{JOB}", "{{instance}}"),),
            ),
            Panel(
                "Journal",
                "Bps",
                (Line(f"rate(vdl_store_journal_bytes_total{JOB}[5m])", "{{instance}}"),),
            ),
            Panel(
                "Reads that missed the cache",
                "ops",
                (Line(f"rate(vdl_store_cache_misses_total{JOB}[5m])", "{{instance}}"),),
            ),
            Panel(
                "Not in a segment yet",
                "bytes",
                (Line(f"vdl_store_unflushed_bytes{JOB}", "{{instance}}"),),
            ),
            Panel(
                "Damage",
                "short",
                (
                    Line(f"vdl_store_damaged_ranges{JOB}", "{{instance}} ranges"),
                    Line(f"vdl_store_logs_lost{JOB}", "{{instance}} replicas lost"),
                ),
            ),
        ),
    ),
)


def rendered() -> Iterator[tuple[Path, str]]:
    """Yield each file and its text."""
    for dashboard in DASHBOARDS:
        text = json.dumps(_dashboard(dashboard), indent=2, ensure_ascii=False) + "\n"
        yield FOLDER / f"{dashboard.uid}.json", text


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["vdl"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "job",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": "label_values(vdl_build_info, job)",
                    "refresh": 1,
                },
            ]
        },
        "panels": [_panel(place, panel) for place, panel in enumerate(dashboard.panels)],
    }


def _panel(place: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(place, COLUMNS)
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": line.expr, "legendFormat": line.legend}
            for n, line in enumerate(panel.lines)
        ],
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path, text in rendered():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
