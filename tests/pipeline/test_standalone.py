"""The same job on a Spark standalone cluster: a master and two workers, each its own process.

No state of a job is in the driver alone: executors get everything they need with their tasks. These
executors are on this machine, so they find the driver at 127.0.0.1, which must be configured. Needs
five JVMs, so it runs only if VDL_SPARK_CLUSTER is set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

from tests.pipeline.standalone import START_SECONDS_MAX, Cluster
from tests.pipeline.test_reading import create
from tests.pipeline.test_spark import BROKEN, COUNT, fill, job_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        "VDL_SPARK_CLUSTER" not in os.environ, reason="five JVMs: set VDL_SPARK_CLUSTER=1"
    ),
]
DRIVER = """
import json, sys
from pathlib import Path
from vdl.pipeline.job import load_job
from vdl.pipeline.runner import Runner
from vdl.pipeline.session import LOOPBACK, make_session
from vdl.pipeline.verify import verify

job = load_job(Path(sys.argv[1]))
spark = make_session("cluster", master=sys.argv[2], settings={**LOOPBACK,
    "spark.executor.memory": "512m", "spark.cores.max": "2", "spark.executor.cores": "1"})
totals = Runner(job, spark).run(once=True)
hosts = spark.sparkContext.parallelize(range(8), 8).map(lambda n: __import__("os").getppid())
executors = len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
verdict = verify(job, spark)
print(json.dumps({"rows": totals.rows, "dead": totals.dead, "executors": executors,
    "is_good": verdict.is_good, "workers": len(set(hosts.collect()))}))
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with Cluster(tmp_path) as cluster:
        yield cluster.url


def test_job_on_two_workers_has_every_record_once(
    master: str, bootstrap: str, tmp_path: Path
) -> None:
    create(bootstrap, "clustered")
    fill(bootstrap, "clustered", 0, COUNT)
    job_of(tmp_path, bootstrap, "clustered")
    script = tmp_path / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "job.toml"), master],
        capture_output=True, text=True, timeout=2 * START_SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["rows"], found["dead"], found["is_good"]) == (COUNT, len(BROKEN), True)
    assert found["executors"] == 2
    assert found["workers"] == 2
