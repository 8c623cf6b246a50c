"""Parts of `vdl mcp`: the connection that commands get, bounds, and answers."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.cluster.connection import Connection
from vdl.commands.tools import command_runner
from vdl.commands.tools.bounded_answer import ANSWER_BYTES_MAX, CUTS_MAX, answer
from vdl.commands.tools.command_runner import CommandRunner
from vdl.kafka.security.client_settings import parse_client_settings, read_properties

LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": "secret # = \\x",
    "ssl.ca.location": "ca.pem",
    "vdl.admin.certificate.location": "admin.pem",
    "vdl.admin.key.location": "admin.key",
}


def data_of(text: str) -> dict[str, Any]:
    found = re.fullmatch(r".*\n<data-([0-9a-f]{16})>\n(.*)\n</data-\1>", text, re.DOTALL)
    assert found is not None
    assert len(found[2].encode()) <= ANSWER_BYTES_MAX
    return json.loads(found[2])  # type: ignore[no-any-return]


def runner(**properties: str) -> CommandRunner:
    where = Connection("host:9092", properties, "profile p", Path("/folder"), "p")
    return CommandRunner(Cluster(where, {"socket.timeout.ms": "5000"}))


def test_commands_get_the_login_in_memory_alone() -> None:
    found = runner(**LOGIN)
    passed = read_properties(Path(f"/proc/self/fd/{found._file}"))
    assert passed["sasl.password"] == LOGIN["sasl.password"]
    assert passed["ssl.ca.location"] == "/folder/ca.pem"
    settings = parse_client_settings(passed, "memory", Path("/elsewhere"))
    assert settings.user == "alice"
    assert settings.admin is not None
    assert settings.admin.key == Path("/folder/admin.key")
    assert not os.get_inheritable(found._file)


@pytest.mark.parametrize("password", ["ends with \\", " space", "a\nvdl.x=y"])
def test_login_that_a_file_would_change_is_refused(password: str) -> None:
    with pytest.raises(click.UsageError, match=r"^sasl\.password has a value"):
        runner(**{**LOGIN, "sasl.password": password})


def test_command_gets_names_behind_its_options(tmp_path: Path, monkeypatch: Any) -> None:
    """A program in the place of Python shows what it is given."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; cat; echo "$VDL_PROFILE" >&2; exit 3\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("VDL_PROFILE", "another")
    ran = runner().run("topic", "list", names=["--help"], data=b"input")
    words = ran.output.decode().splitlines()
    assert words[2:5] == ["vdl.cli", "topic", "list"]
    assert words[5] == "--bootstrap=host:9092"
    assert words[7:] == ["-Xsocket.timeout.ms=5000", "--", "--help", "input"]
    assert (ran.code, ran.error, ran.ended) == (3, "\n", "")


@pytest.mark.parametrize(
    ("script", "ended"), [("yes", "it wrote more than"), ("sleep 600", "it took more than")]
)
def test_command_that_passes_a_bound_is_killed(
    script: str, ended: str, tmp_path: Path, monkeypatch: Any
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec {script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    if script != "yes":
        monkeypatch.setattr(command_runner, "RUN_SECONDS_MAX", 0.2)
    ran = runner().run("topic", "list")
    assert ran.ended.startswith(ended)
    assert ran.code == -9
    assert len(ran.output) <= command_runner.OUTPUT_BYTES_MAX


def test_answer_says_what_it_leaves_out() -> None:
    found = data_of(answer({"rows": [{"name": "n" * 5_000}] * 3, "more": [*range(1_000)]}))
    assert len(found["more"]) == 100
    assert found["cut"][0] == {"place": "rows[0].name", "characters": 5_000, "shown": 4_096}
    assert found["cut"][-1] == {"place": "more", "elements": 1_000, "shown": 100}


@pytest.mark.parametrize(
    "document",
    [
        {"rows": [{"value": "\u20ac" * 4_000, "n": n} for n in range(100)]},
        {f"field {n}": "x" * 4_000 for n in range(10_000)},
        {"deep": [[[["x" * 100] * 20] * 20] * 20]},
        {"wide": [{str(n): "x" for n in range(90)}] * 100},
        {"k" * 1_000_000: "v"},
    ],
    ids=["values", "fields", "deep", "wide", "name"],
)
def test_answer_of_any_shape_is_bounded(document: dict[str, Any]) -> None:
    found = data_of(answer(document))
    assert 0 < len(found["cut"]) <= CUTS_MAX + 1


def test_answer_cannot_be_ended_by_its_data() -> None:
    """The number of the marks is new each time, and controls are escapes."""
    one, two = answer({"a": "\x1b[2J\u202e</data-"}), answer({"a": "b"})
    assert one.splitlines()[1] != two.splitlines()[1]
    assert "\x1b" not in one
    assert "\u202e" not in one
    assert data_of(one) == {"a": "\x1b[2J\u202e</data-"}
