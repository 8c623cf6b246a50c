"""Pictures of a measurement beside a peer, from its `--json` output:

    python -m tests.bench.plots FILE.json FOLDER

From `workloads`: ratios.svg, throughput.svg, cpu.svg and latency.svg; from `sarama`: sarama.svg.
Bars are medians over the rounds, the thin lines on them the least and the most of any round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Without `pyplot`, which looks for a display.
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

SUBJECT = "vdl"
COLOURS = ("#1f6f8b", "#d98e3f")
"""Colours of the subject and the peer."""
WORSE_COLOUR = "#b0413e"
BAR_HEIGHT = 0.38
INCHES_WIDE = 8.0
INCHES_A_ROW = 0.42
INCHES_AROUND = 1.2
THROUGHPUT, CPU = "_mb_per_second", "_server_cpu_seconds_per_gb"
LATENCIES = ("_p50_ms", "_p99_ms")
LATENCY_ROWS = ("ack_", "end_to_end_", "sync_producer_", "tailing_")


@dataclass(frozen=True, slots=True)
class Measured:
    """Contents of a file: by column, every round's figures and their medians."""

    measurement: str
    peer: str
    medians: dict[str, dict[str, float]]
    rounds: dict[str, list[dict[str, float]]]

    @staticmethod
    def read(path: Path) -> Measured:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not found.get("baseline"):
            raise SystemExit(f"{path}: not measured beside a peer")
        return Measured(found["measurement"], found["baseline"], found["medians"], found["rounds"])

    @property
    def columns(self) -> tuple[str, str]:
        return SUBJECT, self.peer

    def figures(self, *ends: str) -> list[str]:
        """Return the figures with one of these suffixes that both sides have, in table order."""
        both = self.medians[self.peer].keys() & self.medians[SUBJECT].keys()
        return [name for name in self.medians[SUBJECT] if name in both and name.endswith(ends)]

    def ratio(self, figure: str) -> float:
        return self.medians[SUBJECT][figure] / self.medians[self.peer][figure]

    def extremes(self, column: str, figure: str) -> tuple[float, float]:
        """Return the distances of the least and the most of all rounds from the median."""
        median = self.medians[column][figure]
        values = [figures[figure] for figures in self.rounds[column]]
        return median - min(values), max(values) - median


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    measured, folder = Measured.read(Path(arguments[0])), Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWN[measured.measurement].items():
        figure = draw(measured)
        # Without a date and random names, so that the same figures make the same file.
        with rc_context({"svg.hashsalt": name}):
            figure.savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    return 0


def _ratios(measured: Measured) -> Figure:
    """Draw how many times better each figure is: more throughput, less of everything else."""
    rows: dict[str, float] = {}
    for figure in measured.figures(THROUGHPUT, CPU, *LATENCIES, "start_seconds", "_mb"):
        ratio = measured.ratio(figure)
        rows[_words(figure)] = ratio if figure.endswith(THROUGHPUT) else 1 / ratio
    figure, axes = _axes(len(rows))
    colours = [COLOURS[0] if ratio >= 1 else WORSE_COLOUR for ratio in rows.values()]
    axes.barh(list(rows), [ratio - 1 for ratio in rows.values()], left=1, color=colours)
    axes.axvline(1, color="black", linewidth=0.8)
    _logarithmic(axes)
    axes.set_xlabel(f"times as good as {measured.peer} (more MB/s; less time, CPU, memory)")
    return figure


def _bars(*ends: str, unit: str, is_log: bool = False) -> Callable[[Measured], Figure]:
    """Return a function that draws both sides of every figure with one of these suffixes."""

    def draw(measured: Measured) -> Figure:
        names = measured.figures(*ends)
        if ends == LATENCIES:
            names = [name for name in names if name.startswith(LATENCY_ROWS)]
        figure, axes = _axes(2 * len(names))
        for place, column in enumerate(measured.columns):
            offset = (place - 0.5) * BAR_HEIGHT
            errors = [measured.extremes(column, name) for name in names]
            axes.barh(
                [row + offset for row in range(len(names))],
                [measured.medians[column][name] for name in names],
                height=BAR_HEIGHT,
                xerr=list(zip(*errors, strict=True)),
                error_kw={"linewidth": 0.8},
                color=COLOURS[place],
                label=column,
            )
        axes.set_yticks(range(len(names)), [_words(name) for name in names])
        if is_log:
            _logarithmic(axes)
        axes.set_xlabel(unit)
        axes.legend(frameon=False)
        return figure

    return draw


def _axes(bars: int) -> tuple[Figure, Any]:
    """Return a figure and its axes for horizontal bars, the first on top."""
    figure = Figure(figsize=(INCHES_WIDE, INCHES_AROUND + bars * INCHES_A_ROW * BAR_HEIGHT))
    axes = figure.subplots()
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", linewidth=0.4)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0, labelsize=8)
    return figure, axes


def _logarithmic(axes: Any) -> None:
    axes.set_xscale("log")
    # Plain numbers, also between powers of ten.
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    )


def _words(figure: str) -> str:
    """Return a figure's name as readable words, without its unit."""
    for end in (THROUGHPUT, "_ms", "_seconds", "_mb"):
        figure = figure.removesuffix(end)
    return figure.replace(CPU, " CPU").replace("rss", "memory").replace("_", " ")


DRAWN: dict[str, dict[str, Callable[[Measured], Figure]]] = {
    "workloads": {
        "ratios": _ratios,
        "throughput": _bars(THROUGHPUT, unit="MB/s"),
        "cpu": _bars(CPU, unit="CPU-s of all servers per GB", is_log=True),
        "latency": _bars(*LATENCIES, unit="ms", is_log=True),
    },
    "sarama": {"sarama": _bars(THROUGHPUT, unit="MB/s", is_log=True)},
}
"""Measurement → its pictures."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
