"""Each command of docs/tasks.md runs against real servers, in the order of the page."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from tests.clients.command_process import Commands, Done

PAGE = ROOT / "docs" / "tasks.md"
TASKS = 10
"""Rows of each table."""
VERDICTS = ("vdl status", "vdl doctor")
MAKERS = {"seq", "printf", "echo"}
"""Programs that give a command its input."""


def tables() -> dict[str, list[str]]:
    """Return the commands of each table, by its heading."""
    found: dict[str, list[str]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        rows = [line for line in text.splitlines() if line.startswith("|")][2:]
        cells = [re.split(r"(?<!\\)\|", row)[-2].strip() for row in rows]
        assert all(cell[0] == cell[-1] == "`" for cell in cells), heading
        found[heading] = [cell.strip("`").replace("\\|", "|") for cell in cells]
    return found


def run(commands: Commands, line: str, **variables: str) -> Done:
    """Run a line such as `seq 3 | vdl produce orders` without a shell."""
    *makers, last = [shlex.split(part) for part in line.split(" | ")]
    data = b""
    for words in makers:
        assert words[0] in MAKERS, line
        data = subprocess.run(words, input=data, capture_output=True, check=True).stdout
    assert last[0] == "vdl", line
    return commands.run(*last[1:], data=data, **variables)


@pytest.fixture(scope="module")
def commands(bootstrap: str, servers: ReplicaSet | None) -> Iterator[Commands]:
    if servers is None:
        pytest.skip("needs its own servers")
    with Commands(bootstrap) as found:
        yield found
        found.run("topic", "delete", "orders", "events", "--yes")


def test_page_has_ten_tasks_of_each_tool() -> None:
    assert [len(lines) for lines in tables().values()] == [TASKS] * 4


def test_commands_of_the_page_do_what_it_says(commands: Commands, tmp_path: Path) -> None:
    """All succeed, and those that read print the records that the others have written."""
    outputs = {}
    for line in (line for lines in tables().values() for line in lines):
        done = run(commands, line, XDG_CONFIG_HOME=str(tmp_path))
        # The code 1 of a verdict stands for a problem: a server is late on a busy machine.
        codes = {0, 1} if line.startswith(VERDICTS) else {0}
        assert done.code in codes, f"{line}: {done.errors}"
        outputs[line] = done
    assert len(outputs["vdl consume orders -n 10"].lines) == 10
    assert sorted(map(int, outputs["vdl consume orders -g shop"].lines)) == [*range(1, 101)]
    lines = outputs[r"vdl consume orders --format '%p %o %k %v %h\n'"].lines
    assert len(lines) == 105
    assert sum(line.endswith(" 3 source=shop") for line in lines) == 1
    assert "\n" not in outputs["vdl consume orders -p 2 --from 0 -n 2"].errors.strip()
    assert len(outputs["vdl consume orders --json"].documents) == 105
    keyed = outputs["""vdl consume orders --filter "key == 'a'\""""].lines
    assert keyed[-1] == "5"
    assert set(outputs["vdl consume orders --grep '^9' --from -50"].lines) <= {
        *map(str, [9, *range(90, 100)])
    }
    assert b"orders" in outputs["vdl topic list 'ord*'"].output
    assert outputs["vdl status --all"].output.startswith(b"cluster ")
    assert b"looked at" in outputs["vdl doctor"].output
    assert b"shop" in outputs["vdl group list"].output
    assert b"3600000" in outputs["vdl config get topic orders --all"].output
