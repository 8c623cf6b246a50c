"""Functions get the bodies that they have in another file, or the worker refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.worker import Functions

SOURCE = """
from contextlib import contextmanager

LIMIT = 3

def twice(number, *, by=2):
    return number * by

@contextmanager
def opened():
    yield 1

class Counter:
    start = 0

    @property
    def next(self):
        return self.start + 1

    @staticmethod
    def largest(numbers):
        return max(n for n in numbers)

def adder(count):
    def add(number):
        return number + count
    return add

add_five = adder(5)
"""

Replace = Callable[[str, str], bool]


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    """Yield the source as an imported module."""
    file = tmp_path / "planted_in.py"
    file.write_text(SOURCE)
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    exec(compile(SOURCE, str(file), "exec"), vars(module))
    sys.modules[file.stem] = module
    yield module
    del sys.modules[file.stem]


@pytest.fixture
def replace(module: ModuleType, tmp_path: Path) -> Replace:
    """Return a function that replaces text of the source.

    It returns True if the functions have it now.
    """
    functions = Functions()

    def replace(old: str, new: str) -> bool:
        assert old in SOURCE
        changed = tmp_path / "changed.py"
        # The position of a function does not matter.
        changed.write_text("\n\n" + SOURCE.replace(old, new))
        return functions.replace({module.__name__: str(changed)})

    return replace


def test_bodies_are_replaced_wherever_their_functions_are_held(
    module: ModuleType, replace: Replace
) -> None:
    held = module.twice, module.opened
    assert replace("number * by", "LIMIT * by")
    assert held[0](7) == 6
    assert replace("yield 1", "yield 8")
    with held[1]() as found:
        assert found == 8


def test_methods_are_replaced_in_the_class_there_is(module: ModuleType, replace: Replace) -> None:
    counter = module.Counter()
    assert replace("self.start + 1", "self.start + 2")
    assert counter.next == 2
    assert replace("max(n for", "min(n for")
    assert counter.largest([4, 5]) == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("by=2", "by=3"),
        ("number, *, by", "by, *, number"),
        ("start = 0", "start = 1"),
        ("@staticmethod", "@classmethod"),
        ("class Counter:", "class Counter(dict):"),
        # A closure created before keeps its old body.
        ("number + count", "number - count"),
    ],
)
def test_what_is_more_than_a_body_is_refused(
    module: ModuleType, replace: Replace, old: str, new: str
) -> None:
    assert not replace(old, new)
    assert module.twice(7) == 14
    assert module.add_five(1) == 6


def test_module_that_nobody_has_loaded_is_refused(tmp_path: Path) -> None:
    assert not Functions().replace({"no.such": str(tmp_path)})
