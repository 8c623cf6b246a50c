"""`vdl check`: search a recorded history of client operations for anomalies."""

from __future__ import annotations

from pathlib import Path

import click

from vdl.check.report import main as report


@click.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(*, history: Path) -> int:
    """Check HISTORY (JSON lines, one operation each).

    Exit code 0 if it is clean, 1 if anomalies were found, 2 if it has no operations.
    """
    return report(str(history))
