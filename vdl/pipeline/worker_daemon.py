"""Parent of Spark's Python processes, with the modules of a job's tasks imported.

Spark forks a process for each task that runs at the same time, and ends those that were idle for a
minute. A fork has what its parent has imported; without this each one imports Arrow, numpy and the
pipeline again, for about a second of processor time.

Only modules that start no threads are imported: a fork would not have these.
"""

from __future__ import annotations

import contextlib
import sys

from pyspark import daemon

TASKS = "pyspark.worker"
"""Module of the processes that run tasks; others plan, and need none of this."""


def import_modules() -> None:
    # A node of a cluster may lack some: its tasks then report what they need.
    with contextlib.suppress(ImportError):
        import vdl.pipeline.direct_batches
        import vdl.pipeline.fetch
        import vdl.pipeline.inflated
        import vdl.pipeline.segment_read  # noqa: F401


if __name__ == "__main__":
    if sys.argv[1:2] == [TASKS]:
        import_modules()
    daemon.manager()
