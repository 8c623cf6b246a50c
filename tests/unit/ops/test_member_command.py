"""`vdl member remove` says what it waits for, also where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ids import ServerId
from rpc.admin import Member, MemberChanged
from vdl.commands.app import run_app
from vdl.commands.changes import member_changes


class Client:
    """Admin client of a server that answers with one list of members after the other."""

    def __init__(self, reasons: list[str]) -> None:
        self._reasons = reasons

    def members(self) -> list[Member]:
        if not self._reasons:
            return []
        reason = self._reasons.pop(0)
        blocking = "t-0" if reason else ""
        return [Member(ServerId(4), "leaving", replicas=2, blocking=blocking, reason=reason)]

    def change_member(self, *change: object) -> MemberChanged:
        return MemberChanged(0)


def test_removal_without_a_terminal_says_once_what_blocks_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A move that goes on from look to look gets no line."""
    client = Client(["server 2 takes it", "full", "full", "full", "", "down", "down"])

    def call(connection: object, ask: Callable[[Client], object], **_: object) -> object:
        return ask(client)

    monkeypatch.setattr(member_changes, "call_servers", call)
    monkeypatch.setattr(member_changes, "POLL_SECONDS", 0)
    assert run_app(["member", "remove", "4", "--bootstrap", "127.0.0.1:1"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "server 4 leaves: 2 partitions left; t-0: full",
        "server 4 leaves: 2 partitions left; t-0: down",
    ]
    assert captured.out == "server 4: not in the cluster\n"
