"""Secrets among client properties: never an argument, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from vdl.commands.app import run_app
from vdl.commands.cluster.profiles import (
    Profile,
    ProfileError,
    Profiles,
    is_secret,
    read_profiles,
    write_profiles,
)

SECRET = (
    "sasl.password", "sasl.jaas.config", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config", "ssl.key.pem", "ssl.key.password", "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password", "listener.name.a.ssl.keystore.key", "SASL.Password",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_secret_is_no_argument_and_is_never_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused with the way to do it; hidden in a profile; a file with it is its owner's alone."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "vdl" / "profiles.toml"
    write_profiles(path, Profiles("a", {"a": Profile("a:1", properties={name: "hunter2"})}))
    for words in (
        ("topic", "list", "-X", f"{name}=hunter2"),
        ("topic", "list", "-X", "hunter2"),
        ("profile", "create", "b", "--bootstrap", "b:1", "--set", f"{name}=hunter2"),
        ("profile", "create", "b", "--bootstrap", "b:1", "--set", "hunter2"),
    ):
        assert run_app(list(words)) == 2, words
        told = capsys.readouterr()
        assert "hunter2" not in told.out + told.err, words
        assert "=" not in words[-1] or "--config" in told.err, words
    assert run_app(["profile", "show", "--json"]) == 0
    assert "hunter2" not in capsys.readouterr().out
    path.chmod(0o644)
    with pytest.raises(ProfileError, match="chmod 600"):
        read_profiles(path)


@pytest.mark.parametrize(
    "name",
    ["ssl.key.location", "ssl.keystore.location", "ssl.keystore.type", "sasl.username", "client.id",
     "ssl.ca.location", "ssl.keystore.certificate.chain", "security.protocol"],
)  # fmt: skip
def test_property_that_is_no_secret_is_shown(name: str) -> None:
    assert not is_secret(name)


def test_addresses_are_no_property_of_librdkafka(capsys: pytest.CaptureFixture[str]) -> None:
    """They would get the login of a profile."""
    for name in ("bootstrap.servers", "metadata.broker.list"):
        assert run_app(["topic", "list", "-X", f"{name}=127.0.0.1:1"]) == 2
        assert "--bootstrap" in capsys.readouterr().err


def test_line_of_a_file_that_is_no_property_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a password written as `name: value`, or a part of a key."""
    file = tmp_path / "client.properties"
    file.write_text("sasl.password: hunter2\n")
    assert run_app(["topic", "list", "--config", str(file)]) == 2
    told = capsys.readouterr().err
    assert "name=value" in told
    assert "hunter2" not in told
