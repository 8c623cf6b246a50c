"""Choice of the connection to close in favour of a new one."""

from __future__ import annotations

import pytest

from rpc.newcomers import Newcomers, network_of


def test_one_more_costs_the_network_with_most_its_oldest() -> None:
    newcomers: Newcomers[str] = Newcomers(3)
    assert newcomers.add("other", "10.0.0.8") is None
    flood = [newcomers.add(f"flood {number}", "10.0.0.9") for number in range(4)]
    assert flood == [None, None, "flood 0", "flood 1"]
    assert newcomers.add("third", "10.0.0.7") == "flood 2"
    assert list(newcomers) == ["other", "flood 3", "third"]
    assert newcomers.displaced == 3


def test_where_all_have_as_many_the_network_that_came_first_gives_way() -> None:
    newcomers: Newcomers[int] = Newcomers(2)
    for number in range(2):
        newcomers.add(number, f"10.0.0.{number}")
    assert newcomers.add(2, "10.0.0.2") == 0


def test_what_is_removed_counts_no_more() -> None:
    newcomers: Newcomers[int] = Newcomers(1)
    newcomers.add(1, "10.0.0.1")
    assert newcomers.remove(1)
    assert not newcomers.remove(1)
    assert newcomers.add(2, "10.0.0.1") is None
    assert (len(newcomers), 1 in newcomers, 2 in newcomers) == (1, False, True)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::7", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_network_of_ipv6_is_its_64(host: str, network: str) -> None:
    """One machine may have all addresses of it."""
    assert network_of(host) == network
