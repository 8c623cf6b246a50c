"""Answer of a state machine to a command that another server sent: a code, and bytes.

It crosses a link, so it is no more than that. The command defines the meaning of the bytes.

Does not depend on commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vdl.errors import ErrorCode


@dataclass(slots=True)
class CommandAnswer:
    """Code and data for the sender of the command; see the module."""

    error: ErrorCode
    data: bytes = b""
    events: list[Any] = field(default_factory=list)
    """Events for the coordinator's leader, if it is on this server. They are not sent."""
