"""Principals: their text form, and the identity of a client before authentication."""

from __future__ import annotations

import pytest

from tests.unit.kafka.fake_host import World
from vdl.kafka.security.principal import ANONYMOUS, Principal, parse_principal


def test_principal_as_text_is_read_back() -> None:
    """Names may contain the character that separates the type from them."""
    for principal in (Principal("alice"), Principal("CN=a:b,O=c"), Principal("x", "Group")):
        assert parse_principal(str(principal)) == principal


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice"])
def test_principal_without_type_or_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="User:alice"):
        parse_principal(text)


def test_principal_of_a_plain_listener_is_anonymous() -> None:
    world = World()
    client = world.client(("10.1.2.3", 4444))
    assert client.session.info.principal == ANONYMOUS
    assert client.session.info.peer_host == "10.1.2.3"
