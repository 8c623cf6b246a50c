"""Creation of Spark sessions for the pipeline, with a clear error if Java is missing.

`spark-submit` and an existing session are used as they are; only settings that are not set are set
here. With a master on this machine the driver binds to loopback. Executors elsewhere must reach it,
so with any other master its address is chosen by Spark or by a setting.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.noise import shown

JAVA_MIN = 17
JAVA_SECONDS_MAX = 120
"""Timeout of `java -version`. It takes a tenth of a second, but more on an overloaded machine."""
DAEMON, SENT_FILES = "spark.python.daemon.module", "spark.submit.pyFiles"
SETTINGS = {
    DAEMON: "vdl.pipeline.worker_daemon",
    "spark.ui.showConsoleProgress": "false",
    # One for each job of a machine: number of ports that Spark tries.
    "spark.port.maxRetries": "100",
    # Errors that stop a job are shown as one line, without the Python traceback.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Spark computes the batch's size after each row. For that it sets the offsets of all NULL
    # arrays and maps after the last one that is not NULL, so n of them cost n²/2 steps: at 20,000
    # rows 20 µs a row for each such column, more than all else together. Written rows are gathered
    # in larger batches again (`files.gathered`).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # For rows that go to a Python process: they may be of 100 KB each.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.streaming.minBatchesToRetain": "2",
    # The default of 15 s is not enough on an overloaded machine.
    "spark.python.authenticate.socketTimeout": "120s",
}
SOCKET_FOLDER_LENGTH_MAX = 60
"""The name of a socket adds 42 characters, and a system may allow 103."""
LOG_LEVEL = "VDL_SPARK_LOG"
"""Environment variable: level of Spark's log, such as ERROR or INFO; without it there is none."""
OWN_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of pyspark that also write an exception's text as JSON."""
SUBMITTED = ("SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT")
"""Environment variables of a process that spark-submit started.

On YARN in cluster mode only the second is set: there the application master starts Python, without
a script of Spark's.
"""
LOCAL_ADDRESS = "SPARK_LOCAL_IP"
"""Environment variable: address of Spark's web pages; without it, all addresses."""
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
MASTER_DEFAULT = "local[2]"


class NotInstalled(PipelineError):
    """Software that the pipeline requires is missing on this machine."""


def find_java() -> str:
    """Return the path of a Java that Spark runs on.

    Raises NotInstalled with instructions; PipelineError if it does not report its version in time.
    """
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else (shutil.which("java") or "")
    what_to_do = f"install Java {JAVA_MIN} or newer (Debian: openjdk-17-jre-headless)"
    if not java:
        raise NotInstalled(f"Spark requires Java, which was not found; {what_to_do}")
    try:
        told = subprocess.run(  # noqa: S603 - the Java of this machine, no shell
            [java, "-version"], capture_output=True, text=True, check=True, timeout=JAVA_SECONDS_MAX
        ).stderr
    except subprocess.TimeoutExpired as error:
        # Not NotInstalled: a caller that works without Java must not do so because this one is
        # slow.
        raise PipelineError(f"{java} -version: no response in {JAVA_SECONDS_MAX} s") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(f"{java} cannot be run ({error}); {what_to_do}") from error
    version = java_version(told)
    if version < JAVA_MIN:
        raise NotInstalled(f"{java} has version {version}; {what_to_do}")
    return java


def java_version(told: str) -> int:
    """Return the major version in the output of `java -version`; 0 if it cannot be found."""
    _, _, rest = told.partition('version "')
    parts = rest.partition('"')[0].replace("-", ".").split(".")
    numbers = [int(part) for part in parts if part.isdigit()]
    if len(numbers) > 1 and numbers[0] == 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def check_installed() -> None:
    """Check packages and Java. Raises NotInstalled; PipelineError as `find_java`."""
    check_packages()
    find_java()


def check_packages() -> None:
    """Raise NotInstalled if a Python package is missing."""
    missing: list[str] = []
    for module in ("pyspark", "pyarrow", "pandas", "confluent_kafka", "deltalake"):
        try:
            __import__(module)
        except ImportError:
            missing.append(module)
    if missing:
        raise NotInstalled(
            f"the pipeline requires {', '.join(missing)}; run pip install 'vdl-log[spark]', or "
            "pip install '.[spark]' in a checkout"
        )


def set_home() -> None:
    """Point SPARK_HOME at a folder that has Spark's jars and scripts but not its `pyspark.zip`.

    Spark puts that archive first in the path of every Python process it starts, and modules in an
    archive are compiled again each time: 1.4 s of processor time a start, where the same modules as
    installed take 0.4. A job starts about six processes. Does nothing if SPARK_HOME is set, or if
    pyspark was not installed with its jars.
    """
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    if "SPARK_HOME" in os.environ or not (package / "jars").is_dir():
        return
    name = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    home = Path.home() / ".cache" / "vdl" / f"spark-{pyspark.__version__}-{name}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for part in ("bin", "jars", "sbin"):
            link = home / part
            if not link.is_symlink():
                with contextlib.suppress(FileExistsError):
                    link.symlink_to(package / part)
    except OSError:
        return
    os.environ["SPARK_HOME"] = str(home)


def local_sockets() -> dict[str, str]:
    """Return settings for Unix sockets between the JVM and its Python processes on this machine.

    Rows that go through them cost 5 to 10 % less processor time than over loopback. They have no
    password, unlike those over loopback: they are in a folder that only this user can enter, which
    is removed when this process ends.
    """
    folder = tempfile.mkdtemp(prefix="vdl-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if len(folder) > SOCKET_FOLDER_LENGTH_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": folder,
    }


def keep_pages_local(settings: Mapping[str, str]) -> None:
    """Serve Spark's pages at the driver's address, unless an address is set.

    They have no login, and show details of a job.
    """
    os.environ.setdefault(LOCAL_ADDRESS, settings["spark.driver.bindAddress"])


def is_local(master: str) -> bool:
    """Return True if driver and executors are on this machine."""
    return master.startswith("local")


def session_settings(
    *,
    master: str,
    settings: Mapping[str, str],
    is_submitted: bool,
    given: Collection[str] = (),
) -> dict[str, str]:
    """Return the settings of a new session; `settings` take precedence.

    `is_submitted`: spark-submit has set the master and the driver's address; `given`: its other
    settings, which are kept.
    """
    if is_submitted:
        # A task knows files sent with the job, which may be ours, but the parent of its process
        # does not.
        kept = {*given, DAEMON} if SENT_FILES in given else given
        return {**{name: v for name, v in SETTINGS.items() if name not in kept}, **settings}
    chosen = {"spark.master": master or MASTER_DEFAULT, **settings}
    nearby = LOOPBACK if is_local(chosen["spark.master"]) else {}
    return {**nearby, **SETTINGS, **chosen}


def _submitted() -> frozenset[str]:
    """Return the names of settings given to spark-submit, as arguments or in its defaults file."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # SparkConf queries the JVM, which already exists
    return frozenset(name for name, _ in SparkConf().getAll())


def start_jvm(settings: Mapping[str, str]) -> Any:
    """Start the JVM that Spark will run in, with its classes; Spark itself is not started.

    An existing JVM is used. Raises as `check_installed`.
    """
    check_packages()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    set_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # The driver's name for the socket timeout above.
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "120")
    if SparkContext._gateway is None:
        find_java()
        conf = SparkConf(loadDefaults=False)
        for name, value in settings.items():
            conf.set(name, value)
        with quiet_errors() as errors:
            gateway = launch_gateway(conf, {} if errors is None else {"stderr": errors})
        SparkContext._ensure_initialized(gateway=gateway)
    return SparkContext._jvm


@contextlib.contextmanager
def quiet_errors() -> Iterator[int | None]:
    """Yield a descriptor for a JVM's stderr, whose noise is dropped.

    Yields None if LOG_LEVEL requests all of it.
    """
    if LOG_LEVEL in os.environ:
        yield None
        return
    reading, writing = os.pipe()
    threading.Thread(target=pass_on, args=(reading,), name="jvm-errors", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def pass_on(descriptor: int) -> None:
    """Copy lines to this process's stderr, without noise, until the other end closes."""
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in shown(lines):
            sys.stderr.write(line)


def make_session(
    name: str,
    *,
    master: str = "",
    settings: Mapping[str, str] | None = None,
    jars: Sequence[str] = (),
    before: Callable[[Any], None] = lambda jvm: None,
) -> Any:
    """Return a session with `format("vdl")` known.

    `master` "" is two local cores, or spark-submit's choice. `before` is called with the JVM when
    there is no Spark in it yet. Raises as `check_installed`.
    """
    check_packages()
    from pyspark.sql import SparkSession

    from vdl.pipeline import register

    active = SparkSession.getActiveSession()
    if active is None:
        builder: Any = SparkSession.builder
        builder = builder.appName(name)
        is_submitted = any(name in os.environ for name in SUBMITTED)
        wanted = session_settings(
            master=master,
            settings=settings or {},
            is_submitted=is_submitted,
            given=_submitted() if is_submitted else (),
        )
        if not is_submitted and is_local(wanted["spark.master"]):
            wanted = {**local_sockets(), **wanted}
            keep_pages_local(wanted)
        if jars:
            wanted["spark.jars"] = ",".join(jars)
        before(start_jvm(wanted))
        for key, value in wanted.items():
            builder = builder.config(key, value)
        active = builder.getOrCreate()
        # An error that ends a job is shown by its exception, in one line: Spark would add a page
        # for each thread that it passes through.
        active.sparkContext.setLogLevel(os.environ.get(LOG_LEVEL, "FATAL"))
        if LOG_LEVEL not in os.environ:
            from pyspark.logger import PySparkLogger

            for logger in OWN_LOGGERS:
                PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    register(active)
    return active
