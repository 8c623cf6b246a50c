"""A finding: the anomaly's name, its place and description, and the operations that prove it.

All checkers, in memory or elsewhere, use these names and texts, so that their verdicts can be
compared word by word.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TEXTS = {
    "inconsistent-offsets": "offset {offset} held {values}",
    "duplicate": "value {value} at offsets {first} and {last}",
    "lost-write": "value {value} at offset {offset} was never read",
    "unseen": "acknowledged value {value} (offset {offset}) is missing",
    "phantom": "value {value} was never sent",
    "aborted-read": "value {value} was read although its write had failed",
    "nonmonotonic-send": "offset {offset} after {before} by {proc}",
    "int-nonmonotonic-send": "offset {offset} after {before} by {proc}",
    "poll-skip": "offset {offset} after {before} by {proc}",
    "int-poll-skip": "offset {offset} after {before} by {proc}",
    "nonmonotonic-poll": "offset {offset} after {before} by {proc}",
    "int-nonmonotonic-poll": "offset {offset} after {before} by {proc}",
    "realtime-offset": "offset {offset} was assigned, although {known} was already known",
    "stale-read": "no record at {offset}, {late_s:.1f} s late",
    "truncated-read": "offset {offset} was read as {value}, then it was missing",
    "hw-regress": "{offset} after {known} in leader epoch {epoch}",
    "epoch-regress": "epoch {after} at {offset} after {epoch}",
    "two-leaders": "{node} and {other} both acknowledged in epoch {epoch}",
    "list-offsets: latest": "latest is {offset}, although {known} was acknowledged before",
    "list-offsets: earliest": "earliest is {offset}, although {first} still exists",
    "list-offsets: least": "{offset} for timestamp {timestamp}, but {least} matches",
    "list-offsets: later": "{offset} for timestamp {timestamp} has {found}",
}
"""Kind → text of the finding.

A kind is the anomaly's name; if a name has several texts, a colon and a word follow it.
"""


@dataclass(slots=True)
class Anomaly:
    """One finding: its name, key and detail, and the operations that prove it (`Op.i`)."""

    name: str
    key: str
    detail: str
    ops: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} {self.key}: {self.detail} (ops {', '.join(map(str, self.ops))})"


def anomaly(kind: str, key: str, ops: list[int], **facts: int | float | str | None) -> Anomaly:
    """Return a finding of a kind in TEXTS; `facts` are the fields of its text."""
    return Anomaly(name_of(kind), key, TEXTS[kind].format(**facts), ops)


def name_of(kind: str) -> str:
    """Return the anomaly's name of a kind."""
    return kind.partition(":")[0]
