"""Prose of the source: standard words, subject first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.test_source import FILES, ROOT, comments

WORDS = re.compile(
    r"\b(nobody|whoever|whosoever|(?:is|are|was|were|be|been) told|founders)\b",
    re.IGNORECASE,
)
"""Words that say less than the field's own: *no client*, *any*, *is notified*, *initial voters*."""
OPENINGS = re.compile(r"(?:What|Whether|Of|Who|Whoever|Whose) ")
"""The subject comes first: *Return True if ...*, *Bytes of ...*."""


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring and comment."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                yield node.lineno, value
    for line, text in comments(path):
        yield line, text.lstrip("# ")


def test_words_are_judged() -> None:
    """The rules of this module, by example."""
    assert WORDS.search("Clients are told later.")
    assert not WORDS.search("The told-off client.")
    assert OPENINGS.match("Whether it leads.")
    assert not OPENINGS.match("Offsets of a partition.")


def test_prose_has_standard_words() -> None:
    """Docstrings and comments of every file."""
    found = []
    for path in FILES:
        name = path.relative_to(ROOT)
        if path == Path(__file__):
            continue
        for line, text in prose(path):
            if WORDS.search(text) or OPENINGS.match(text):
                found.append(f"{name}:{line}: {text.splitlines()[0]}")
    assert found == []
