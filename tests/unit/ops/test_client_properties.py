"""Client properties of Java become librdkafka's; of several places one decides."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click
import pytest
from confluent_kafka import Consumer

from vdl.commands.cluster.client_properties import librdkafka_properties
from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.cluster.connection import Connection, resolve
from vdl.commands.cluster.profiles import (
    Profile,
    ProfileError,
    Profiles,
    read_profiles,
    write_profiles,
)
from vdl.kafka.security.client_settings import ClientSettingsError

JAVA = "org.apache.kafka.common.security"


def translated(folder: Path, **properties: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return librdkafka_properties(named, "here", folder)


@pytest.mark.parametrize(
    ("jaas", "expected"),
    [
        (
            f'{JAVA}.scram.ScramLoginModule required username="a" password="p=\\"; x";',
            {"sasl.username": "a", "sasl.password": 'p="; x'},
        ),
        (
            f"{JAVA}.plain.PlainLoginModule required username='a b' password=c;",
            {"sasl.username": "a b", "sasl.password": "c"},
        ),
        (
            f'{JAVA}.oauthbearer.OAuthBearerLoginModule required clientId="i" clientSecret="s";',
            {
                "sasl.oauthbearer.client.id": "i",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.method": "oidc",
            },
        ),
    ],
)
def test_login_of_java_is_librdkafkas(jaas: str, expected: dict[str, str], tmp_path: Path) -> None:
    """A login module and its options become properties that a client takes."""
    found = translated(tmp_path, sasl_jaas_config=jaas)
    assert found == expected
    Consumer({"group.id": "none", **found}).close()


def test_login_that_librdkafka_has_not_is_refused_in_words(tmp_path: Path) -> None:
    """A delegation token, an unknown module: no connection without what was meant."""
    token = f'{JAVA}.scram.ScramLoginModule required username="a" tokenauth="true";'
    for jaas, word in ((token, "delegation token"), ("com.example.Login required;", "Login")):
        with pytest.raises(ClientSettingsError, match=word):
            translated(tmp_path, sasl_jaas_config=jaas)


def test_stores_are_told_apart_by_their_content(tmp_path: Path) -> None:
    """PEM stays a file, JKS is refused with the way to convert it."""
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "ca.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    found = translated(tmp_path, ssl_truststore_location="ca.pem")
    assert found == {"ssl.ca.location": str(tmp_path / "ca.pem")}
    with pytest.raises(ClientSettingsError, match="keytool"):
        translated(tmp_path, ssl_truststore_location="ca.jks")
    both = translated(tmp_path, ssl_ca_location="ca.pem", ssl_truststore_location="ca.jks")
    assert both == {"ssl.ca.location": str(tmp_path / "ca.pem")}
    inline = translated(tmp_path, ssl_truststore_certificates="-----BEGIN\\nX")
    assert inline == {"ssl.ca.pem": "-----BEGIN\nX"}


def test_properties_of_other_programs_are_left_out(tmp_path: Path) -> None:
    """Only what secures or names the connection is taken; an empty host check is none."""
    found = translated(
        tmp_path, acks="all", key_serializer="x", client_id="c", ssl_protocol="TLS",
        ssl_endpoint_identification_algorithm="",
    )  # fmt: skip
    assert found == {"client.id": "c", "ssl.endpoint.identification.algorithm": "none"}


# --- profiles and precedence ----------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    profiles = Profiles(
        "prod",
        {
            "prod": Profile("prod:9092", properties={"sasl.password": "secret"}),
            "test": Profile("test:9092"),
        },
    )
    write_profiles(tmp_path / "vdl" / "profiles.toml", profiles)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_precedence_is_option_environment_profile_default(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Each place counts only where those before it say nothing."""

    def at(*, profile: str | None = None, bootstrap: str | None = None, **more: str) -> str:
        found = resolve(
            profile=profile, bootstrap=bootstrap, config=None, environment=environment | more
        )
        return f"{found.profile}@{found.bootstrap}"

    assert at() == "prod@prod:9092"
    assert at(VDL_PROFILE="test") == "test@test:9092"
    assert at(profile="prod", VDL_PROFILE="test") == "prod@prod:9092"
    assert at(profile="test", bootstrap="other:1") == "test@other:1"
    assert at(profile="test", VDL_BOOTSTRAP="env:1") == "test@test:9092"
    assert at(bootstrap="other:1", VDL_PROFILE="prod") == "@other:1"
    assert at(bootstrap="other:1", VDL_BOOTSTRAP="env:1") == "@other:1"
    assert at(VDL_BOOTSTRAP="env:1") == "@env:1"
    assert at(XDG_CONFIG_HOME=str(tmp_path / "none")) == "@127.0.0.1:9092"


def test_address_without_a_profile_gets_no_password_of_the_current_one(
    environment: dict[str, str],
) -> None:
    """The login of the current profile, or of a variable's, belongs to its own cluster."""
    for variables in ({}, {"VDL_PROFILE": "prod"}):
        found = resolve(
            profile=None, bootstrap="other:1", config=None, environment=environment | variables
        )
        assert found.properties == {}
        assert "secret" not in repr(found)


def test_addresses_of_a_file_given_as_an_option_win_over_variables(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """`bootstrap.servers` of `--config` is an option's, too; a file without it names no cluster."""
    file = tmp_path / "client.properties"
    variables = environment | {"VDL_BOOTSTRAP": "env:1"}
    file.write_text("bootstrap.servers=file:1\n")
    found = resolve(profile=None, bootstrap=None, config=file, environment=variables)
    assert (found.bootstrap, found.profile) == ("file:1", "")
    file.write_text("sasl.username=a\n")
    found = resolve(profile=None, bootstrap=None, config=file, environment=variables)
    assert (found.bootstrap, found.properties) == ("env:1", {"sasl.username": "a"})


def test_two_variables_that_may_name_two_clusters_are_refused(environment: dict[str, str]) -> None:
    """So is an option that is empty: it would fall back to another cluster."""
    both = environment | {"VDL_BOOTSTRAP": "env:1", "VDL_PROFILE": "prod"}
    with pytest.raises(click.UsageError, match="VDL_PROFILE and VDL_BOOTSTRAP"):
        resolve(profile=None, bootstrap=None, config=None, environment=both)
    for profile, bootstrap in (("", None), (None, " ")):
        with pytest.raises(click.UsageError, match="is empty"):
            resolve(profile=profile, bootstrap=bootstrap, config=None, environment=environment)


def test_unknown_profile_is_wrong_usage(environment: dict[str, str]) -> None:
    """The known ones are named."""
    with pytest.raises(click.UsageError, match="there is prod, test"):
        resolve(profile="nope", bootstrap=None, config=None, environment=environment)


def test_profiles_file_is_its_owners_alone(environment: dict[str, str]) -> None:
    """Written with mode 0600; with a password in it and open to others it is refused."""
    path = Path(environment["XDG_CONFIG_HOME"]) / "vdl" / "profiles.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ProfileError, match="chmod 600"):
        read_profiles(path)
    with pytest.raises(ProfileError, match="no such profile"):
        Profiles().get("x")


@pytest.mark.parametrize(
    "text",
    [
        "current = 1",
        "profiles = 1",
        "[profiles.a]\nport = 1",
        "[profiles",
        "[profiles.a]\nbootstrap = 1",
    ],
)
def test_profiles_file_that_is_wrong_is_refused(text: str, tmp_path: Path) -> None:
    """Nothing in it is guessed."""
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"profiles\.toml"):
        read_profiles(path)


@pytest.mark.parametrize("wait", ["poll", "flush"])
def test_interrupt_within_a_delivery_callback_reaches_the_command(wait: str) -> None:
    """confluent-kafka 2.16 itself raises SystemError."""
    cluster = Cluster(Connection("127.0.0.1:1"), {"message.timeout.ms": "100"})
    producer = cluster.producer()

    def interrupt(*answer: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def until_answered() -> None:
        while len(producer):
            getattr(producer, wait)(10)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        producer.produce("topic", b"value", on_delivery=interrupt)
        with pytest.raises(KeyboardInterrupt):
            until_answered()
    finally:
        signal.signal(signal.SIGINT, before)
