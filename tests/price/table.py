"""The table of prices, `docs/request-costs.md`: `run.py` writes its rows, tests read them.

Does not depend on how a price is found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vdl.kafka.api import API

TABLE = Path(__file__).parents[2] / "docs" / "request-costs.md"
TURN_MS_MAX = 50.0
"""Limit of the time for which one request may hold the loop."""
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Row:
    api: str
    who: str
    version: int
    turn_ms: float
    loop_ms: float
    threads_ms: float
    size: int
    held: float
    answer: int
    log: int
    elements: int
    request: str

    @classmethod
    def of(cls, text: str) -> Row:
        """Return the row for a worker's output, a JSON object."""
        price: dict[str, Any] = json.loads(text)
        is_tiny = price["asked_bytes"] < _KIB
        return cls(
            API[price["key"]].name, price["who"], price["version"], round(price["turn_ms"], 1),
            round(price["loop_ms"]), round(price["threads_ms"]), price["asked_bytes"] // _KIB,
            0.0 if is_tiny else round(price["held_per_byte"], 1), price["answered_bytes"] // _KIB,
            price["replicated_bytes"] // _KIB, price["elements"], price["wish"],
        )  # fmt: skip

    @property
    def line(self) -> str:
        """Row in the form of the table."""
        return (
            f"| {self.api} | {self.who} | {self.version} | {self.turn_ms} | {self.loop_ms:.0f} |"
            f" {self.threads_ms:.0f} | {self.size} | {self.held} | {self.answer} | {self.log} |"
            f" {self.elements} | {self.request} |"
        )


def read(path: Path) -> list[Row]:
    """Read the rows of a file."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(Row.__slots__) and cells[2].isdigit():
            api, who, version, turn, loop, threads, size, held, *counts, request = cells
            rows.append(
                Row(api, who, int(version), float(turn), float(loop), float(threads),
                    int(size), float(held), *map(int, counts), request)
            )  # fmt: skip
    return rows


def write(path: Path, rows: list[Row]) -> None:
    """Replace the rows below the existing text and head."""
    head, rule, _ = path.read_text(encoding="utf-8").partition("|---|\n")
    path.write_text(head + rule + "".join(f"{row.line}\n" for row in rows), encoding="utf-8")
