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


@pytest.fixture
def vdl_topics(vdl_cluster: Cluster) -> Iterator[MakeTopic]:
    """Yield a function that creates topics for this test. They are deleted after it."""
    made: list[str] = []

    def make(*args: object, **options: object) -> str:
        made.append(vdl_cluster.topic(*args, **options))  # type: ignore[arg-type]  # checked there
        return made[-1]

    yield make
    vdl_cluster.delete_topics(*made)


@pytest.fixture
def vdl_topic(vdl_topics: MakeTopic) -> str:
    """Return the name of a fresh topic with one partition. It is a good name for a group, too."""
    return vdl_topics()
