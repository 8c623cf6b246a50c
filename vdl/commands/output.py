"""Output of commands: tables for people, one JSON document for programs, progress, failures.

Tables go to standard output; progress goes to standard error, and only to a terminal. Colours are
off without a terminal and where NO_COLOR is set.

Exit codes: 0 done, 1 failed (one line says why), 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import click

from vdl.commands.terminal_text import visible_json, visible_line, visible_text

if TYPE_CHECKING:
    from rich.progress import Progress

DONE, FAILED = 0, 1
_GAP = "  "
"""Gap between two columns of a plain table."""
_TEXT_WIDTH_MIN = 12
"""Characters of a text beside each other on a narrow terminal."""
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
    """Print text that may come from a cluster, a record or a client. Characters that control a
    terminal are shown as escapes, also in a pipe: it may end in a pager."""
    click.echo(visible_text(text), err=err, nl=nl)


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

    With rich on a terminal; as plain aligned lines otherwise, which `awk` and `grep` can read, and
    on a terminal that is too narrow. A row is a line, whatever its cells hold.
    """
    cells = [["-" if cell is None else visible_line(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty() and _rich_table(columns, cells):
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


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Print a table as wide as the terminal. Return False if numbers would have to be cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    head = "" if os.environ.get("NO_COLOR") else "bold"
    # Names of topics and values may hold what rich takes for markup, so cells are Text.
    shown = Table(box=None, pad_edge=False, header_style=head)
    for place, name in enumerate(columns):
        is_number = name.startswith(">")
        shown.add_column(
            Text(name.removeprefix(">")),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
            min_width=_least_width(name, [row[place] for row in rows]),
        )
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    console = Console(file=sys.stdout)
    least = sum(column.min_width or 0 for column in shown.columns)
    if least + len(_GAP) * (len(columns) - 1) > console.width:
        return False
    console.print(shown)
    return True


def _least_width(name: str, cells: Sequence[str]) -> int:
    """Return the width below which a column is not readable: numbers are not cut, texts are."""
    widths = [len(word) for word in name.removeprefix(">").split()]
    longest = max(map(len, cells), default=0)
    widths.append(longest if name.startswith(">") else min(longest, _TEXT_WIDTH_MIN))
    return max(widths)


class _NoSteps:
    """No bar: standard error is no terminal."""

    def advance(self, steps: float = 1) -> None:
        pass

    def total(self, steps: float | None) -> None:
        pass

    def label(self, text: str) -> None:
        pass


class _Bars:
    """A bar of rich, which is loaded only once the bar is shown: most commands end before."""

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._done = 0.0
        self._lock = threading.Lock()
        self._shown: Progress | None = None

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        numbers = "{task.completed:,.0f}" + (f" {self._unit}" if self._unit else "")
        bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *([TextColumn(numbers)] if self._unit or self._total else []),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        with self._lock:
            bars.add_task(self._label, total=self._total, completed=self._done)  # type: ignore[arg-type]  # rich takes parts of a step
            self._shown = bars
        bars.start()

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()

    def advance(self, steps: float = 1) -> None:
        with self._lock:
            self._done += steps
            self._show()

    def total(self, steps: float | None) -> None:
        with self._lock:
            self._total = steps
            self._show()

    def label(self, text: str) -> None:
        with self._lock:
            self._label = text
            self._show()

    def _show(self) -> None:
        if self._shown is not None:
            self._shown.update(
                self._shown.task_ids[0],
                description=visible_line(self._label), total=self._total, completed=self._done,
            )  # fmt: skip


@contextmanager
def progress(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Steps]:
    """Show a bar on standard error while the block takes longer than a second.

    Without `total` the bar only moves. `unit` is a word after the numbers, such as "records".
    """
    if not sys.stderr.isatty():
        yield _NoSteps()
        return
    bars = _Bars(label, total, unit)
    timer = threading.Timer(_PROGRESS_AFTER_SECONDS, bars.start)
    timer.daemon = True
    timer.start()
    try:
        yield bars
    finally:
        timer.cancel()
        timer.join()
        bars.stop()
