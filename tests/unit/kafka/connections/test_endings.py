"""Reasons for which a server ends a connection.

The first word of a reason is its kind, and each kind is logged at most once a minute. Two events
that an operator must distinguish therefore need different first words.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.kafka.connections.test_frontend import frame as framed
from tests.unit.kafka.connections.test_frontend import header
from tests.unit.kafka.fake_host import World

CONNECTIONS = Path(__file__).resolve().parents[4] / "vdl" / "kafka" / "connections"
ENDS = {"abort", "close", "end"}


def reasons(tree: ast.AST) -> Iterator[str]:
    """Yield all reasons for which sessions are ended; substituted fields are in braces."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[reason]) if name in ENDS:
                pass
            case ast.Assign(targets=[ast.Attribute(attr="ending")], value=reason):
                pass
            case _:
                continue
        if isinstance(reason, ast.Constant | ast.JoinedStr):
            text = ast.unparse(reason).removeprefix("f")[1:-1]
            if text:
                yield text


def test_reasons_of_different_ends_begin_with_different_words() -> None:
    by_kind: dict[str, set[str]] = defaultdict(set)
    for file in sorted(CONNECTIONS.glob("*.py")):
        for reason in reasons(ast.parse(file.read_text(encoding="utf-8"))):
            by_kind[reason.partition(" ")[0]].add(reason)
    assert len(by_kind) > 12
    assert {"idle", "stopping", "certificate:", "{who}:", "login:"} <= set(by_kind)
    assert {kind: texts for kind, texts in by_kind.items() if len(texts) > 1} == {}


@pytest.mark.parametrize("is_again", [False, True])
def test_ends_within_a_minute_are_told_once_for_each_kind(is_again: bool) -> None:
    """A scanner, which sends no frames, does not hide a client that sends bad requests."""
    world = World()
    scanner, broken = b"GET / HTTP/1.1\r\n\r\n", framed(header(3, 1))
    for data in (scanner, scanner, broken, scanner) if is_again else (scanner, broken):
        world.client().session.receive(data)
        world.run()
    told = [str(fields["reason"]).partition(" ")[0] for _, _, fields in world.log.events]
    assert told == ["unreadable:", "malformed"]
    assert world.frontend.connections_ended["unreadable:"] == (3 if is_again else 1)
