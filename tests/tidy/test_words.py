"""Prose of the source: standard words, subject first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.test_source import FILES, ROOT, comments

PRODUCT = frozenset({"ids", "raft", "rpc", "segments", "vdl"})

WORDS = re.compile(
    r"\b(nobody|whoever|whosoever|(?:is|are|was|were|be|been) told|founders)\b",
    re.IGNORECASE,
)
"""Words that say less than the field's own: *no client*, *any*, *is notified*, *initial voters*."""
OPENINGS = re.compile(r"(?:What|Whether|Of|Who|Whoever|Whose) ")
"""The subject comes first: *Return True if ...*, *Bytes of ...*."""
SHOWN = re.compile(rf"{WORDS.pattern}|\b(somebody|anybody|so many|luck|for ever)\b", re.IGNORECASE)
"""Words that no log line, answer, help or error contains either: *another user*, *no limit*."""
SHOWN_OPENINGS = re.compile(rf"{OPENINGS.pattern}|How ")
"""A description of a value begins with its noun: *Number of ...*, *Time between ...*."""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement below a module or statement, and none of their expressions."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, part, ()):
            yield child
            yield from statements(child)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring and comment."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                yield node.lineno, value
    for line, text in comments(path):
        yield line, text.lstrip("# ")


def shown(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each string that may be shown: not a docstring, more than one word.

    The constant parts of an f-string are separate texts.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            value = node.value
            if isinstance(value, str) and " " in value.strip():
                yield node.lineno, value


def test_words_are_judged() -> None:
    """The rules of this module, by example."""
    assert WORDS.search("Clients are told later.")
    assert not WORDS.search("The told-off client.")
    assert OPENINGS.match("Whether it leads.")
    assert not OPENINGS.match("Offsets of a partition.")
    assert SHOWN.search("-1: for ever")
    assert SHOWN_OPENINGS.match("How many.")
    assert not SHOWN_OPENINGS.match("However fast.")


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


def test_shown_texts_are_found(tmp_path: Path) -> None:
    """Docstrings and single words are not; parts of f-strings are."""
    file = tmp_path / "a.py"
    file.write_text('"""The module."""\nkey = "a.b"\ntext = f"{key} is told"\n', encoding="utf-8")
    assert list(shown(file)) == [(3, " is told")]


def test_shown_texts_have_standard_words() -> None:
    """Texts of logs, answers, help, metrics and errors of the product."""
    found = []
    for path in FILES:
        name = path.relative_to(ROOT)
        if name.parts[0] not in PRODUCT:
            continue
        for line, text in shown(path):
            if SHOWN.search(text) or SHOWN_OPENINGS.match(text):
                found.append(f"{name}:{line}: {text.splitlines()[0]}")
    assert found == []
