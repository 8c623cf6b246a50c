"""`explain`: the answer to one question, from collected facts.

`vdl explain` and the web console call it. It reads nothing but its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from vdl.server.explain.answer import Finding, answer
from vdl.server.explain.facts import Facts
from vdl.server.explain.groups import explain_group, explain_lag
from vdl.server.explain.partitions import explain_leader, explain_partition
from vdl.server.explain.servers import explain_cluster, explain_server, explain_slow


class About(Enum):
    """Subject of a question."""

    PARTITION = "partition"
    LEADER = "leader"
    GROUP = "group"
    LAG = "lag"
    SLOW = "slow"
    SERVER = "server"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Question:
    """A question: why this is as it is. Fields that it does not need are empty."""

    about: About
    topic: str = ""
    partition: int = 0
    group: str = ""
    api: str = ""
    server: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the object `about` of docs/cli.md."""
        found: dict[str, Any] = {"what": self.about.value}
        if self.about in (About.PARTITION, About.LEADER):
            return {**found, "topic": self.topic, "partition": self.partition}
        names = {"group": self.group, "topic": self.topic, "api": self.api, "server": self.server}
        return {**found, **{name: value for name, value in names.items() if value}}


def explain(question: Question, facts: Facts) -> dict[str, Any]:
    """Return the answer, in the shape of docs/cli.md.

    Texts may have any character that a client chose: escape them before they are shown.
    """
    findings, kinds = _findings(question, facts)
    return answer(question.as_json(), findings, facts.gaps(*kinds))


def _findings(question: Question, facts: Facts) -> tuple[list[Finding], tuple[str, ...]]:
    """Return the findings, and the kinds of events that they are made from."""
    match question.about:
        case About.PARTITION:
            found = explain_partition(facts, question.topic, question.partition)
            return found, ("server", "partition", "refusal")
        case About.LEADER:
            found = explain_leader(facts, question.topic, question.partition)
            return found, ("server", "partition")
        case About.GROUP:
            return explain_group(facts, question.group), ("group",)
        case About.LAG:
            return explain_lag(facts, question.group, question.topic), ("group", "client")
        case About.SLOW:
            return explain_slow(facts, question.api), ("client",)
        case About.SERVER:
            return explain_server(facts, question.server), ("server",)
        case About.CLUSTER:
            return explain_cluster(facts), ("server",)
    assert_never(question.about)
