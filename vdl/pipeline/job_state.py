"""State of a job as of one commit, as tables keep it beside their rows.

A Delta table keeps it in a file that a commit names, an Iceberg table in one of its properties.
Both use the JSON of this module.

Does not depend on Spark, Kafka, or table formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vdl.pipeline.account import Account
from vdl.pipeline.positions import Positions


@dataclass(frozen=True, slots=True)
class JobState:
    """State as of commit `sequence`. `end`: the next offsets; `account` None: it is not known.

    `key`: the columns for whose values the table has one row each, None if that is not recorded;
    `heir`: the job that has taken this one's place, "" if there is none.
    """

    sequence: int
    end: Positions
    account: Account | None
    key: tuple[str, ...] | None = None
    heir: str = ""

    def to_json(self) -> dict[str, Any]:
        account = self.account
        return {
            "sequence": self.sequence,
            "end": self.end.to_json(),
            "account": None
            if account is None
            else {
                "begin": account.begin.to_json(),
                "rows": account.rows,
                "dead": account.dead,
                "late": account.late,
            },
            "key": None if self.key is None else list(self.key),
            "heir": self.heir,
        }

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> JobState:
        """Parse a state. Raises ValueError, KeyError, TypeError."""
        kept, key = told["account"], told.get("key")
        account = None
        if kept is not None:
            begin = Positions.from_json(kept["begin"])
            account = Account(begin, int(kept["rows"]), int(kept["dead"]), int(kept["late"]))
        return JobState(
            int(told["sequence"]),
            Positions.from_json(told["end"]),
            account,
            None if key is None else tuple(map(str, key)),
            str(told.get("heir", "")),
        )
