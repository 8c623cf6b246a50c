"""Names in a data directory: which are the store's own, and what they say. Others are left alone.

Must not know: what the files hold.
"""

from __future__ import annotations

import re

ROOT = frozenset(
    (
        "identity", "identity.new", "lock", "journal", "logs", "deleted", "reserve", "meta",
        "meta.new", "meta.damaged",
    )
)  # fmt: skip
"""Names of the store's own beside each other."""
FIRST = frozenset(("lock", "identity.new"))
"""What a first start leaves when it is cut before there is an identity."""
_FOREIGN = frozenset(("lost+found",))
"""What a file system puts into its own root."""
_JOURNAL = re.compile(r"([0-9a-f]{16})\.journal")
_LOG = re.compile(r"[0-9a-f]{8}")
_SEGMENT = re.compile(r"([0-9]{10})\.(log|index)")


def says_nothing(name: str) -> bool:
    """A file system or a desktop may put this anywhere: a directory that holds nothing else is
    empty."""
    return name in _FOREIGN or name.startswith(".")


def journal_sequence(name: str) -> int | None:
    """The sequence of a journal file; None: this is no name of one."""
    found = _JOURNAL.fullmatch(name)
    return int(found[1], 16) if found else None


def is_journal_begun(name: str) -> bool:
    """A journal file that was being filled when its process died."""
    return name.endswith(".new") and journal_sequence(name.removesuffix(".new")) is not None


def log_id_of(name: str) -> int | None:
    """The id of the log whose directory has this name."""
    return int(name, 16) if _LOG.fullmatch(name) else None


def segment_number(name: str) -> tuple[str, int] | None:
    """("log" or "index", number) of a segment file."""
    found = _SEGMENT.fullmatch(name)
    return (found[2], int(found[1])) if found else None
