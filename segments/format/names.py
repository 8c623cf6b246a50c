"""Names in a data directory: recognition and parsing of the store's own. Others are left alone.

Does not depend on the contents of files.
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
"""Names of the store's own in the data directory itself."""
FIRST = frozenset(("lock", "identity.new"))
"""Names that a first start may leave if it is cut before there is an identity."""
_FOREIGN = frozenset(("lost+found",))
"""Names that a file system creates in its root."""
_JOURNAL = re.compile(r"([0-9a-f]{16})\.journal")
_LOG = re.compile(r"[0-9a-f]{8}")
_SEGMENT = re.compile(r"([0-9]{10})(?:\.([0-9a-f]{2}))?\.(log|index)")
SEQUENCE_BITS = 26
"""Number of low bits of a log segment's number that are its sequence in the log. The bits above
count how often it was rewritten."""
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
VERSION_MAX = (1 << 32 - SEQUENCE_BITS) - 1
COMPACTION = "compaction"
"""Name of the compaction note in a log's directory."""


def says_nothing(name: str) -> bool:
    """Return True for names that a file system or a desktop may create anywhere.

    A directory with only such names is empty.
    """
    return name in _FOREIGN or name.startswith(".")


def journal_sequence(name: str) -> int | None:
    """Return the sequence of a journal file; None if the name is not one."""
    found = _JOURNAL.fullmatch(name)
    return int(found[1], 16) if found else None


def is_journal_begun(name: str) -> bool:
    """Return True for a journal file that was being filled when its process died."""
    return name.endswith(".new") and journal_sequence(name.removesuffix(".new")) is not None


def log_id_of(name: str) -> LogId | None:
    """Return the id of the log whose directory has this name; None if the name is not one."""
    return LogId(int(name, 16)) if _LOG.fullmatch(name) else None


def segment_number(name: str) -> tuple[str, int] | None:
    """Return ("log" or "index", number) of a segment file; None if the name is not one."""
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
    """Return the name of a log segment's file."""
    version = number >> SEQUENCE_BITS
    again = f".{version:02x}" if version else ""
    return f"{sequence_of(number):010d}{again}.log"


def sequence_of(number: int) -> int:
    """Return the segment's sequence in its log, without the count of rewritings."""
    return number & SEQUENCE_MAX


def rewritten(number: int) -> int:
    """Return the number of a segment after one more rewriting.

    Of two existing files, one is always the rewriting of the other: the older is removed before the
    next is made.
    """
    version = (number >> SEQUENCE_BITS) % VERSION_MAX + 1
    return version << SEQUENCE_BITS | sequence_of(number)


def is_begun(name: str) -> bool:
    """Return True for a file of a log that was being written when its process died."""
    whole = name.removesuffix(".new")
    return name != whole and (segment_number(whole) is not None or whole == COMPACTION)


def log_directory(directory: str, log_id: LogId) -> str:
    """Return the directory of a log's segments."""
    return f"{directory}/logs/{log_id:08x}"


def segment_path(log_directory: str, number: int) -> str:
    """Return the path of a log segment of the log in that directory."""
    return f"{log_directory}/{segment_name(number)}"
