"""Settings of servers as texts: `kafka.num.partitions=3`."""

from __future__ import annotations

from collections.abc import Iterable

from vdl.testing.errors import ClusterError


def parse_settings(texts: Iterable[str]) -> dict[str, object]:
    """Return the settings by key: numbers and booleans as such, others as texts. Raises
    ClusterError."""
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and "." in key):
            raise ClusterError(f"a setting has the form table.key=value, not {text}")
        found[key] = _value(value)
    return found


def _value(text: str) -> object:
    if text in {"true", "false"}:
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text
