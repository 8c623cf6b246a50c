"""Listening sockets of servers, for every way to write an address."""

import socket
from pathlib import Path

import pytest

from tests.hangs import HANG_SECONDS
from vdl.listening import listening_socket

V4 = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 0, 0, 0))
needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")


def link_local():
    """Return an address of this machine that needs a zone; empty if there is none."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, *_, name = line.split()
        if digits.startswith("fe80"):
            groups = [digits[at : at + 4] for at in range(0, 32, 4)]
            return f"{':'.join(groups)}%{name}"
    return ""


@pytest.mark.parametrize(
    ("known", "family"),
    [
        ([V4], socket.AF_INET),
        pytest.param([V6], socket.AF_INET6, marks=needs_ipv6),
        ([V6, V4], socket.AF_INET),
    ],
)
def test_name_is_listened_on_where_it_has_an_address(known, family, monkeypatch):
    """A name with both kinds stands for IPv4, at any position in the answer."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)
    with listening_socket("vdl-1", 0, 1) as listening:
        assert listening.family == family


@needs_ipv6
def test_unspecified_address_takes_both_kinds():
    with listening_socket("::", 0, 1) as listening:
        port = listening.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=HANG_SECONDS).close()


@pytest.mark.skipif(not link_local(), reason="there is no address of a link")
def test_address_of_a_link_is_listened_on_with_its_zone():
    with listening_socket(link_local(), 0, 1) as listening:
        assert listening.getsockname()[3] > 0


def test_port_that_is_taken_is_named_with_its_host():
    with listening_socket("127.0.0.1", 0, 1) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1 port {port}"):
            listening_socket("127.0.0.1", port, 1)
