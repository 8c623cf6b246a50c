"""The bytes charged for a request before it is decoded cover what decoding it takes."""

from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any

import pytest

from tests.price.table import TABLE, read
from tests.price.wishes import Wish, paths, write
from vdl.kafka.api import API, ROWS
from vdl.kafka.connections.wide_request import Decoded, decoded
from vdl.kafka.limits.memory import DECODED_FROM_BYTES
from vdl.kafka.wire.registry import HELD

ELEMENTS = 300
NAMES = ("empty", "unknown")
NUMBERS = ("1", "largest")
PRODUCE = 0
KIB = 1 << 10
ONCE_BYTES = 2 * KIB


def versions_of(api: Any) -> range:
    return range(api.min_version, api.max_version + 1)


def factor_of(api: Any, version: int) -> int:
    return HELD[api.key][version - api.wire.MIN_VERSION]


@pytest.mark.parametrize(
    "api", [row for row in ROWS if row.key != PRODUCE], ids=lambda api: api.name
)
def test_no_request_becomes_more_than_is_counted(api: Any) -> None:
    """Covers each list, with the smallest elements and with others, decoded and split into parts.

    Covers the first version of each form with another factor, and the last version.
    """
    factors = {factor_of(api, version): version for version in reversed(versions_of(api))}
    for version in {*factors.values(), api.max_version}:
        for path, names, numbers in product(paths(api.key, version), NAMES, NUMBERS):
            wish = Wish(path, names=names, numbers=numbers, elements=ELEMENTS)
            body = memoryview(write(api.key, version, wish).body)
            decoded(api, version, body)  # warm up: imports and objects made only once
            tracemalloc.start()
            try:
                found = decoded(api, version, body)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            counted = factor_of(api, version) * len(body)
            assert isinstance(found, Decoded)
            assert peak <= counted + ONCE_BYTES, (version, wish, len(body), peak / len(body))


def test_requests_that_were_measured_were_counted() -> None:
    """Uses the memory measured in a server, including all work for the request."""
    for row in read(TABLE):
        (key,) = [key for key, api in API.items() if api.name == row.api]
        if key != PRODUCE and not API[key].passed_on:
            factor = factor_of(API[key], row.version)
            assert row.held <= factor + 1, row.line  # the request itself is charged at its size


def test_requests_that_are_not_counted_become_little() -> None:
    """Only requests that are longer by at least one byte are charged."""
    assert max(map(max, HELD.values())) * DECODED_FROM_BYTES <= 64 * KIB
