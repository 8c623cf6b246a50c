"""Expectations of a job on its rows, and the handling of rows that fail them.

A rule is an SQL condition over the columns of `decode.schema`, like a CHECK constraint: a row fails
it if it is FALSE, not if it is NULL. Rules are evaluated in order, before any step, and the first
one that a row fails decides. Failures of each are counted, batch by batch.

| action | a row that fails |
|---|---|
| drop | is left out |
| dead | is a dead letter, whose reason names the rule |
| stop | stops the job; nothing of its batch is committed |

Does not depend on how batches are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.errors import PipelineError

DROP, DEAD, STOP = "drop", "dead", "stop"
ACTIONS = (DROP, DEAD, STOP)
RULE = "_rule"
"""Column of decoded rows: the number of the rule that a row fails, else NULL."""


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    sql: str
    action: str


class ExpectationFailed(PipelineError):
    """Rows violate a rule of the job file; the batch was not committed."""

    def __init__(self, rule: Rule, *, count: int, example: str) -> None:
        super().__init__(
            f"{count} rows fail {rule.name!r} ({rule.sql}); nothing of this batch was written; "
            f"example: {example}"
        )
        self.rule = rule
        self.count = count


def failed(rules: Sequence[Rule]) -> Any:
    """Return the RULE column for rows that have the columns of the schema."""
    from pyspark.sql import functions as f

    found = f.lit(None).cast("int")
    for n, rule in reversed(list(enumerate(rules))):
        is_failed = ~f.coalesce(f.expr(f"({rule.sql})"), f.lit(True))
        found = f.when(is_failed, f.lit(n)).otherwise(found)
    return found


def reason(rules: Sequence[Rule]) -> Any:
    """Return the reason for which a row with a RULE is a dead letter; NULL if it is none."""
    from pyspark.sql import functions as f

    found = f.lit(None).cast("string")
    for n, rule in enumerate(rules):
        if rule.action == DEAD:
            told = f.lit(f"the row fails {rule.name!r}: {rule.sql}")
            found = f.when(f.col(RULE) == n, told).otherwise(found)
    return found


def observed(rules: Sequence[Rule]) -> list[Any]:
    """Return the aggregates to observe on decoded rows, for `counted` and `check`."""
    from pyspark.sql import functions as f

    place = f.concat_ws("/", "_partition", "_offset")
    return [
        column
        for n in range(len(rules))
        for is_failed in [f.col(RULE) == n]
        for column in (
            f.count(f.when(is_failed, f.lit(1))).alias(f"rule_{n}"),
            f.min(f.when(is_failed, place)).alias(f"rule_{n}_at"),
        )
    ]


def counted(rules: Sequence[Rule], counts: Mapping[str, Any]) -> dict[str, int]:
    """Return rule → number of rows that fail it, from the observed aggregates."""
    return {rule.name: int(counts.get(f"rule_{n}") or 0) for n, rule in enumerate(rules)}


def check(rules: Sequence[Rule], counts: Mapping[str, Any]) -> None:
    """Raise ExpectationFailed if a row fails a rule with action "stop"."""
    for n, rule in enumerate(rules):
        count = int(counts.get(f"rule_{n}") or 0)
        if rule.action == STOP and count:
            partition, _, offset = str(counts.get(f"rule_{n}_at")).partition("/")
            example = f"partition {partition} offset {offset}"
            raise ExpectationFailed(rule, count=count, example=example)


def kept(decoded: Any, rules: Sequence[Rule]) -> Any:
    """Return rows and dead letters, without dropped rows."""
    return decoded.filter(f"{RULE} IS NULL OR _error IS NOT NULL").drop(RULE) if rules else decoded
