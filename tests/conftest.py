"""Settings common to all tests: required external tools, how examples are drawn, who takes turns.

A property is tried with examples that depend on the test alone, so that two runs over the same code
give the same result, also a year apart. `make examples` draws others each time. No example has a
time limit: its duration depends on the load of the machine.

A test marked `java`, `go` or `node` drives a real client in that language. On a machine without the
tool it is skipped; under CI it fails, because a check that silently did not run is no check.
"""

import gc
import os
import shutil

import pytest
from hypothesis import settings

from tests.parts import without_turn

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("fixed")

TOOLS = {"java": ("java", "javac"), "go": ("go",), "node": ("node", "npm")}
"""Marker -> the commands that it needs."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = without_turn(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """Exempt what is loaded by now from the collector's search for garbage.

    Thousands of tests and their modules are permanent; each full search would visit them all.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, commands in TOOLS.items():
        if item.get_closest_marker(marker) is None:
            continue
        missing = [command for command in commands if shutil.which(command) is None]
        if not missing:
            continue
        reason = f"needs {' and '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}, which CI must have", pytrace=False)
        pytest.skip(reason)
