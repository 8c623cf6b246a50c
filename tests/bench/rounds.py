"""Compared runs: alternating rounds, their medians, and ratios to one of them.

A shared machine drifts by a quarter within minutes. So each round has every run once, in the
reverse order of the round before. Reported are the medians over the rounds, their ratios to the
baseline, and whether they reach their targets.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.bench.targets import Targets, verdict

Figures = dict[str, float]
"""Figures of one run; every name ends with its unit."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Figures of a run with two passes: on servers just started, then once more."""

    cold: Figures
    warm: Figures


Run = Callable[[], Figures | Passes]

COLD = "_cold"
"""Suffix of the column with a run's first pass, which is reported and not compared."""

PERCENTILES = (("p50", 499), ("p99", 989), ("p999", 998))
"""Name, and index among the 999 cuts."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs by the name of their column.

    `baseline` is the column the others are divided by; with a single run there is none.
    """

    runs: Mapping[str, Run]
    baseline: str = ""
    targets: Targets = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """Settings of machine, client and systems; runs add those that a running server reports."""


_NAME_WIDTH = 52

Rounds = dict[str, list[Figures]]
"""Column → figures of each round."""


def alternate(
    comparison: Comparison,
    count: int,
    before_each: Callable[[], None] = lambda: None,
) -> Rounds:
    """Run everything `count` times, `before_each` first. Progress goes to stderr."""
    found: Rounds = {name: [] for name in comparison.runs}
    for number in range(count):
        names = list(comparison.runs)
        for name in names if number % 2 == 0 else reversed(names):
            print(f"round {number + 1} of {count}: {name}", file=sys.stderr, flush=True)
            before_each()
            measured = comparison.runs[name]()
            if isinstance(measured, Passes):
                found.setdefault(f"{name}{COLD}", []).append(measured.cold)
                measured = measured.warm
            found[name].append(measured)
    return found


def medians(rounds: Rounds) -> dict[str, Figures]:
    """Return column → each figure's median over the rounds."""
    return {name: _fold(figures, statistics.median) for name, figures in rounds.items()}


def _fold(rounds: Sequence[Figures], fold: Callable[[list[float]], float]) -> Figures:
    return {name: fold([figures[name] for figures in rounds]) for name in rounds[0]}


def table(rounds: Rounds, baseline: str, targets: Targets | None = None) -> list[str]:
    """Return the table's lines: a figure a line, a column a run, ratios and targets.

    A single run also has its extremes, if there was more than one round.
    """
    columns = medians(rounds)
    if len(columns) == 1:
        (only,) = rounds.values()
        if len(only) > 1:
            columns |= {"least": _fold(only, min), "most": _fold(only, max)}
        baseline = ""
    others = [name for name in columns if baseline and is_compared(name, baseline)]
    width = max(14, *(len(f"{name}/{baseline}") + 2 for name in columns))
    heads = [*columns, *(f"{name}/{baseline}" for name in others)]
    lines = [f"{'':<{_NAME_WIDTH}}" + "".join(f"{head:>{width}}" for head in heads)]
    verdicts = judged(columns, baseline, targets or {})
    for figure in dict.fromkeys(name for figures in columns.values() for name in figures):
        values = {name: figures.get(figure) for name, figures in columns.items()}
        ratios = [_ratio(values[name], values.get(baseline)) for name in others]
        cells = "".join(f"{_cell(value):>{width}}" for value in [*values.values(), *ratios])
        lines.append(f"{figure:<{_NAME_WIDTH}}{cells}  {verdicts.get(figure, '')}".rstrip())
    return lines


def is_compared(name: str, baseline: str) -> bool:
    """Return True if a column is compared with the baseline."""
    return name != baseline and not name.endswith(COLD)


def judged(columns: Mapping[str, Figures], baseline: str, targets: Targets) -> dict[str, str]:
    """Return figure → verdict of the first compared column against its targets."""
    subject = next((name for name in columns if is_compared(name, baseline)), baseline)
    bases = columns.get(baseline, {})
    return {
        figure: verdict(wanted, columns[subject].get(figure), bases.get(figure))
        for figure, wanted in targets.items()
        if figure in columns[subject]
    }


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def percentiles(name: str, taken_ms: Sequence[float]) -> Figures:
    """Return `<name>_p50_ms` and so on, without a name `p50_ms`, of at least two times."""
    cuts = statistics.quantiles(taken_ms, n=1_000, method="inclusive")
    prefix = f"{name}_" if name else ""
    return {f"{prefix}{percentile}_ms": cuts[at] for percentile, at in PERCENTILES}
