"""The answer of a state machine to a command that another server sent: a code, and bytes.

It crosses a link, so it is no more than that. What the bytes mean is said with the command.

Must not know: commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vdl.errors import ErrorCode


@dataclass(slots=True)
class CommandAnswer:
    """See the module."""

    error: ErrorCode
    data: bytes = b""
    events: list[Any] = field(default_factory=list)
    """For the coordinator that leads where it was applied; they stay there."""
