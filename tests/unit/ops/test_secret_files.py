"""Detection of secrets that other users of the machine may read."""

from pathlib import Path

import pytest

from vdl.config.settings import parse_config
from vdl.server.secret_files import readable_by_others

TEXT = """
[[listeners]]
name = "SSL"
listen = "127.0.0.1:9092"
certificate = "own.pem"
key = "own.key"
[tls]
certificate = "server.pem"
key = "server.key"
ca = "ca.pem"

[security]
first_users = "users"
delegation_token_key = "tokens"
delegation_token_other_key = "tokens-before"
"""
SECRETS = {"own.key", "server.key", "users", "tokens", "tokens-before"}


def exposed(folder: Path, mode: int) -> set[str]:
    for name in (*SECRETS, "own.pem", "server.pem", "ca.pem"):
        path = folder / name
        path.touch()
        path.chmod(mode if name in SECRETS else 0o644)
    config = parse_config(TEXT, source="test", folder=folder)
    return {path.name for path in readable_by_others(config)}


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_what_its_owner_and_group_may_read_is_secret(mode: int, tmp_path: Path) -> None:
    assert exposed(tmp_path, mode) == set()


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666])
def test_what_others_may_read_is_told_of(mode: int, tmp_path: Path) -> None:
    """Certificates are public."""
    assert exposed(tmp_path, mode) == SECRETS


def test_file_that_is_not_there_is_somebody_elses_to_tell_of(tmp_path: Path) -> None:
    config = parse_config(TEXT, source="test", folder=tmp_path)
    assert readable_by_others(config) == []
