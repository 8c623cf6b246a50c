"""Fixtures: replica sets of real processes, and the figures measured under faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness.disk_set import DiskSet
from tests.chaos.harness.disks import Disks
from tests.chaos.harness.replica_set import ROOT, ReplicaSet

FIGURES = ROOT / "build" / "figures" / "chaos.json"

Figure = Callable[[str, object], None]
"""Records a measured value under a name."""

_figures: dict[str, object] = {}
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Store on the item that its test failed, for fixtures that then keep data."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture
def replica_set(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    """Yield three servers that serve clients, on data of their own."""
    servers = ReplicaSet(3)
    try:
        servers.up()
        yield servers
    finally:
        name = request.node.name if request.node.stash.get(_failed, False) else ""
        servers.close(failed=name)


@pytest.fixture(scope="session")
def disks() -> Iterator[Disks]:
    """Yield real file systems that can fail; skip where they cannot be made."""
    missing = Disks.missing()
    if missing:
        pytest.skip(missing)
    with Disks() as found:
        yield found


MakeDiskSet = Callable[..., DiskSet]
"""Makes a stopped replica set on disks of its own; takes the arguments of `DiskSet`."""


@pytest.fixture
def make_disk_set(request: pytest.FixtureRequest, disks: Disks) -> Iterator[MakeDiskSet]:
    """Yield a factory; stop and remove its replica sets at the end of the test."""
    made: list[DiskSet] = []

    def make(nodes: int = 3, **settings: Any) -> DiskSet:
        made.append(DiskSet(disks, nodes, **settings))
        return made[-1]

    try:
        yield make
    finally:
        name = request.node.name if request.node.stash.get(_failed, False) else ""
        for servers in made:
            servers.close(failed=name)


@pytest.fixture
def figure(request: pytest.FixtureRequest, record_property: Figure) -> Figure:
    """Yield a function that records figures.

    They go to the test's report, the end of the output and build/figures/chaos.json.
    """

    def record(name: str, value: object) -> None:
        _figures[f"{request.node.name}: {name}"] = value
        record_property(name, value)

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _figures:
        return
    terminalreporter.section("figures")
    for name, value in _figures.items():
        terminalreporter.write_line(f"{name} = {value}")
    Path(FIGURES).parent.mkdir(parents=True, exist_ok=True)
    Path(FIGURES).write_text(json.dumps(_figures, indent=2) + "\n", encoding="utf-8")
