"""Report of `vdl serve --check` on each port, and the warning that logins restrict nothing."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from vdl.commands.serve import serve
from vdl.commands.servers.replica_set import config_text, make_replica_set
from vdl.config.exposure import ALL, BY_LISTS, exposure, lacks_authorizer
from vdl.config.settings import Config, parse_config
from vdl.server.diagnosis import problems_of
from vdl.server.partition_counts import PartitionCounts
from vdl.server.problem import NOT_WRONG
from vdl.server.server import ServerState

ROOT = Path(__file__).resolve().parents[3]
TLS = """
[tls]
certificate = "server.pem"
key = "server.key"
ca = "ca.pem"
"""
AUTHORIZER = "\n[security]\nauthorizer = true\n"


def parsed(text: str) -> Config:
    return parse_config(text, source="test", folder=Path())


@pytest.mark.parametrize(
    ("listener", "expected"),
    [
        ('name = "SASL_SSL"', "users who log in (SCRAM-SHA-512, SCRAM-SHA-256)"),
        ('name = "SSL"\nclient_auth = "required"', "holders of a certificate"),
        ('name = "SSL"', "everyone, as User:ANONYMOUS,"),
    ],
)
def test_secured_listener_without_an_authorizer_is_told_of(listener: str, expected: str) -> None:
    text = f'[[listeners]]\n{listener}\nlisten = "127.0.0.1:9092"\n{TLS}'
    without, with_one = parsed(text), parsed(text + AUTHORIZER)
    name = listener.split('"')[1]
    assert next(exposure(without)) == f"{name} 127.0.0.1:9092: {expected} {ALL}"
    assert next(exposure(with_one)) == f"{name} 127.0.0.1:9092: {expected} {BY_LISTS}"
    assert lacks_authorizer(without)
    assert not lacks_authorizer(with_one)


@pytest.mark.parametrize(("more", "kinds"), [("", ["no_authorizer"]), (AUTHORIZER, [])])
def test_status_and_health_tell_of_it_and_are_well(more: str, kinds: list[str]) -> None:
    text = f'[[listeners]]\nname = "SSL"\nlisten = "127.0.0.1:9092"\n{TLS}{more}'
    server = SimpleNamespace(
        config=parsed(text),
        host=None,
        state=ServerState.SERVING,
        waits_to_be_added=False,
        store=SimpleNamespace(accepts_appends=True),
        links=SimpleNamespace(links=list),
        certificates_ending=dict,
        lacks_descriptors=bool,
        refused_links=dict,
        peer_addresses=SimpleNamespace(differences={}),
        partition_counts=PartitionCounts,
    )
    found = problems_of(server)  # type: ignore[arg-type]
    assert [problem.kind for problem in found] == kinds
    assert {problem.kind for problem in found} <= NOT_WRONG


def test_open_broker_is_no_mistake_and_says_that_it_is_open() -> None:
    config = parsed("")
    assert not lacks_authorizer(config)
    assert [line.split(":")[0] for line in exposure(config)] == [
        "PLAINTEXT 127.0.0.1", "admin 127.0.0.1", "http 127.0.0.1",
    ]  # fmt: skip


def test_check_prints_each_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vdl.toml"
    made = make_replica_set(tmp_path / "set", count=3, base_port=9092, is_secure=True)
    path.write_text(config_text(made, made.servers[0].id))
    assert serve(["--check", "--config", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(BY_LISTS)
    assert lines[1:3] == [
        "peer 127.0.0.1:9102: servers with a certificate may replicate all partitions",
        "admin 127.0.0.1:9112: servers with a certificate may see and administer the set",
    ]


def test_recipe_for_several_machines_limits_what_users_may_do() -> None:
    """The file that docs/secure.md recommends is read as printed there."""
    text = (ROOT / "docs" / "secure.md").read_text()
    _, _, recipe = text.partition("## A secured set on several machines")
    found = re.search(r"```toml\n(.*?)```", recipe, re.DOTALL)
    assert found is not None
    config = parsed(found[1])
    assert config.kafka.authorizer
    assert config.kafka.super_users
    assert not lacks_authorizer(config)
