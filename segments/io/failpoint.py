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
    "append.staged": "loop: entries are in the tail, not in a block",
    "truncate.staged": "loop: a suffix was truncated and replaced, not in a block",
    "reset.staged": "loop: a snapshot was installed, not in a block",
    "trim.staged": "loop: a prefix was removed, not in a block",
    "hard.staged": "loop: term, vote or commit have changed, not in a block",
    "journal.before_sync": "job: a block is about to be written",
    "journal.torn": "job: a block is partly written, not synced",
    "journal.after_sync": "job: a block is synced, the loop is not notified",
    "payload.before_sync": "job: payloads of a block, or a step of a large one, are to be written",
    "payload.torn": "job: payloads are partly written, not synced",
    "payload.after_sync": "job: payloads are synced, the loop is not notified",
    "journal.partly": "loop: a batch larger than a file is partly on disk",
    "journal.rolled": "loop: the first block of a new file is on disk",
    "journal.file_created": "job: the next file is being filled with zeros",
    "journal.file_filled": "job: the next file is synced, not named",
    "journal.file_named": "job: the next file is named, the name not synced",
    "journal.recycled": "job: a released file is renamed, the name not synced",
    "journal.before_release": "job: unneeded files are about to be removed",
    "journal.released": "job: unneeded files are removed, the folder not synced",
    "checkpoint.begun": "job: a checkpoint has begun, nothing is written",
    "flush.created": "job: a segment file exists, its header may be truncated",
    "flush.written": "job: frames are written, not synced",
    "flush.sealed": "job: a segment is full and synced",
    "flush.room": "job: a segment has space for payloads or was created for them, not synced",
    "room.removed": (
        "job: a segment created for payloads, but without any, is removed, the folder not synced"
    ),
    "room.cut": "job: a segment is truncated after its last payload, not synced",
    "flush.done": "job: all frames of a log are synced",
    "index.created": "job: an index file exists and is empty",
    "index.written": "job: index records are written, not synced",
    "checkpoint.flushed": "job: segments are written, the meta is not",
    "meta.before_commit": "job: the transaction of the meta is about to be written",
    "meta.committed": "job: the transaction is durable, the loop is not notified",
    "checkpoint.noted": "loop: FLUSHED is staged, not in a block",
    "trim.begun": "job: the trim record is durable, all segments exist",
    "trim.removed": "job: one segment is removed",
    "compact.begun": "job: a segment is about to be rewritten, the new file is empty",
    "compact.written": "job: the new file is synced, not named",
    "compact.named": (
        "job: the new file is named, the name not synced; the index describes the old one"
    ),
    "compact.indexed": "job: the index describes the new file, the loop is not notified",
    "compact.removed": "job: an old file is removed, the folder not synced",
    "compact.join_begun": "job: segments are about to be joined, the new file is empty",
    "compact.join_written": "job: the joined file is synced, not named",
    "compact.join_named": "job: the joined file is named; the indexes describe the old ones",
    "compact.join_indexing": "job: some indexes describe the joined file",
    "compact.join_indexed": (
        "job: all indexes describe the joined file, the loop is not notified; the old files exist"
    ),
    "compact.noting": "job: the progress of compaction is synced under a temporary name",
    "compact.noted": "job: the progress of compaction is durable, the loop is not notified",
    "remove.begun": "job: files of a reset or deleted log are about to be removed",
    "remove.moved": "job: the files are moved aside, the folder not synced",
    "remove.removed": "job: the files are removed",
    "delete.forgotten": "job: the meta of the log is removed too",
    "identity.before_write": "job: the new identity is about to be written",
    "identity.written": "job: the new identity is synced under a temporary name",
    "identity.renamed": "job: the new identity is named, the name not synced",
    "identity.durable": "job: the new identity is durable, the loop is not notified",
    "open.recovered": "start: recovery has read everything, nothing is written",
    "open.carried": "start: the first block is on disk, stale files still exist",
    "open.done": "start: stale files are removed",
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
            raise ValueError(f"{VARIABLE}: unknown failpoint {name!r}")
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
