"""Refresh of the keys that verify tokens: at the start, periodically, and soon after a token with
an unknown key.

Does not depend on how keys are fetched.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.clock import MS, Clock
from vdl.kafka.security.jwks import KeysUnavailable, fetch_keys
from vdl.kafka.security.oauth import KeysRefused, Validator
from vdl.log import Log

RETRY_MS = 10_000
"""Least time between two fetches: a flood of unknown keys must not cause a flood of fetches."""

Run = Callable[[Callable[[], str], Callable[[str | BaseException], None]], None]


class TokenKeys:
    """The keys of one server."""

    def __init__(self, validator: Validator, run: Run, clock: Clock, log: Log) -> None:
        """`run`: runs a fetch off the loop."""
        self._validator = validator
        self._run = run
        self._clock = clock
        self._log = log
        self._is_loaded = False
        self._seen_unknown = 0
        self._fetched_ns = 0
        self._problem = ""

    def start(self) -> None:
        """Fetch the keys, and continue to refresh them."""
        self._fetched_ns = self._clock.now_ns()
        self._run(self._refresh, self._refreshed)

    def _refresh(self) -> str:
        """Fetch the keys, in a thread. Return the error, or an empty text."""
        try:
            self._validator.take_keys(fetch_keys(self._validator.options))
        except (KeysUnavailable, KeysRefused) as error:
            return str(error)
        return ""

    def _refreshed(self, result: str | BaseException) -> None:
        if isinstance(result, BaseException):
            raise result
        if result and result != self._problem:
            self._log.warning(
                "token_keys_unavailable", url=self._validator.options.jwks_url, problem=result
            )
        elif not result and (self._problem or not self._is_loaded):
            url, left_out = self._validator.options.jwks_url, self._validator.left_out
            self._log.info("token_keys_loaded", url=url, left_out=left_out)
        self._is_loaded = self._is_loaded or not result
        self._problem = result
        self._seen_unknown = self._validator.unknown_keys
        self._clock.call_later(RETRY_MS * MS, self._look)

    def _look(self) -> None:
        age_ns = self._clock.now_ns() - self._fetched_ns
        is_old = age_ns >= self._validator.options.jwks_refresh_ms * MS
        if is_old or self._problem or self._validator.unknown_keys != self._seen_unknown:
            self.start()
        else:
            self._clock.call_later(RETRY_MS * MS, self._look)
