"""The table of docs/lab/table.md, from the `--json` output of a measurement beside a peer:

    python -m tests.bench.markdown FILE.json

Medians; p50 and p99 of one row share a line, and other percentiles are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.rounds import COLD, Figures

PERCENTILES = ("_p50_ms", "_p99_ms")
LEFT_OUT = (
    "_p999_ms",
    "_client_cpu_seconds_per_second",
    # For records of 1,000 bytes: a thousand times the megabytes.
    "_1000_bytes_records_per_second",
    "_partitions_records_per_second",
    "_batches_records_per_second",
    "_zstd_records_per_second",
)
UNITS = {
    "_server_cpu_seconds_per_gb": ", server CPU, s/GB",
    "_server_cpu_seconds_per_second": ", server CPU, s/s",
    "_mb_per_second": ", MB/s",
    "_records_per_second": ", records/s",
    "_seconds": ", s",
    "_mb": ", MB",
    "_ms": ", ms",
}
"""Suffix of a figure's name, and its form in the table. Longer suffixes come first."""
DIGITS = 3


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    found = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    subject, peer = (name for name in found["medians"] if not name.endswith(COLD))
    columns = [found["medians"][f"{name}{end}"] for end in ("", COLD) for name in (subject, peer)]
    print(
        f"| | {subject} | {peer} | {subject} / {peer} | {subject} cold | {peer} cold | to reach |"
    )
    print("|---|---|---|---|---|---|---|")
    for label, figures in lines(columns[0]):
        warm, base, cold, base_cold = (_cell(column, figures) for column in columns)
        ratio = " / ".join(_number(columns[0][name] / columns[1][name]) for name in figures)
        verdicts = [found["verdicts"][name] for name in figures if name in found["verdicts"]]
        told = [label, warm, base, ratio, cold, base_cold, "; ".join(verdicts)]
        print(f"| {' | '.join(told)} |")
    return 0


def lines(figures: Figures) -> list[tuple[str, list[str]]]:
    """Return the label and figures of each line."""
    made: list[tuple[str, list[str]]] = []
    for name in figures:
        first, second = PERCENTILES
        if name.endswith(first):
            row = name.removesuffix(first)
            made.append((f"{_words(row)}, p50 / p99, ms", [name, f"{row}{second}"]))
        elif not name.endswith((second, *LEFT_OUT)) or name.endswith("worst_p99_ms"):
            end = next((end for end in UNITS if name.endswith(end)), "")
            label = f"{_words(name.removesuffix(end))}{UNITS.get(end, '')}"
            made.append((label, [name]))
    return made


def _words(name: str) -> str:
    return name.replace("rss", "memory a server").replace("_", " ")


def _cell(column: Figures, figures: Sequence[str]) -> str:
    return " / ".join(_number(column[name]) if name in column else "-" for name in figures)


def _number(value: float) -> str:
    """Format with three digits, or with all digits before the point."""
    if abs(value) >= 10 ** (DIGITS - 1):
        return f"{value:,.0f}"
    return f"{value:#.{DIGITS}g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
