"""What `spark-submit` is given: `vdl pipeline` with the arguments behind it.

spark-submit … submit.py run JOB.toml
"""

from __future__ import annotations

import sys

from vdl.commands.app import run_app

if __name__ == "__main__":
    sys.exit(run_app(["pipeline", *sys.argv[1:]]))
