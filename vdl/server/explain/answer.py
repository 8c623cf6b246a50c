"""The shape of an answer: findings, the most important first.

Does not depend on how findings are made, or on how answers are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vdl.server.explain.event_words import sentence
from vdl.server.explain.facts import Seen

EVIDENCE_MAX: Final = 8
RUNBOOK: Final = "deploy/runbook.md"
NOTHING_WRONG: Final = "nothing_wrong"


@dataclass(slots=True)
class Finding:
    """One thing that is so, and why."""

    kind: str
    summary: str
    """One sentence that says how it is."""
    cause: str
    next: str
    """The next step."""
    page: str
    """Page of the runbook."""
    evidence: Sequence[Seen] = field(default=())
    """Events, the latest first."""
    at_ms: int = 0
    """Time of the cause, ms since 1970; 0: not known."""
    server: int = 0
    """Server of the cause; 0: none."""
    is_wrong: bool = True

    def __post_init__(self) -> None:
        if self.evidence and not self.at_ms:
            self.at_ms = self.evidence[0].first_ms
        if self.evidence and not self.server:
            self.server = self.evidence[0].server

    def as_json(self) -> dict[str, Any]:
        """Return the object of docs/cli.md."""
        return {
            "kind": self.kind,
            "wrong": self.is_wrong,
            "summary": self.summary,
            "cause": self.cause,
            "at_ms": self.at_ms or None,
            "server": self.server or None,
            "next": self.next,
            "page": f"{RUNBOOK}#{self.page}",
            "evidence": [
                {
                    "server": seen.server,
                    "event": seen.event,
                    "text": sentence(seen),
                    "first_ms": seen.first_ms,
                    "last_ms": seen.last_ms,
                    "count": seen.count,
                    "fields": seen.fields,
                }
                for seen in self.evidence[:EVIDENCE_MAX]
            ],
        }


def answer(
    about: dict[str, Any], findings: Iterable[Finding], unknown: Iterable[str]
) -> dict[str, Any]:
    """Return the document of docs/cli.md: the first finding that is wrong, or else the first one,
    and the others."""
    found = list(findings)
    found.sort(key=lambda one: not one.is_wrong)
    first, *others = found
    return {
        "about": about,
        "ok": not any(one.is_wrong for one in found),
        **first.as_json(),
        "also": [one.as_json() for one in others],
        "unknown": list(dict.fromkeys(unknown)),
    }
