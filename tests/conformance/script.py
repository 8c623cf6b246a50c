"""Parser of data-driven test files.

A file is a list of blocks separated by blank lines. A block: comment lines (`#`), one directive
line, optional input lines, `----`, then the expected output up to the next blank line, or, when it
holds blank lines, between a doubled `----` and the next doubled one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SEPARATOR = "----"
_ARGUMENT = re.compile(r"(?P<key>[^\s=()]+)(?:=(?:\((?P<list>[^)]*)\)|(?P<value>[^\s()]*)))?")


@dataclass(slots=True)
class Block:
    """One directive with its input and its expected output."""

    line: int
    """Line of the directive, counted from 1."""
    command: str
    positional: list[str] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)
    input: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def ids(self) -> list[int]:
        """Return the positional arguments as node ids."""
        return [int(argument) for argument in self.positional]

    def one(self, key: str, default: str = "") -> str:
        """Return a named argument with a single value."""
        values = self.named.get(key)
        if values is None:
            return default
        if len(values) != 1:
            raise ValueError(f"line {self.line}: {key} takes one value, not {values}")
        return values[0]

    def flag(self, key: str) -> bool:
        """Return a named boolean; False when missing."""
        return {"true": True, "false": False}[self.one(key, "false")]


def blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of a file."""
    lines = path.read_text().splitlines()
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if not line.strip() or line.startswith("#"):
            continue
        block = _directive(line, position)
        while position < len(lines) and lines[position] != _SEPARATOR:
            block.input.append(lines[position])
            position += 1
        position = _expected(lines, position + 1, block)
        yield block


def _directive(line: str, number: int) -> Block:
    command, _, rest = line.partition(" ")
    block = Block(number, command)
    for match in _ARGUMENT.finditer(rest):
        key = match["key"]
        if match["list"] is not None:
            block.named[key] = [value.strip() for value in match["list"].split(",")]
        elif match["value"] is not None:
            block.named[key] = [match["value"]]
        else:
            block.positional.append(key)
    return block


def _expected(lines: list[str], position: int, block: Block) -> int:
    holds_blank_lines = position < len(lines) and lines[position] == _SEPARATOR
    if holds_blank_lines:
        position += 1
    while position < len(lines):
        line = lines[position]
        position += 1
        if holds_blank_lines and line == _SEPARATOR:
            # The closing separator is doubled too.
            return position + 1
        if not holds_blank_lines and not line.strip():
            return position
        block.expected.append(line)
    return position
