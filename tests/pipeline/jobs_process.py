"""Process that runs several jobs, each in a Spark session of its own, to be killed.

    python -m tests.pipeline.jobs_process [--once] [--left-bytes N] [--master URL] JOB.toml...

With a master it uses two executors of one core each, on two workers of its cluster: a slow task is
then run again on the other one while it continues.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import traceback
from pathlib import Path

from vdl.pipeline import direct_batches, register
from vdl.pipeline.jars import find_jars
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.runner import BatchReport, Runner
from vdl.pipeline.session import LOOPBACK, make_session

SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    # For stages with too few tasks for a comparison.
    "spark.speculation.task.duration.threshold": "1s",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}
SCHEDULER = "org.apache.spark.scheduler.TaskSetManager"
"""Its log at level INFO shows which tasks are run again."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--left-bytes", type=int, help="limit on a batch's records in doubt")
    parser.add_argument("--master", default="")
    parser.add_argument("jobs", type=Path, nargs="+")
    options = parser.parse_args()
    jobs = [load_job(file) for file in options.jobs]
    if options.left_bytes:
        direct_batches.LEFT_BYTES_OF_BATCH_MAX = options.left_bytes
    needs_jars = any(job.source.kind == "kafka" for job in jobs)
    spark = make_session(
        "jobs",
        master=options.master,
        settings={**LOOPBACK, **SPECULATING} if options.master else {},
        jars=find_jars() if needs_jars else (),
    )
    if options.master:
        log = spark._jvm.org.apache.logging.log4j
        log.core.config.Configurator.setLevel(SCHEDULER, log.Level.INFO)

    def run(job: Job) -> None:
        def on_batch(report: BatchReport) -> None:
            print(f"{job.name} batch {report.batch} {report.rows} {report.dead}", flush=True)

        # Two streams must not share a registered source: Spark changes its environment while it
        # plans one, and a task of the other that is serialized in that moment cannot be read.
        session = spark.newSession()
        register(session)
        try:
            with contextlib.closing(Runner(job, session, on_batch)) as runner:
                runner.run(once=options.once)
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
    sys.exit(main())
