"""Tests of the source build millions of syntax nodes, which are no garbage."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collector_rests() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
