"""Bugs of public vulnerabilities, planted: the patches are well-formed, and tests catch them."""

from __future__ import annotations

import ast
import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.planted.planted import PACKAGES, ROOT, copy_tree, load_all, plant, run_tests, survivors

PLANTED_MIN = 15
DRAWN = 3
"""Number of bugs that CI runs, others with each change; `make planted` runs all."""
CITATION = re.compile(r"CVE-\d{4}-\d{4,}")


def test_planted_bugs_are_many_and_named_once() -> None:
    some = load_all()
    assert len(some) >= PLANTED_MIN
    assert [one.number for one in some] == list(range(1, len(some) + 1))
    assert len({one.name for one in some}) == len(some)


@pytest.mark.parametrize("one", load_all(), ids=lambda one: one.name)
def test_planted_bug_names_its_cve_and_test_and_applies(one, tmp_path: Path) -> None:
    assert CITATION.search(one.sentence)
    assert one.sentence.endswith(".")
    file, _, name = one.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
    for path in one.files:
        assert path.startswith(tuple(f"{package}/" for package in PACKAGES))
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    plant(one, tmp_path)
    for path in one.files:
        ast.parse((tmp_path / path).read_text(encoding="utf-8"))


def test_copy_has_what_the_tests_import(tmp_path: Path) -> None:
    """The copy has the imports of all planted bugs' tests.

    The drawn ones differ from commit to commit.
    """
    copy_tree(tmp_path)
    for path in sorted({one.test.partition("::")[0] for one in load_all()}):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests."):
                place = tmp_path / str(node.module).replace(".", "/")
                assert place.is_dir() or place.with_suffix(".py").is_file(), (path, node.module)


def test_some_that_are_drawn_are_caught(tmp_path: Path) -> None:
    """Drawn by the name of the commit, so that a run can be repeated."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    drawn = random.Random(head).sample(load_all(), DRAWN)
    copy_tree(tmp_path)
    clean = run_tests(tmp_path, sorted({one.test for one in drawn}))
    assert clean.returncode == 0, clean.stdout
    found = {one.name: complaint for one, complaint in survivors(drawn, tmp_path)}
    assert not any(found.values()), found
