"""Counts of the requests of one server, by API, and of what failed.

Does not depend on connections or on the meaning of requests.
"""

from __future__ import annotations

import traceback
from typing import Any

from vdl.errors import ErrorCode
from vdl.kafka.answer import Reply
from vdl.kafka.api import API, Api
from vdl.log import Log


class ApiStats:
    """Counters of one API since the start. `errors` counts handlers that raised."""

    __slots__ = ("bytes_in", "bytes_out", "errors", "requests", "total_ns")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.total_ns = 0


class RequestStats:
    """Counters of one server. Sessions add the requests that they answer to `by_api`."""

    __slots__ = ("_log", "_logged", "by_api", "handler_errors", "login_failures")

    def __init__(self, log: Log) -> None:
        self.by_api = {api.name: ApiStats() for api in API.values()}
        self.handler_errors = 0
        self.login_failures = 0
        self._log = log
        self._logged: set[tuple[str, str]] = set()

    def handler_failed(self, api: Api, version: int, request: Any, error: BaseException) -> Any:
        """Count the failure, log the first of its kind, and return UNKNOWN_SERVER_ERROR.

        `request`: the decoded request; None if the protocol has no answer in its shape.
        """
        self.by_api[api.name].errors += 1
        self.log_failure(f"{api.name} v{version}", error)
        if request is None:
            return Reply.CLOSE
        return api.failure(request, version, ErrorCode.UNKNOWN_SERVER_ERROR)

    def log_failure(self, where: str, error: BaseException) -> None:
        """Count a fault of the server, and log the first of its kind."""
        self.handler_errors += 1
        kind = (where, type(error).__name__)
        if kind not in self._logged:
            self._logged.add(kind)
            self._log.error(
                "handler_failed",
                where=where,
                traceback="".join(traceback.format_exception(error)),
            )
