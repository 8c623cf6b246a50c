"""Servers with a console, which the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.console.asking import Browser
from tests.console.browser.console_set import ConsoleSet, client_settings, console_set, make_topics
from tests.hangs import HANG_SECONDS

ALICE, ALICE_PASSWORD = "alice", "alice-secret"


def port_of(servers: ConsoleSet, server_id: int = 1) -> int:
    """Return the HTTP port of a server."""
    port = urlsplit(servers.origin(server_id)).port
    assert port is not None
    return port


@pytest.fixture(scope="session")
def open_set() -> Iterator[ConsoleSet]:
    """Yield three servers without logins, whose console may change things."""
    with console_set("console-open") as found:
        yield found


@pytest.fixture
def port(open_set: ConsoleSet) -> int:
    """Return the HTTP port of server 1 of the open set."""
    return port_of(open_set)


@pytest.fixture(scope="session")
def secure_set() -> Iterator[ConsoleSet]:
    """Yield one server with TLS and logins, and with an ordinary user, who may read `hers`."""
    with console_set("console-secure", 1, is_secure=True) as found:
        settings = client_settings(found)
        make_topics(settings, {"hers": 1, "secret": 1})
        admin = AdminClient(settings)
        add_user(admin, ALICE, ALICE_PASSWORD)
        grant(admin, ALICE, ResourceType.TOPIC, "hers", AclOperation.READ)
        yield found


def add_user(admin: AdminClient, user: str, password: str) -> None:
    """Add a user, or change the password."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(HANG_SECONDS)


def grant(
    admin: AdminClient, user: str, kind: ResourceType, name: str, operation: AclOperation
) -> None:
    """Allow a user an operation."""
    binding = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([binding]).values():
        future.result(HANG_SECONDS)


@pytest.fixture
def secure_port(secure_set: ConsoleSet) -> int:
    """Return the HTTP port of the secure set."""
    return port_of(secure_set)


@pytest.fixture
def admin_of_secure_set(secure_set: ConsoleSet) -> AdminClient:
    """Return an administrator of the secure set."""
    return AdminClient(client_settings(secure_set))


@pytest.fixture
def root(secure_set: ConsoleSet, secure_port: int) -> Browser:
    """Return a browser of the administrator."""
    settings = client_settings(secure_set)
    found = Browser(secure_port)
    answer = found.log_in(settings["sasl.username"], settings["sasl.password"])
    assert answer.status == 200, answer.body
    return found


@pytest.fixture
def alice(secure_port: int) -> Browser:
    """Return a browser of the ordinary user."""
    found = Browser(secure_port)
    answer = found.log_in(ALICE, ALICE_PASSWORD)
    assert answer.status == 200, answer.body
    return found
