"""pytest plug-in: a cluster for the session, and topics of its own for each test.

Loaded by every pytest in an environment with VDL, so it imports nothing of VDL before a fixture is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vdl.testing.cluster import Cluster

MakeTopic = Callable[..., str]
"""Creates a topic and returns its name; takes the arguments of `Cluster.topic`."""

TOPICS_AT_ONCE = 16
"""Plain topics that are created by one request, and topics that are deleted by one: each of them
costs the servers a sixth of what a single one does."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plug-in."""
    group = parser.getgroup("vdl", "clusters of VDL")
    group.addoption(
        "--vdl-nodes", type=int, default=3, metavar="N", help="servers of `vdl_cluster` (3)"
    )
    group.addoption(
        "--vdl-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of its servers, as in a configuration file; may be repeated",
    )
    group.addoption(
        "--vdl-directory", type=Path, metavar="DIR", help="where its data lies (in memory)"
    )


@pytest.fixture(scope="session")
def vdl_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yield a cluster for the whole session; with xdist, one for each worker.

    A test that breaks it restores it: `vdl_cluster.restore()`.
    """
    from vdl.testing.cluster import Cluster
    from vdl.testing.settings import parse_settings

    option = request.config.getoption
    cluster = Cluster(
        option("--vdl-nodes"),
        settings=parse_settings(option("--vdl-set")),
        directory=option("--vdl-directory"),
    )
    with cluster:
        yield cluster


class _Topics:
    """Topics of a session: plain ones are made before they are needed, and topics of ended tests
    are deleted some tests later. No two tests get the same one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ready: list[str] = []
        self._used: list[str] = []

    def take(self, *args: object, **options: object) -> str:
        """Return the name of a topic that no test has used."""
        if args or options:
            return self._cluster.topic(*args, **options)  # type: ignore[arg-type]  # checked there
        if not self._ready:
            self._ready = self._cluster.topics(TOPICS_AT_ONCE)[::-1]
        return self._ready.pop()

    def give_back(self, names: list[str]) -> None:
        """Delete topics, now or with later ones."""
        self._used += names
        if len(self._used) >= TOPICS_AT_ONCE:
            used, self._used = self._used, []
            self._cluster.delete_topics(*used)


@pytest.fixture(scope="session")
def _vdl_session_topics(vdl_cluster: Cluster) -> _Topics:
    return _Topics(vdl_cluster)


@pytest.fixture
def vdl_topics(_vdl_session_topics: _Topics) -> Iterator[MakeTopic]:
    """Yield a function that gives topics to this test. They are deleted after it, maybe later."""
    made: list[str] = []

    def make(*args: object, **options: object) -> str:
        made.append(_vdl_session_topics.take(*args, **options))
        return made[-1]

    yield make
    _vdl_session_topics.give_back(made)


@pytest.fixture
def vdl_topic(vdl_topics: MakeTopic) -> str:
    """Return the name of a fresh topic with one partition. It is a good name for a group, too."""
    return vdl_topics()
