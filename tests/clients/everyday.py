"""Everyday use of a Kafka client by an application, as one program for each client.

A program receives a plan, as JSON, and prints its results, as one line of JSON:

1. It creates a topic of two partitions, and queries their number (`partitions`).
2. It produces the numbers of `first`, compressed: n to partition n % 2, with the key "kn", the
   header number=n and the time `time_ms` + 1000 n (`offsets`: partition and offset of each, where
   the client reports them).
3. As a member of the group it reads them (`read`: the numbers by partition, in order), commits and
   leaves. It checks each key and header itself.
4. It produces the numbers of `second`. The next member reads only these (`read_on`) and commits.
   `committed`: the committed offsets between the two, by partition; `group_offsets`: afterwards.
5. It looks up the offset of partition 1 that was written at `since_ms` or later (`since_offset`),
   and reads from there (`since`: the first number).
6. It sets `retention.ms` to an hour and queries it (`retention_ms`; repeated for up to five
   seconds while the value is another one), checks that the group is among all groups
   (`is_listed`), and deletes the topic.

Does not depend on any one client.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

TIME_MS = 1_700_000_000_000
FIRST = range(40)
SECOND = range(40, 45)
SINCE = 7
PROGRAM_SECONDS_MAX = 90


def plan(bootstrap: str, topic: str, group: str) -> str:
    return json.dumps(
        {
            "bootstrap": bootstrap,
            "topic": topic,
            "group": group,
            "time_ms": TIME_MS,
            "since_ms": TIME_MS + 1_000 * SINCE,
            "first": list(FIRST),
            "second": list(SECOND),
        }
    )


def by_partition(numbers: range) -> dict[str, list[int]]:
    return {str(part): [n for n in numbers if n % 2 == part] for part in (0, 1)}


def expected() -> dict[str, Any]:
    """Return the results expected of every client."""
    return {
        "partitions": 2,
        "offsets": [[n % 2, n // 2] for n in FIRST],
        "read": by_partition(FIRST),
        "committed": [20, 20],
        "read_on": by_partition(SECOND),
        "group_offsets": [23, 22],
        "since_offset": 3,
        "since": SINCE,
        "retention_ms": "3600000",
        "is_listed": True,
    }


def run(command: Sequence[str], bootstrap: str, topic: str, group: str) -> dict[str, Any]:
    """Run a program; return its results. Raises CalledProcessError."""
    done = subprocess.run(
        [*command, plan(bootstrap, topic, group)],
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
