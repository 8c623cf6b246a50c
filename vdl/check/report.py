"""`vdl check HISTORY.jsonl`: run every check over a history and print one line for each finding."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

from vdl.check import anomalies, groups, history, shares, transactions
from vdl.check.anomalies import Evidence
from vdl.check.findings import Anomaly
from vdl.check.history import Op

FINDINGS_SHOWN = 20


def find(ops: Iterable[Op]) -> list[Anomaly]:
    """Return all anomalies of the history: of logs, transactions, groups and share groups."""
    evidence = Evidence(ops)
    checks = anomalies.CHECKS + transactions.CHECKS + groups.CHECKS + shares.CHECKS
    return [anomaly for check in checks for anomaly in check(evidence)]


def main(path: str) -> int:
    """Check the file and print the verdict. Return 0 if clean, 1 for anomalies, 2 if invalid."""
    try:
        ops = list(history.read(path))
    except (OSError, history.MalformedHistory) as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 2
    if not ops:
        sys.stderr.write(f"{path}: no operation to check\n")
        return 2
    found = find(ops)
    for anomaly in found[:FINDINGS_SHOWN]:
        sys.stdout.write(f"{anomaly}\n")
    if len(found) > FINDINGS_SHOWN:
        sys.stdout.write(f"… and {len(found) - FINDINGS_SHOWN} more\n")
    outcomes = Counter(op.type for op in ops)
    counts = ", ".join(f"{outcomes[kind]} {kind}" for kind in ("ok", "fail", "info"))
    names = Counter(anomaly.name for anomaly in found)
    verdict = ", ".join(f"{count} {name}" for name, count in sorted(names.items())) or "clean"
    sys.stdout.write(f"{len(ops)} operations ({counts}): {verdict}\n")
    return 1 if found else 0
