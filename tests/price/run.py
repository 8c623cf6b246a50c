"""`make price`: worst cost of one request of each API, as far as a search finds it.

    python -m tests.price.run                   all APIs; writes docs/request-costs.md
    python -m tests.price.run --only NAME ...   some: only their rows are replaced

Takes ten minutes on two idle processors. Each API has a process of its own (`worker.py`). Exits
with 1 if a request held the loop for longer than `TURN_MS_MAX`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.price.table import TABLE, TURN_MS_MAX, Row, read, write
from vdl.kafka.api import ROWS, Api

WORKER_SECONDS = 900.0


def main() -> int:
    names = [api.name for api in ROWS]
    parser = argparse.ArgumentParser(description="Price the worst request of each API.")
    parser.add_argument("--only", nargs="*", default=names, choices=names, metavar="NAME")
    chosen = [api for api in ROWS if api.name in parser.parse_args().only]
    rows = {(row.api, row.who): row for row in read(TABLE)}
    failed: list[str] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for api, found in zip(chosen, pool.map(_priced, chosen), strict=True):
            if not found:
                failed.append(api.name)
            for row in found:
                rows[row.api, row.who] = row
                print(row.line, flush=True)
            write(TABLE, [rows[key] for key in sorted(rows)])
    for name in failed:
        print(f"{name}: was not priced")
    slow = [row for row in rows.values() if row.turn_ms > TURN_MS_MAX]
    for row in slow:
        print(f"{row.api} ({row.who}): {row.turn_ms} ms of the loop in one turn: {row.request}")
    return 1 if failed or slow else 0


def _priced(api: Api) -> list[Row]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.price.worker", str(api.key)],
            capture_output=True, text=True, timeout=WORKER_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return []
    if done.returncode:
        sys.stderr.write(done.stderr)
        return []
    return [Row.of(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
