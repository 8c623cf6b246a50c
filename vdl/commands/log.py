"""`vdl log`: data directories, offline: their contents, their integrity, differences of copies.

No server may use them: each is locked while it is read. Only `index` writes. `segments.tool` reads
the formats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from segments.api import CorruptRecord, DirectoryInUse
from segments.io.fs import RealFileSystem
from segments.tool import INDEX_ENTRIES, Difference, Directory, LogReport, rebuild_index
from segments.tool import dump as dump_directory
from segments.tool import verify as verify_directories

_directories = click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
_index_entries = click.option(
    "--index-entries", default=INDEX_ENTRIES, show_default=True, metavar="N",
    help="Value of storage.index_segment_entries of the servers.",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def log() -> None:
    """Inspect data directories while no server uses them."""


@log.command()
@_directories
@_index_entries
@_json
def dump(*, directories: Sequence[Path], index_entries: int, as_json: bool) -> int:
    """List the logs of each DIR, as recorded by identity, journal and segments."""
    with _open(directories, index_entries) as opened:
        reports = [report for directory in opened for report in dump_directory(directory)]
    _print(reports, [], as_json=as_json)
    return int(any(report.problems for report in reports))


@log.command()
@_directories
@_index_entries
@_json
def verify(*, directories: Sequence[Path], index_entries: int, as_json: bool) -> int:
    """Read all data in use, check every CRC, and compare the copies in several DIRs.

    Exit code 1 if there is a problem. For each group whose copies differ, the output has the first
    different offset, the copies with a wrong CRC, and the copies with the most committed entries.
    Keep those: entries that exist only there may have been acknowledged.
    """
    with _open(directories, index_entries) as opened:
        reports, differences = verify_directories(opened)
    _print(reports, differences, as_json=as_json)
    return int(bool(differences) or any(report.problems for report in reports))


@log.command()
@_directories
@_index_entries
@_json
def index(*, directories: Sequence[Path], index_entries: int, as_json: bool) -> int:
    """Write all index segments of each DIR again, from its log segments."""
    counts: dict[str, int] = {}
    with _open(directories, index_entries) as opened:
        for directory in opened:
            try:
                counts[directory.path] = rebuild_index(directory)
            except CorruptRecord as error:
                raise click.ClickException(f"{directory.path}: {error}") from error
    if as_json:
        click.echo(json.dumps({"segments": counts}, indent=2))
    for path, count in counts.items() if not as_json else ():
        click.echo(f"{path}: indexes of {count} log segments written")
    return 0


@contextlib.contextmanager
def _open(paths: Sequence[Path], index_entries: int) -> Iterator[list[Directory]]:
    with contextlib.ExitStack() as stack:
        opened: list[Directory] = []
        for path in paths:
            try:
                directory = Directory(RealFileSystem(), str(path), index_entries)
            except DirectoryInUse as error:
                raise click.ClickException(
                    f"{path} is in use by a running server; stop the server first"
                ) from error
            except FileNotFoundError as error:
                raise click.ClickException(f"{path} is not a data directory") from error
            except CorruptRecord as error:
                raise click.ClickException(f"{path}: {error}") from error
            opened.append(stack.enter_context(directory))
        yield opened


def _print(
    reports: Sequence[LogReport], differences: Sequence[Difference], *, as_json: bool
) -> None:
    if as_json:
        found = {
            "logs": [dataclasses.asdict(report) for report in reports],
            "differences": [dataclasses.asdict(difference) for difference in differences],
        }
        click.echo(json.dumps(found, indent=2))
        return
    for report in reports:
        click.echo(
            f"{report.directory}: log {report.log_id} of group {report.group_id}, replica "
            f"{report.replica_number}: entries {report.first_index} to {report.last_index}, "
            f"committed {report.commit}, in {report.segments} segments to {report.flushed_index}, "
            f"term {report.term}{', LOST' if report.lost else ''}"
        )
        for problem in report.problems:
            click.echo(f"  {problem}")
    for difference in differences:
        wrong = ", ".join(difference.wrong) or "unknown"
        click.echo(
            f"group {difference.group_id}: copies differ from offset {difference.offset} "
            f"(entry {difference.index}); wrong: {wrong}; most committed entries (to entry "
            f"{difference.longest_index}), keep: {', '.join(difference.longest)}"
        )
    bad = sum(bool(report.problems) for report in reports)
    click.echo(f"{len(reports)} logs, {bad} with problems, {len(differences)} groups that differ")
