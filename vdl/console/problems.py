"""Errors that a user of the console sees: a kind, a text, and a status of HTTP.

Does not depend on where they come from.
"""

from __future__ import annotations

from typing import Final, NoReturn

from vdl.errors import ERRORS_BY_CODE, ErrorCode

STATUSES: Final = {
    "bad_request": 400,
    "login_required": 401,
    "login_failed": 401,
    "forbidden": 403,
    "read_only": 403,
    "bad_origin": 403,
    "not_found": 404,
    "bad_method": 405,
    "too_large": 413,
    "wrong_host": 421,
    "too_many": 429,
    "failed": 500,
    "unreachable": 502,
    "busy": 503,
    "deadline": 504,
}
"""Kind → status."""

_FORBIDDEN = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
    }
)
_LATER = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class ConsoleError(Exception):
    """An answer other than the page that was asked for."""

    def __init__(self, kind: str, message: str, *, retry_after: int = 0) -> None:
        """`retry_after`: seconds; 0: none are said."""
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        return STATUSES[self.kind]

    def as_json(self) -> dict[str, object]:
        """Return the body of the answer."""
        error: dict[str, object] = {"kind": self.kind, "message": self.message}
        if self.retry_after:
            error["retry_after"] = self.retry_after
        return {"error": error}


class LoginEnded(Exception):
    """The server refuses the credential of a session that was logged in with it."""


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    found = ERRORS_BY_CODE.get(code)
    return f"error {code}" if found is None else found.name


def check_code(code: int, what: str, message: str | None = None) -> None:
    """Raise ConsoleError for an error code of Kafka about `what`; 0 is none."""
    if code:
        refuse(code, what, message)


def refuse(code: int, what: str, message: str | None = None) -> NoReturn:
    """Raise ConsoleError for an error code of Kafka about `what`."""
    text = f"{what}: {message or error_name(code)}"
    if code in _FORBIDDEN:
        raise ConsoleError("forbidden", f"{what}: not permitted ({error_name(code)})")
    if code in _NOT_FOUND:
        raise ConsoleError("not_found", f"{what}: not found ({error_name(code)})")
    if code == ErrorCode.REQUEST_TIMED_OUT:
        raise ConsoleError("deadline", text)
    if code in _LATER:
        raise ConsoleError("unreachable", text)
    raise ConsoleError("bad_request", text)
