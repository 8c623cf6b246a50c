"""`vdl test-server`: a cluster for tests in any language, controlled over standard input."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TextIO

import click


class _ForPeople(io.StringIO):
    """Shows the first answer in words, and the others as they are."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._is_ready = False

    def write(self, text: str) -> int:
        """Show one answer."""
        import json

        answer = json.loads(text)
        if self._is_ready or not answer["ok"]:
            self._out.write(text)
        else:
            count = len(answer["servers"])
            self._out.write(
                f"{count} servers, ready after {answer['seconds']} s; the end of the input stops"
                f" them\nbootstrap.servers={answer['bootstrap']}\n"
                f"control={answer['control']['url']} token={answer['control']['token']}\n"
            )
        self._is_ready = True
        return len(text)

    def flush(self) -> None:
        """Flush what is shown."""
        self._out.flush()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the first line as JSON, too.")
@click.option("--nodes", default=3, show_default=True, help="Number of servers.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Setting of the servers, as in a configuration file; may be repeated.",
)  # fmt: skip
@click.option(
    "--directory", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where its data lies; by default in memory.",
)  # fmt: skip
def test_server(
    *, as_json: bool, nodes: int, settings: tuple[str, ...], directory: Path | None
) -> None:
    """Run servers for tests until standard input ends.

    Reads commands such as `kill 1` or `partition 1 2` from standard input, one a line, and answers
    each with a line of JSON. The control port takes the same: `POST /kill?server=1`, with the token
    of the first line. docs/testing.md has the list.
    """
    from vdl.testing.command_loop import run
    from vdl.testing.errors import ClusterError
    from vdl.testing.settings import parse_settings

    try:
        parsed = parse_settings(settings)
    except ClusterError as error:
        raise click.UsageError(str(error)) from None
    answers = sys.stdout if as_json else _ForPeople(sys.stdout)
    code = run(nodes, parsed, directory, sys.stdin.fileno(), answers, has_port=True)
    raise click.exceptions.Exit(code)
