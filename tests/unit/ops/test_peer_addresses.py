"""Comparison of the addresses in two servers' files."""

from __future__ import annotations

from dataclasses import replace

from ids import DirectoryId, ServerId
from rpc.hello import Hello
from vdl.server.peer_addresses import PeerAddresses

FIRST = {ServerId(1): "a:1", ServerId(2): "b:1"}


def _hello(addresses: dict[ServerId, str]) -> Hello:
    peer = PeerAddresses(ServerId(4), addresses, b"other")
    return Hello(
        ServerId(4), DirectoryId(bytes(16)), 1, config_digest=b"other", addresses=peer.encoded()
    )


def test_file_of_an_added_server_may_lack_addresses() -> None:
    """It was written for a cluster that others had formed."""
    own = PeerAddresses(ServerId(1), FIRST, b"own")
    assert not own.linked(_hello({ServerId(2): "b:1"}), is_added=True)
    assert not own.linked(_hello({**FIRST, ServerId(4): "d:1"}), is_added=True)
    assert own.differences == {}


def test_another_address_in_the_file_of_an_added_server_is_a_difference() -> None:
    """It may have moved since."""
    own = PeerAddresses(ServerId(1), FIRST, b"own")
    assert own.linked(_hello({ServerId(2): "old:1"}), is_added=True)
    assert "server 2 has address b:1" in own.differences[ServerId(4)]


def test_missing_address_in_the_file_of_an_initial_server_is_a_difference() -> None:
    """Its file should be equal."""
    own = PeerAddresses(ServerId(1), FIRST, b"own")
    assert own.linked(_hello({ServerId(2): "b:1"}))


def test_server_that_is_in_no_file_says_its_own_address() -> None:
    """It is no difference: only the server itself can have it in its file."""
    new = PeerAddresses(ServerId(4), {ServerId(2): "old:1"}, b"other", own="new4:1")
    hello = replace(_hello({}), addresses=new.encoded())
    assert PeerAddresses.announced_by(hello) == "new4:1"
    own = PeerAddresses(ServerId(1), FIRST, b"own")
    assert own.linked(hello, is_added=True)
    assert "new4:1" not in own.differences[ServerId(4)]
    assert not PeerAddresses.announced_by(_hello({}))
