"""A process that runs several jobs, each in a Spark session of its own, to be killed.

python -m tests.pipeline.jobs_process [--once] JOB.toml...
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from pathlib import Path

from vdl.pipeline import register
from vdl.pipeline.jars import find_jars
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.runner import BatchReport, Runner
from vdl.pipeline.session import make_session


def main(arguments: list[str]) -> int:
    once = "--once" in arguments
    jobs = [load_job(Path(name)) for name in arguments if not name.startswith("--")]
    needs_jars = any(job.source.kind == "kafka" for job in jobs)
    spark = make_session("jobs", jars=find_jars() if needs_jars else ())

    def run(job: Job) -> None:
        def on_batch(report: BatchReport) -> None:
            print(f"{job.name} batch {report.batch} {report.rows} {report.dead}", flush=True)

        # Two streams must not share a registered source: Spark changes its environment while it
        # plans one, and a task of the other that is serialized in that moment cannot be read.
        session = spark.newSession()
        register(session)
        try:
            with contextlib.closing(Runner(job, session, on_batch)) as runner:
                runner.run(once=once)
        except BaseException:  # noqa: BLE001 - the process ends with whatever it is
            traceback.print_exc()
            # The others end with it: the supervisor starts all of them again.
            os._exit(1)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
