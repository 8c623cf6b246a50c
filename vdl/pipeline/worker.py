"""The Python process that Spark runs tasks in, one after the other.

Must not know: what the tasks do.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def exempt_modules_from_collection() -> None:
    """Once in a process, at the end of its first task, when all that tasks need was imported.

    Spark's worker collects garbage behind each task (`pyspark/daemon.py`), for which it looks at
    every object of every module: 40 to 60 ms, in which 150,000 records are decoded. What is there
    after the first task stays until the process ends, so it need not be looked at again.
    """
    gc.collect()
    gc.freeze()
