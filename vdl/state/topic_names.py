"""Names of topics: which are sound, and which collide.

Metrics write '_' for '.', so two topics whose names differ in nothing else would have the same
metrics. Kafka has one of them only, and so has the catalog.

Must not know: anything of a topic but its name.
"""

from __future__ import annotations

TOPIC_NAME_CHARS_MAX = 249
"""Longest topic name Kafka allows."""

_TOPIC_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TopicNames:
    """The names that are taken."""

    __slots__ = ("_by_metric_name",)

    def __init__(self) -> None:
        self._by_metric_name: dict[str, str] = {}
        """Name with '_' for '.' → the topic that has it."""

    def add(self, name: str) -> None:
        """A topic has it from now on."""
        self._by_metric_name[_metric_name(name)] = name

    def remove(self, name: str) -> None:
        """No topic has it any more."""
        self._by_metric_name.pop(_metric_name(name), None)

    def colliding(self, name: str) -> str:
        """The topic with another name that has the same one in metrics; empty when there is
        none."""
        other = self._by_metric_name.get(_metric_name(name), name)
        return "" if other == name else other


def topic_name_complaint(name: str) -> str:
    """What is wrong with a topic's name, in Kafka's terms; empty when nothing is."""
    if not name:
        return "a topic name must not be empty"
    if name in {".", ".."}:
        return "a topic name must not be '.' or '..'"
    if len(name) > TOPIC_NAME_CHARS_MAX:
        return f"a topic name has at most {TOPIC_NAME_CHARS_MAX} characters"
    if not _TOPIC_NAME_CHARS.issuperset(name):
        return "a topic name may hold letters, digits, '.', '_' and '-' only"
    return ""


def _metric_name(name: str) -> str:
    return name.replace(".", "_")
