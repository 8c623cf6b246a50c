"""Normalized addresses: equal for any kind of socket."""

from __future__ import annotations

import pytest

from vdl.kafka.security.peer_address import canonical_host


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::FFFF:0a00:0007", "10.0.0.7"),
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("*", "*"),
        ("unknown", "unknown"),
        ("kafka.example.org", "kafka.example.org"),
    ],
)
def test_address_has_one_form(given: str, canonical: str) -> None:
    assert canonical_host(given) == canonical
    assert canonical_host(canonical) == canonical
