"""Counter process for one workload, in which nothing ran before.

    python -m tests.cost.worker NAME [--plant NAME] [--top N]

Prints one line of JSON. `count_apart` starts it.

Does not depend on earlier figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.cost.counting import Counted, count
from tests.cost.plants import PLANTS
from tests.cost.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
# A copy: pytest changes the environment in one thread while others start processes.
ENVIRONMENT = dict(os.environ)


def main() -> int:
    workloads = {workload.name: workload for workload in WORKLOADS}
    parser = argparse.ArgumentParser(description="Count what one workload costs.")
    parser.add_argument("workload", choices=workloads)
    parser.add_argument("--plant", choices=PLANTS, help="waste to be planted before")
    parser.add_argument("--top", type=int, default=0, help="contributors named for each figure")
    arguments = parser.parse_args()
    if arguments.plant:
        PLANTS[arguments.plant]()
    print(json.dumps(asdict(count(workloads[arguments.workload], arguments.top))))
    return 0


def count_apart(workload: str, *, plant: str = "", top: int = 0, hash_seed: str = "0") -> Counted:
    """As `count`, in a fresh process. `hash_seed` sets its string hashing."""
    command = [sys.executable, "-m", "tests.cost.worker", workload, "--top", str(top)]
    if plant:
        command += ["--plant", plant]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return Counted(**json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
