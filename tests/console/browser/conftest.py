"""A browser, and servers that the tests only read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.console.browser.console_set import (
    HOSTILE,
    ConsoleSet,
    client_settings,
    console_set,
    consuming,
    fill,
    make_topics,
)

pytest.importorskip("playwright", reason="no playwright is here: pip install 'vdl-log[dev]'")

from playwright.sync_api import Browser

from tests.console.browser.chromium import chromium
from tests.console.browser.visitor import Visitor, visiting


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Yield a Chromium; skip where there is none."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def servers(browser: Browser) -> Iterator[ConsoleSet]:
    """Yield three servers with records and members of groups, one of them with a hostile name.

    Tests change nothing but the topic `written`.
    """
    with console_set("console-pages") as found, ExitStack() as members:
        settings = client_settings(found)
        make_topics(settings, {"orders": 12, "empty": 1, "written": 1, "team.a": 3, "team.b": 2})
        fill(settings, "orders")
        members.enter_context(consuming(settings, "orders", "billing", "till-1"))
        members.enter_context(consuming(settings, "orders", HOSTILE, HOSTILE))
        yield found


Visit = Callable[..., Visitor]
"""Begins a visit to the servers' console, with the arguments of `visiting`."""


@pytest.fixture
def visit(browser: Browser, servers: ConsoleSet) -> Iterator[Visit]:
    """Yield a function that begins a visit; each is checked at the end."""
    with ExitStack() as visits:
        yield lambda **options: visits.enter_context(visiting(browser, servers.origin(), **options))
