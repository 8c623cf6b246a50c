"""Output of commands: tables for people, one JSON document for programs, progress, failures.

Tables go to standard output; progress goes to standard error, and only to a terminal. Colours are
off without a terminal and where NO_COLOR is set.

Exit codes: 0 done, 1 failed (one line says why), 2 wrong usage.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, TypeVar

import click

from vdl.commands.terminal_text import visible_json, visible_text

DONE, FAILED = 0, 1
_GAP = "  "
"""Gap between two columns of a plain table."""
_PROGRESS_AFTER_SECONDS = 1.0
"""Work that ends sooner shows no progress bar."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Failure(click.ClickException):
    """A failure with an exit code of its own."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code  # type: ignore[misc]  # click reads the instance's


class Steps(Protocol):
    """A bar that is shown while something takes long."""

    def advance(self, steps: float = 1) -> None:
        """Add to the steps that are done."""

    def total(self, steps: float | None) -> None:
        """Set the number of all steps; None if it is not known."""

    def label(self, text: str) -> None:
        """Change the text beside the bar."""


def json_option(function: _Function) -> _Function:
    """Add `--json`, passed as `as_json`."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="One JSON document for programs (docs/cli.md)."
    )
    return option(function)


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with a line on standard error. Raises Failure."""
    raise Failure(text, code)


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text that may come from a cluster, a record or a client. On a terminal, characters
    that control it are shown as escapes."""
    stream = sys.stderr if err else sys.stdout
    click.echo(visible_text(text) if stream.isatty() else text, err=err, nl=nl)


def emit(as_json: bool, data: Any, table_fn: Callable[[], object]) -> None:
    """Print `data` as one JSON document, or call `table_fn`, which prints for people."""
    if as_json:
        line = json.dumps(data, indent=2, ensure_ascii=False)
        # The same document, whatever reads it: no string of it controls a terminal.
        click.echo(visible_json(line.encode("utf-8", "backslashreplace")).decode())
    else:
        table_fn()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. A column whose name begins with ">" is aligned to the right; None is "-".

    With rich on a terminal; as plain aligned lines otherwise, which `awk` and `grep` can read.
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, [[visible_text(cell) for cell in row] for row in cells])
        return
    for line in plain_lines(columns, cells):
        click.echo(line)


def plain_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a plain table, its head first."""
    lines = [[name.removeprefix(">") for name in columns], *(list(row) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return [
        _GAP.join(
            cell.rjust(width) if name.startswith(">") else cell.ljust(width)
            for cell, name, width in zip(line, columns, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _rich_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Names of topics and values may hold what rich takes for markup, so cells are Text.
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        is_number = name.startswith(">")
        shown.add_column(
            Text(name.removeprefix(">")),
            justify="right" if is_number else "left",
            overflow="fold",
        )
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout).print(shown)


class _NoSteps:
    """No bar: standard error is no terminal."""

    def advance(self, steps: float = 1) -> None:
        pass

    def total(self, steps: float | None) -> None:
        pass

    def label(self, text: str) -> None:
        pass


@contextmanager
def progress(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Steps]:
    """Show a bar on standard error while the block takes longer than a second.

    Without `total` the bar only moves. `unit` is a word after the numbers, such as "records".
    """
    if not sys.stderr.isatty():
        yield _NoSteps()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}" + (f" {unit}" if unit else "")),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bars.add_task(label, total=total)

    class Shown:
        def advance(self, steps: float = 1) -> None:
            bars.advance(task, steps)

        def total(self, steps: float | None) -> None:
            bars.update(task, total=steps)

        def label(self, text: str) -> None:
            bars.update(task, description=text)

    timer = threading.Timer(_PROGRESS_AFTER_SECONDS, bars.start)
    timer.daemon = True
    timer.start()
    try:
        yield Shown()
    finally:
        timer.cancel()
        timer.join()
        bars.stop()
