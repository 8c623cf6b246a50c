"""What a job expects of its rows, and what becomes of those that are not so.

A rule is a condition in SQL over the columns of `decode.schema`, as a CHECK constraint is: a row
fails it where it is FALSE, not where it is NULL. Rules are looked at in their order, before any
step, and the first one that a row fails decides. Each is counted, batch by batch.

| action | a row that fails |
|---|---|
| drop | is left out |
| dead | is a dead letter, whose reason names the rule |
| stop | stops the job; nothing of its batch is committed |

Must not know: how batches are written.
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
    """Rows are not what the job's file says that they must be; the batch was not committed."""

    def __init__(self, rule: Rule, *, count: int, example: str) -> None:
        super().__init__(
            f"{count} rows fail {rule.name!r} ({rule.sql}); nothing of this batch was written; one "
            f"of them: {example}"
        )
        self.rule = rule
        self.count = count


def failed(rules: Sequence[Rule]) -> Any:
    """RULE of rows that have the columns of the schema."""
    from pyspark.sql import functions as f

    found = f.lit(None).cast("int")
    for n, rule in reversed(list(enumerate(rules))):
        is_failed = ~f.coalesce(f.expr(f"({rule.sql})"), f.lit(True))
        found = f.when(is_failed, f.lit(n)).otherwise(found)
    return found


def reason(rules: Sequence[Rule]) -> Any:
    """Why a row with a RULE is a dead letter; NULL where it is none."""
    from pyspark.sql import functions as f

    found = f.lit(None).cast("string")
    for n, rule in enumerate(rules):
        if rule.action == DEAD:
            told = f.lit(f"the row fails {rule.name!r}: {rule.sql}")
            found = f.when(f.col(RULE) == n, told).otherwise(found)
    return found


def observed(rules: Sequence[Rule]) -> list[Any]:
    """What is to be observed of decoded rows, for `counted` and `check`."""
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
    """Rule → how many rows fail it, in what was observed."""
    return {rule.name: int(counts.get(f"rule_{n}") or 0) for n, rule in enumerate(rules)}


def check(rules: Sequence[Rule], counts: Mapping[str, Any]) -> None:
    """Raises ExpectationFailed."""
    for n, rule in enumerate(rules):
        count = int(counts.get(f"rule_{n}") or 0)
        if rule.action == STOP and count:
            partition, _, offset = str(counts.get(f"rule_{n}_at")).partition("/")
            example = f"partition {partition} offset {offset}"
            raise ExpectationFailed(rule, count=count, example=example)


def kept(decoded: Any, rules: Sequence[Rule]) -> Any:
    """Rows and dead letters, without what is left out."""
    return decoded.filter(f"{RULE} IS NULL OR _error IS NOT NULL").drop(RULE) if rules else decoded
