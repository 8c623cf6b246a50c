"""Failpoints: places where a test, or an operator on a spare machine, makes the store fail.

`VDL_FAILPOINTS=journal.after_sync:kill@3,checkpoint.flushed:delay(200),identity.written:error`

The name is the place; then follows the action: `kill` (SIGKILL to this process), `delay(ms)`,
`error` (OSError EIO) or `enospc` (OSError ENOSPC). `@n` limits it to the n-th time the place is
passed; without it, the action happens every time. `error` and `enospc` are for places inside a job,
where a real disk would raise them; the table marks these. The variable is read once, when the
module is loaded; a server that starts with it set reports so in `Store.stats()`.

`hit` is called before or after disk access, never per entry. Unarmed, it costs one look-up in an
empty dict.

Does not depend on what is done at the places.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

VARIABLE = "VDL_FAILPOINTS"

POINTS: dict[str, str] = {
    # name: (job|loop) what has happened, what has not
    "append.staged": "loop: entries are in the tail, no block has them",
    "truncate.staged": "loop: a suffix was cut and replaced, no block says so",
    "reset.staged": "loop: a snapshot was installed, no block says so",
    "trim.staged": "loop: a prefix was removed, no block says so",
    "hard.staged": "loop: term, vote or commit have changed, no block says so",
    "journal.before_sync": "job: a block is about to be written",
    "journal.torn": "job: a block is written in part, not synced",
    "journal.after_sync": "job: a block is on disk, the loop does not know",
    "payload.before_sync": "job: what a block refers to is about to be written to segments",
    "payload.torn": "job: a part of it is written, not synced",
    "payload.after_sync": "job: it is on disk, the loop does not know",
    "journal.partly": "loop: a batch larger than a file is on disk in part",
    "journal.rolled": "loop: the first block of a new file is on disk",
    "journal.file_created": "job: the next file is being filled with zeros",
    "journal.file_filled": "job: it is synced and has no name yet",
    "journal.file_named": "job: it has its name, not durably",
    "journal.recycled": "job: a released file has its new name, not durably",
    "journal.before_release": "job: files nobody needs are about to be removed",
    "journal.released": "job: they are removed, not durably",
    "checkpoint.begun": "job: nothing is written yet",
    "flush.created": "job: a segment file exists, its header may be cut short",
    "flush.written": "job: frames are written, not synced",
    "flush.sealed": "job: a segment is full and synced",
    "flush.room": "job: a segment has room for payloads, or is begun for them, not durably",
    "room.removed": "job: a file begun for payloads, that none is in, is gone, not durably",
    "room.cut": "job: a file is cut behind all that has a place, not durably",
    "flush.done": "job: all of one log's frames are synced",
    "index.created": "job: an index file exists and is empty",
    "index.written": "job: Idx are written, not synced",
    "checkpoint.flushed": "job: segments are written, meta is not",
    "meta.before_commit": "job: the transaction is about to be written",
    "meta.committed": "job: it is durable, the loop does not know",
    "checkpoint.noted": "loop: FLUSHED is staged, no block has it",
    "trim.begun": "job: the record is durable, the segments are all there",
    "trim.removed": "job: one segment is removed",
    "compact.begun": "job: a segment is to be written anew, nothing is in the new file",
    "compact.written": "job: all of it is synced and has no name yet",
    "compact.named": "job: it has its name, not durably; Idx speak of the old one",
    "compact.indexed": "job: Idx speak of the new one, the loop does not know",
    "compact.removed": "job: an old file is gone, not durably",
    "compact.join_begun": "job: segments are to be joined, nothing is in the new file",
    "compact.join_written": "job: all of it is synced and has no name yet",
    "compact.join_named": "job: it has its name; Idx speak of the old ones",
    "compact.join_indexing": "job: some Idx speak of the new one",
    "compact.join_indexed": "job: all do, the loop does not know; the old ones are there",
    "compact.noting": "job: how far the log is compacted is synced under another name",
    "compact.noted": "job: it is durable, the loop does not know",
    "remove.begun": "job: files of a reset or deleted log are about to go",
    "remove.moved": "job: they are moved aside, not durably",
    "remove.removed": "job: they are gone",
    "delete.forgotten": "job: the log's meta is gone too",
    "identity.before_write": "job: the new identity is about to be written",
    "identity.written": "job: it is synced under another name",
    "identity.renamed": "job: it has its name, not durably",
    "identity.durable": "job: it is durable, the loop does not know",
    "open.recovered": "start: everything is read, nothing is written",
    "open.carried": "start: the first block is on disk, stale files are still there",
    "open.done": "start: stale files are gone",
}


@dataclass(slots=True)
class Action:
    """Action at a place: `kind` is kill, delay, error, enospc or call."""

    kind: str
    call: Callable[[], None] | None = None
    delay_ms: int = 0
    nth: int = 0
    passed: int = 0


_PLACE = re.compile(r"([a-z_.]+):(kill|error|enospc|delay\((\d+)\))(?:@(\d+))?$")
_lock = threading.Lock()
armed: dict[str, Action] = {}


def parse(text: str) -> dict[str, Action]:
    """Return the actions by name. Raises ValueError."""
    actions: dict[str, Action] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _PLACE.match(part)
        if match is None:
            raise ValueError(f"{VARIABLE}: {part!r} is not name:action[@n]")
        name, action, delay_ms, nth = match.groups()
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}: there is no {name!r}")
        kind = action.partition("(")[0]
        actions[name] = Action(kind, delay_ms=int(delay_ms or 0), nth=int(nth or 0))
    return actions


def arm(text: str) -> None:
    """Replace the armed actions; "" disarms all. Raises ValueError."""
    actions = parse(text)
    armed.clear()
    armed.update(actions)


def watch(name: str, call: Callable[[], None]) -> None:
    """Call `call` whenever the place is passed, instead of the action armed there.

    For a simulation, in which all servers are in one process.
    """
    assert name in POINTS, name
    armed[name] = Action("call", call)


def unwatch(name: str) -> None:
    """Disarm the place, if it is armed."""
    armed.pop(name, None)


def hit(name: str) -> None:
    """Mark that this place is passed, and do what is armed there. Raises OSError if armed to."""
    if armed and name in armed and is_due(name):
        _act(armed[name], name)


def is_due(name: str) -> bool:
    """Return True if the place acts this time; count the pass."""
    action = armed.get(name)
    if action is None:
        return False
    with _lock:  # pool threads may pass at the same time
        action.passed += 1
        return action.nth in {0, action.passed}


def act(name: str) -> None:
    """Do what is armed at a place for which `is_due` returned True."""
    _act(armed[name], name)


def _act(action: Action, name: str) -> None:
    if action.call is not None:
        action.call()
    elif action.kind == "kill":
        signal.raise_signal(signal.SIGKILL)
    elif action.kind == "delay":
        time.sleep(action.delay_ms / 1000)
    else:
        code = errno.ENOSPC if action.kind == "enospc" else errno.EIO
        raise OSError(code, f"failpoint {name}")


arm(os.environ.get(VARIABLE, ""))
