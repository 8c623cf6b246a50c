"""Output of a saved measurement: the table of the documentation, and plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import markdown

FIGURES = {
    "start_seconds": 2.0,
    "ack_at_200_p50_ms": 1.5,
    "ack_at_200_p99_ms": 8.0,
    "ack_at_200_p999_ms": 9.0,
    "produce_1000_bytes_mb_per_second": 130.0,
    "produce_1000_bytes_records_per_second": 130_000.0,
    "produce_1000_bytes_server_cpu_seconds_per_gb": 8.0,
    "tailing_50_worst_p99_ms": 40.0,
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a measurement beside a peer that is half as good, and has no cold start time."""
    peer = {name: value * (0.5 if "_mb_" in name else 2) for name, value in FIGURES.items()}
    cold = {name: value for name, value in FIGURES.items() if name != "start_seconds"}
    medians = {"vdl": FIGURES, "kafka": peer, "vdl_cold": cold, "kafka_cold": cold}
    found = {
        "measurement": "workloads",
        "baseline": "kafka",
        "verdicts": {"ack_at_200_p50_ms": "≤1.5 met", "ack_at_200_p99_ms": "≤8 met"},
        "medians": medians,
        "rounds": {name: [figures, figures] for name, figures in medians.items()},
    }
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def test_markdown_of_measurement_has_percentiles_in_one_line(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """p50 and p99 are combined, figures shown elsewhere are omitted, and no figure is lost."""
    assert markdown.main([str(kept)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| start, s | 2.00 | 4.00 | 0.500 | - | - |  |",
        "| ack at 200, p50 / p99, ms | 1.50 / 8.00 | 3.00 / 16.0 | 0.500 / 0.500 | 1.50 / 8.00 "
        "| 1.50 / 8.00 | ≤1.5 met; ≤8 met |",
        "| produce 1000 bytes, MB/s | 130 | 65.0 | 2.00 | 130 | 130 |  |",
        "| produce 1000 bytes, server CPU, s/GB | 8.00 | 16.0 | 0.500 | 8.00 | 8.00 |  |",
        "| tailing 50 worst p99, ms | 40.0 | 80.0 | 0.500 | 40.0 | 40.0 |  |",
    ]


def test_plots_of_measurement_are_drawn_alike_twice(kept: Path, tmp_path: Path) -> None:
    """Equal figures make equal files, so that a plot changes only with its data."""
    pytest.importorskip("matplotlib")
    from tests.bench import plots

    for folder in ("one", "two"):
        assert plots.main([str(kept), str(tmp_path / folder)]) == 0
    drawn = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert drawn == ["cpu.svg", "latency.svg", "ratios.svg", "throughput.svg"]
    for name in drawn:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
