"""Topic names: validation, and collisions.

Metrics write '_' for '.', so two topics whose names differ in nothing else would have the same
metrics. Kafka allows only one of them, and so does the catalog.
"""

from __future__ import annotations

TOPIC_NAME_CHARS_MAX = 249
"""Longest topic name that Kafka allows."""

_TOPIC_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TopicNames:
    """Topic names in use."""

    __slots__ = ("_by_metric_name",)

    def __init__(self) -> None:
        self._by_metric_name: dict[str, str] = {}
        """Name with '_' for '.' → the topic's name."""

    def add(self, name: str) -> None:
        """Add a topic's name."""
        self._by_metric_name[_metric_name(name)] = name

    def remove(self, name: str) -> None:
        """Remove a topic's name."""
        self._by_metric_name.pop(_metric_name(name), None)

    def colliding(self, name: str) -> str:
        """Return the topic whose different name is the same in metrics; empty if there is none."""
        other = self._by_metric_name.get(_metric_name(name), name)
        return "" if other == name else other


def topic_name_complaint(name: str) -> str:
    """Return what is wrong with a topic's name, in Kafka's terms; empty if nothing is."""
    if not name:
        return "a topic name must not be empty"
    if name in {".", ".."}:
        return "a topic name must not be '.' or '..'"
    if len(name) > TOPIC_NAME_CHARS_MAX:
        return f"a topic name has at most {TOPIC_NAME_CHARS_MAX} characters"
    if not _TOPIC_NAME_CHARS.issuperset(name):
        return "a topic name may have only letters, digits, '.', '_' and '-'"
    return ""


def _metric_name(name: str) -> str:
    return name.replace(".", "_")
