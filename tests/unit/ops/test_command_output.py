"""Output of commands: tables, times, selections; the profile command as a user runs it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from vdl.commands.app import COMMANDS, app, run_app
from vdl.commands.output import Failure, emit, fail, plain_lines, progress, say, table
from vdl.commands.resources.record_times import PARTITIONS_AT_ONCE, _rounds
from vdl.commands.selection import consent, key_values, select
from vdl.commands.times import parse_time_ms, show_time

ROOT = Path(__file__).resolve().parents[3]


def test_plain_table_is_aligned_and_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers stand to the right, nothing is wrapped, None is a dash."""
    table(("name", ">count"), [["a", 10], ["long", None]])
    assert capsys.readouterr().out == "name  count\na        10\nlong      -\n"
    assert plain_lines(("a",), []) == ["a"]


def test_table_takes_markup_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a value in brackets is shown, and not read as a colour."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    table(("value",), [["[red]x[/red]"]])
    assert "[red]x[/red]" in shown.getvalue()


def test_row_of_a_table_is_one_line_that_controls_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A client chooses names: none looks like a row of its own, in a pipe to a pager either."""
    table(("group", "state"), [["a\nb  Stable", "Empty"], ["\x1b]0;t\x07\tx", "Dead"]])
    say("\x1b[2J")
    assert capsys.readouterr().out.splitlines() == [
        "group              state",
        "a\\x0ab  Stable     Empty",
        "\\x1b]0;t\\x07\\x09x  Dead",
        "\\x1b[2J",
    ]


def test_table_on_a_narrow_terminal_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal wraps lines; a number that is cut at some digits is another number."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for columns in ("20", "44", "200"):
        shown = Terminal()
        monkeypatch.setattr("sys.stdout", shown)
        monkeypatch.setenv("COLUMNS", columns)
        table(("topic", ">end offset", ">lag"), [["orders" * 6, 12345678901, 1234567]])
        assert "12345678901" in shown.getvalue()
        assert "1234567" in shown.getvalue().split("12345678901")[1]


def _vdl(code: str, **more: Any) -> tuple[int, bytes]:
    """Run `vdl version` in a process of its own, with `code` before it. Return the exit code and
    what it wrote to standard error."""
    program = f"import os, sys; {code}; sys.argv[1:] = ['version']; import vdl.cli as c; "
    command = [sys.executable, "-c", program + "sys.exit(c.main())"]
    ran = subprocess.run(command, stderr=subprocess.PIPE, check=False, **more)
    return ran.returncode, ran.stderr


def test_output_that_cannot_be_written_is_a_failure_in_one_line() -> None:
    """A full disk has exit code 1; a reader that ended has that of a shell, and no words."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        ran = _vdl("1", stdout=full)
    assert ran == (1, b"Error: cannot write the output: No space left on device\n")
    reads, writes = os.pipe()
    os.close(reads)
    assert _vdl("1", stdout=writes) == (141, b"")
    os.close(writes)


PROGRAM = (
    "import sys; import vdl.cli as c; sys.stdout.isatty = lambda: True;"
    "sys.argv[1:] = ['doctor', '--bootstrap', '127.0.0.1:1']; sys.exit(c.main())"
)


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, b"\x1b[31mfail\x1b[0m  bootstrap"),
        ({"NO_COLOR": "1"}, b"fail  bootstrap"),
        ({"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}, b"\\u2192 start the server"),
    ],
    ids=["terminal", "no-color", "latin-1"],
)
def test_text_for_people_fits_the_terminal(variables: dict[str, str], shown: bytes) -> None:
    """An arrow that the encoding lacks is an escape; without colours nothing else is written."""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert shown in ran.stdout
    assert (b"\x1b" in ran.stdout) == ("NO_COLOR" not in variables)
    assert ran.stderr == b""


def test_closed_standard_files_are_not_taken_by_other_files(tmp_path: Path) -> None:
    """A library in C may write to standard error: never into a journal."""
    found = tmp_path / "number"
    code = (
        "os.closerange(0, 3); sys.stdin = sys.stdout = sys.stderr = None; import atexit;"
        f"atexit.register(lambda: open({str(found)!r}, 'w').write(str(os.dup(1))))"
    )
    assert _vdl(code, stdout=subprocess.DEVNULL) == (0, b"")
    assert int(found.read_text()) > 2


def test_commands_ask_the_cluster_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command falls back to this machine where a profile or a variable is set."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run_app(["profile", "create", "far", "--bootstrap", "127.0.0.1:2"]) == 0
    words = [
        ["status"], ["explain", "cluster"], ["member", "list"], ["trace"], ["topic", "list"],
        ["acl", "list"], ["balance", "--plan"], ["doctor"],
    ]  # fmt: skip
    for variable, value in (("", ""), ("VDL_BOOTSTRAP", "127.0.0.1:4"), ("VDL_PROFILE", "far")):
        if variable:
            monkeypatch.setenv(variable, value)
        for command in words:
            capsys.readouterr()
            assert run_app(command) == 1, command
            expected = value if variable == "VDL_BOOTSTRAP" else "127.0.0.1:2"
            assert expected in "".join(capsys.readouterr()), command
        monkeypatch.delenv(variable, raising=False)
    for command in (
        ["explain", "cluster", "--bootstrap", "127.0.0.1:3"],
        ["explain", "--bootstrap", "127.0.0.1:3", "cluster"],
    ):
        assert run_app(command) == 1
        assert "127.0.0.1:3" in capsys.readouterr().err


def test_progress_without_a_terminal_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs of programs stay clean."""
    with progress("waiting", total=2) as steps:
        steps.advance()
        steps.total(3)
        steps.label("still waiting")
    assert capsys.readouterr() == ("", "")


def test_failure_carries_its_exit_code() -> None:
    """One by default."""
    with pytest.raises(Failure) as failed:
        fail("gone")
    assert failed.value.exit_code == 1
    with pytest.raises(Failure) as failed:
        fail("gone", 3)
    assert failed.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:02.500Z", 2_500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
        ("@17", 17_000),
        ("@1764489600000", 1_764_489_600_000),
    ],
)
def test_time_is_read_in_utc_unless_it_says_otherwise(text: str, expected: int) -> None:
    """And it is read again from its own text."""
    assert parse_time_ms(text) == expected
    assert parse_time_ms(show_time(expected)) == expected


def test_time_that_is_none_is_refused() -> None:
    """With an example of one."""
    for text in ("soon", "", "@", "@-1", "2026-13-01"):
        with pytest.raises(ValueError, match="no time such as"):
            parse_time_ms(text)


def test_selection_is_by_name_glob_and_regex() -> None:
    """A plain name must be there; a pattern must match something."""
    names = ["a.1", "a.2", "b", "ab"]
    assert select(names, ["a.*"], None, kind="topic") == ["a.1", "a.2"]
    assert select(names, ["b", "a.?"], None, kind="topic") == ["a.1", "a.2", "b"]
    assert select(names, [], "a.", kind="topic") == ["ab"]
    for wanted, regex in ((["c"], None), (["c*"], None), ([], "c")):
        with pytest.raises(Failure):
            select(names, wanted, regex, kind="topic")
    with pytest.raises(click.UsageError, match="--regex"):
        select(names, [], "(", kind="topic")


def test_consent_without_a_terminal_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the input is no yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    consent("Delete?", is_given=True)
    with pytest.raises(click.UsageError, match="--yes"):
        consent("Delete?", is_given=False)
    with pytest.raises(click.UsageError):
        key_values(["=x"])


def test_rounds_read_each_partition_at_one_offset_and_not_too_many() -> None:
    """Every offset is in one round."""
    wanted = [(("t", number), 7) for number in range(PARTITIONS_AT_ONCE + 1)] + [(("t", 0), 9)]
    rounds = list(_rounds(wanted))
    assert sorted((place, offset) for one in rounds for place, offset in one.items()) == [
        *wanted[:1],
        wanted[-1],
        *wanted[1:-1],
    ]
    assert [len(one) for one in rounds] == [PARTITIONS_AT_ONCE, 2]


def test_profile_command_keeps_passwords_out_of_arguments_and_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first profile is current; a password comes by the input and is never shown."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    create = ["profile", "create", "prod", "--bootstrap", "a:1"]
    assert run_app([*create, "--set", "sasl.password=x"]) == 2
    assert "no argument" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    assert run_app([*create, "--set", "sasl.username=me", "--password-stdin"]) == 0
    assert run_app(create) == 1
    assert run_app(["profile", "create", "test", "--bootstrap", "b:1"]) == 0
    assert "secret" in (tmp_path / "vdl" / "profiles.toml").read_text()
    capsys.readouterr()
    assert run_app(["profile", "show", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "secret" not in shown
    assert json.loads(shown)["name"] == "prod"
    assert run_app(["profile", "use", "test"]) == 0
    assert run_app(["profile", "delete", "prod"]) == 0
    assert run_app(["profile", "use", "prod"]) == 1
    capsys.readouterr()
    assert run_app(["profile", "list", "--json"]) == 0
    (left,) = json.loads(capsys.readouterr().out)["profiles"]
    assert (left["name"], left["current"]) == ("test", True)


def test_command_without_its_client_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line; what needs no client works."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for words in (["topic", "list"], ["topic", "create", "t"], ["group", "lag"]):
        assert run_app([*words, "--bootstrap", "127.0.0.1:1"]) == 1
        said = capsys.readouterr().err
        assert (said.count("\n"), "pip install 'vdl-log[cli]'" in said) == (1, True)
    assert run_app(["config", "explain", "raft.election_timeout", "--bootstrap", "a:1"]) == 0


def test_every_command_has_help_and_every_leaf_but_some_has_json() -> None:
    """Programs can read what a command says."""
    with click.Context(app) as ctx:
        for name in ("profile", "topic", "group", "config", "acl", "user", "quota", "token"):
            assert name in COMMANDS
            command = app.get_command(ctx, name)
            assert isinstance(command, click.Group)
            for leaf, sub in command.commands.items():
                assert sub.help, f"{name} {leaf}"
                has_json = any("--json" in one.opts for one in sub.params)
                assert has_json or name == "profile", f"{name} {leaf}"


@pytest.mark.parametrize(
    ("typed", "hint"), [("topik", " Did you mean 'topic' or 'token'?"), ("xyzzy", "")]
)
def test_command_with_a_typing_mistake_is_told_what_is_like_it(
    typed: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app([typed]) == 2
    assert capsys.readouterr().err.endswith(f"Error: No such command {typed!r}.{hint}\n")


def test_every_document_has_its_row() -> None:
    """docs/cli.md names each command with --json, but those that have a page of their own."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table_of_all = page.partition("## Documents of `--json`")[2].partition("\n## ")[0]
    rows = set()
    for cell in re.findall(r"^\| (`.*?) \|", table_of_all, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        group = first.partition(" ")[0]
        rows |= {first, *others, *(f"{group} {one}" for one in others)}
    with click.Context(app) as ctx:
        missing = [
            path
            for name in COMMANDS
            if name not in {"serve", "log", "pipeline", "sim", "test-server"}
            for path, command in leaves(name, app.get_command(ctx, name))
            if any("--json" in one.opts for one in command.params)
            and not {path, f"{name} …"} & rows
        ]
    assert missing == []


def leaves(path: str, command: click.Command | None) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, and those below it, with the words that call them."""
    assert command is not None, path
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from leaves(f"{path} {name}", one)


@pytest.mark.parametrize("name", ["consume", "produce"])
def test_help_has_examples_on_lines_of_their_own(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """As they are typed: neither wrapped, nor with marks for the formatter."""
    assert run_app([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "\\b" not in shown
    _, _, examples = shown.partition("  Examples:\n")
    lines = examples.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("    ") and f"vdl {name} " in line for line in lines)


def test_terminal_gets_no_control_character_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in a line, nor in a document; a pipe may end in a pager."""
    hostile = "\x1b]0;title\x07\x9b2J\u202e"
    say(hostile)
    assert capsys.readouterr().out == "\\x1b]0;title\\x07\\x9b2J\\u202e\n"
    emit(True, {"name": hostile}, lambda: None)
    written = capsys.readouterr().out
    assert json.loads(written) == {"name": hostile}
    assert not set("\x1b\x07\x9b\u202e") & set(written)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    say(hostile)
    table(["name"], [[hostile]])
    shown = capsys.readouterr().out
    assert "\x1b]" not in shown  # the head of a table is bold
    assert not set("\x07\x9b\u202e") & set(shown)


def test_error_that_quotes_a_record_controls_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_app(["consume", "t", "--filter", "\x1b]0;x\x07"]) == 2
    assert "\x1b" not in capsys.readouterr().err
