"""Destination of a job's OpenLineage events: a URL or a file, never both.

Does not depend on the contents of an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from vdl.pipeline.client_secrets import PLACE

TIMEOUT_SECONDS_MAX = 60.0
INTERVAL_SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True)
class LineageSettings:
    """Settings of lineage events.

    `file`: path of a file that gets one line for each event. `api_key` names a secret, sent as a
    bearer token. `interval_seconds`: time between two progress events of a run.
    """

    url: str = ""
    endpoint: str = "api/v1/lineage"
    file: str = ""
    api_key: str = ""
    namespace: str = "vdl"
    timeout_seconds: float = 5.0
    interval_seconds: float = 60.0

    def problems(self) -> list[str]:
        found = {
            "url, file: exactly one of them is required": bool(self.url) == bool(self.file),
            "api_key: only with a url": bool(self.api_key and not self.url),
            "api_key: a job file must not contain secrets; use env:NAME or file:PATH": (
                bool(self.api_key) and not PLACE.match(self.api_key)
            ),
            "namespace: is required": not self.namespace.strip(),
            f"timeout_seconds: must be greater than 0 and at most {TIMEOUT_SECONDS_MAX:g}": (
                not 0 < self.timeout_seconds <= TIMEOUT_SECONDS_MAX
            ),
            f"interval_seconds: must be at least {INTERVAL_SECONDS_MIN:g}": (
                self.interval_seconds < INTERVAL_SECONDS_MIN
            ),
        }
        problems = [problem for problem, is_so in found.items() if is_so]
        return problems + ([] if not self.url else _problems_of_url(self.url))


def _problems_of_url(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        return [f"url: {url!r}: {error}"]
    if parts.username is not None or parts.password is not None:
        return ["url: must not contain a secret; use api_key"]
    if parts.scheme not in {"http", "https"} or not has_host:
        return [f"url: {url!r} is not http://host:port or https://host:port"]
    return []
