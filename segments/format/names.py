"""Names in a data directory: which are the store's own, and what they say. Others are left alone.

Must not know: what the files hold.
"""

from __future__ import annotations

import re

from ids import LogId

ROOT = frozenset(
    (
        "identity", "identity.new", "format", "format.new", "lock", "journal", "logs", "deleted",
        "reserve", "meta", "meta.new", "meta.damaged", "peers",
    )
)  # fmt: skip
"""Names of the store's own beside each other."""
FIRST = frozenset(("lock", "identity.new"))
"""What a first start leaves when it is cut before there is an identity."""
_FOREIGN = frozenset(("lost+found",))
"""What a file system puts into its own root."""
_JOURNAL = re.compile(r"([0-9a-f]{16})\.journal")
_LOG = re.compile(r"[0-9a-f]{8}")
_SEGMENT = re.compile(r"([0-9]{10})(?:\.([0-9a-f]{2}))?\.(log|index)")
SEQUENCE_BITS = 26
"""Of a log segment's number: which one of its log it is. The bits above say how often it was
rewritten."""
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
VERSION_MAX = (1 << 32 - SEQUENCE_BITS) - 1
COMPACTION = "compaction"
"""What a log's directory calls the note of how far it is compacted."""


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


def log_id_of(name: str) -> LogId | None:
    """The id of the log whose directory has this name."""
    return LogId(int(name, 16)) if _LOG.fullmatch(name) else None


def segment_number(name: str) -> tuple[str, int] | None:
    """("log" or "index", number) of a segment file."""
    found = _SEGMENT.fullmatch(name)
    if not found:
        return None
    number, version, kind = int(found[1]), int(found[2] or "0", 16), found[3]
    if found[2] is None:
        return kind, number
    if kind == "index" or not 0 < version <= VERSION_MAX or number > SEQUENCE_MAX:
        return None
    return kind, version << SEQUENCE_BITS | number


def segment_name(number: int) -> str:
    """The name of a log segment's file."""
    version = number >> SEQUENCE_BITS
    again = f".{version:02x}" if version else ""
    return f"{sequence_of(number):010d}{again}.log"


def sequence_of(number: int) -> int:
    """Which of its log's segments it is, however often it was rewritten."""
    return number & SEQUENCE_MAX


def rewritten(number: int) -> int:
    """The number of a segment that is rewritten once more. Of two that are there, one is always
    the other's: the older goes before the next is made."""
    version = (number >> SEQUENCE_BITS) % VERSION_MAX + 1
    return version << SEQUENCE_BITS | sequence_of(number)


def is_begun(name: str) -> bool:
    """A file of a log that was being written when its process died."""
    whole = name.removesuffix(".new")
    return name != whole and (segment_number(whole) is not None or whole == COMPACTION)


def log_directory(directory: str, log_id: LogId) -> str:
    """Where a log's segments lie."""
    return f"{directory}/logs/{log_id:08x}"


def segment_path(log_directory: str, number: int) -> str:
    """A log segment of the log in that directory."""
    return f"{log_directory}/{segment_name(number)}"
