"""The same requests to Kafka and to VDL, three servers each: answers are compared field by field.

`make differential`. Skipped where Kafka cannot be started; it is no part of `make test`.
DIFFERENTIAL names two running clusters, as `KAFKA;VDL`, and DIFFERENCES a file to which all
unlisted differences are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.differential.compare import differences, unlisted
from tests.differential.conftest import Pair
from tests.differential.scenarios import (
    access,
    cluster,
    configs,
    groups,
    metadata,
    modern_groups,
    reading,
    topics,
    transactional,
    writing,
)
from tests.differential.side import Side

SHOWN_MAX = 60

Scenario = Callable[[Side], None]
SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for module in (
        metadata,
        topics,
        writing,
        reading,
        groups,
        configs,
        cluster,
        transactional,
        modern_groups,
        access,
    )
    for scenario in module.SCENARIOS
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_answers_are_kafkas(pair: Pair, name: str) -> None:
    """Each answer is Kafka's, except for those that `known.toml` lists."""
    sides = [
        Side(which, bootstrap, pair.versions, f"d{pair.token}.{name}")
        for which, bootstrap in pair.bootstraps.items()
    ]
    try:
        with ThreadPoolExecutor() as pool:
            for running in [pool.submit(SCENARIOS[name], side) for side in sides]:
                running.result()
    finally:
        for side in sides:
            side.close()
    kafka, vdl = sides
    assert kafka.answers or kafka.left_out, "nothing was asked"
    found = differences(name, kafka.answers, vdl.answers)
    left = unlisted(found, pair.known)
    if path := os.environ.get("DIFFERENCES"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{difference}\n" for difference in left)
    if not kafka.left_out:
        pair.ran.add(name)
    shown = "\n".join(map(str, left[:SHOWN_MAX]))
    assert not left, f"{len(left)} differences that are not in known.toml:\n{shown}"
    if kafka.left_out and not kafka.answers:
        pytest.skip(f"not offered here: {sorted(kafka.left_out)}")


def test_known_differences_are_still_there(pair: Pair) -> None:
    """A row of the list that matches nothing any more has to be removed."""
    gone = [row.where for row in pair.known if row.scenario in pair.ran and not row.used]
    assert not gone, f"known.toml lists what is no longer so: {gone}"
