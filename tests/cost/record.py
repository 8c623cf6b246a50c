"""Recorded figures, and the comparison of new ones with them.

`figures.toml` has them by version of Python, workload and figure. Versions differ in their calls
(3.12 runs comprehensions in place), so a version is compared only with its own figures.

A figure that rose by more than `TOLERANCE` is a fault. So is one that fell by more: an unrecorded
gain could be lost again unnoticed. Recording is one command in both cases; a rise is recorded in a
commit that states its benefit.

Does not depend on how anything is counted.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FIGURES_FILE = Path(__file__).parent / "figures.toml"
TOLERANCE = 0.05
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

Figures = dict[str, float]
"""By name, per unit of the workload."""

_HEAD = """\
# What each workload costs, per MB or record, three servers together: `make cost RECORD=1` writes
# this file, for the version of Python it runs under. A change by more than 5 % fails tests/cost.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """A figure that differs from the recorded one."""

    workload: str
    unit: str
    figure: str
    meaning: str
    recorded: float
    counted: float

    @property
    def rise(self) -> float:
        """Return the rise relative to the recorded value; negative for a fall."""
        if not self.recorded:
            return float("inf") if self.counted else 0.0
        return self.counted / self.recorded - 1.0

    @property
    def is_fault(self) -> bool:
        # The last recorded digit must not decide.
        return abs(self.rise) > TOLERANCE + 1e-9

    def __str__(self) -> str:
        verb = "rose" if self.rise > 0 else "fell"
        what = (
            f"{self.workload}: {self.figure} {verb} by {abs(self.rise):.1%} (allowed:"
            f" {TOLERANCE:.0%}), from {self.recorded:,.10g} to {self.counted:,.10g}"
            f" per {self.unit}. These are {self.meaning}, on three servers."
        )
        if self.rise > 0:
            return (
                f"{what} `make cost ONLY={self.workload} TOP=40` shows where they are. Take it"
                " back, or record it by `make cost RECORD=1` and say in the commit what it buys."
            )
        return f"{what} Record the gain by `make cost RECORD=1`, or it may be lost again unseen."


def changes(
    workload: str, unit: str, recorded: Figures, counted: Figures, meanings: Mapping[str, str]
) -> list[Change]:
    """Return the changes of all figures, in the order of counting.

    An unrecorded one counts as zero.
    """
    return [
        Change(workload, unit, name, meanings[name], recorded.get(name, 0.0), value)
        for name, value in counted.items()
    ]


def recorded(file: Path = FIGURES_FILE, version: str = VERSION) -> dict[str, Figures]:
    """Return figures by workload; empty for a version of Python without records."""
    return _load(file).get(version, {})


def record(
    counted: Mapping[str, Figures],
    known: Iterable[str],
    file: Path = FIGURES_FILE,
    version: str = VERSION,
) -> None:
    """Write the new counts.

    Other versions, and `known` workloads that were not counted, stay unchanged.
    """
    versions = _load(file)
    here = {**versions.get(version, {}), **counted}
    versions[version] = {name: here[name] for name in known if name in here}
    lines = [_HEAD]
    for number in sorted(versions, key=lambda text: tuple(map(int, text.split(".")))):
        for name, figures in versions[number].items():
            lines.append(f'\n["{number}".{name}]\n')
            lines += [f"{figure} = {value}\n" for figure, value in figures.items()]
    file.write_text("".join(lines), encoding="utf-8")


def _load(file: Path) -> dict[str, dict[str, Figures]]:
    if not file.exists():
        return {}
    with file.open("rb") as opened:
        versions: dict[str, dict[str, Figures]] = tomllib.load(opened)
    return versions
