"""The same job on a Spark standalone cluster: a master and two workers, each its own process.

Nothing of a job lives in the driver alone: executors get what they need with their tasks. These are
on this machine, so they find the driver at 127.0.0.1, which has to be said. Needs five JVMs, so it
runs only where VDL_SPARK_CLUSTER is set.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

from tests.pipeline.test_reading import create
from tests.pipeline.test_spark import BROKEN, COUNT, fill, job_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        "VDL_SPARK_CLUSTER" not in os.environ, reason="five JVMs: set VDL_SPARK_CLUSTER=1"
    ),
]
START_SECONDS_MAX = 240

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    import pyspark

    home = Path(pyspark.__file__).parent
    port, ui = free_port(), free_port()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [
        ["Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui)],
        *[
            ["Worker", "--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port",
             str(free_port()), "--work-dir", str(tmp_path / f"work-{n}"), url]
            for n in range(2)
        ],
    ]  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for role, *arguments in commands:
            kind = f"{deploy}.{role.lower()}.{role}"
            with (tmp_path / f"{role}-{len(processes)}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [home / "bin" / "spark-class", kind, *arguments],
                        env=environment, stdout=log, stderr=log, start_new_session=True,
                    )
                )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ui}/json/", timeout=5) as answer:
                    if len(json.load(answer)["workers"]) == 2:
                        break
            except (OSError, ValueError):
                pass
            assert time.monotonic() < deadline, (tmp_path / "Master-0.log").read_text()[-2000:]
            time.sleep(0.5)
        yield url
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
