"""A Spark session made the way the pipeline needs it, and a clear word where there is no Java.

`spark-submit` and a session that exists are taken as they are; only settings that are not set are
set here. With a master on this machine the driver binds to loopback; executors elsewhere must reach
it, so with any other master its address is Spark's to find, or a setting's.
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
"""For `java -version`: a tenth of a second, but on a machine with too much to do."""
SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # One for each job of a machine: Spark looks for a free port so often.
    "spark.port.maxRetries": "100",
    # What stops a job is told in a line, not by the way that it took through Python.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Spark asks after each row how large the batch is. For that it sets the offsets of all NULL
    # arrays and maps behind the last one that is not NULL, so n of them cost n²/2 steps: at 20,000
    # rows 20 µs a row for each such column, more than all else together. What is written is
    # gathered in larger batches again (`files.gathered`).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # Of rows that go to a Python process: they may be of 100 KB each.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.streaming.minBatchesToRetain": "2",
    # The default of 15 s is not enough on a machine with too much to do.
    "spark.python.authenticate.socketTimeout": "120s",
}
SOCKET_FOLDER_LENGTH_MAX = 60
"""The name of a socket is 42 characters more, and a system may allow 103."""
LOG_LEVEL = "VDL_SPARK_LOG"
"""Of the environment: the level of Spark's log, as ERROR or INFO; without it there is none."""
OWN_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""pyspark's, which write what an exception says as JSON besides."""
SUBMITTED = ("SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT")
"""Of the environment of what spark-submit has started. On YARN in cluster mode only the second is:
there the application's master starts Python, and no script of Spark's."""
LOCAL_ADDRESS = "SPARK_LOCAL_IP"
"""Of the environment: the address that Spark's pages are served at, all of them without it."""
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
MASTER_DEFAULT = "local[2]"


class NotInstalled(PipelineError):
    """What the pipeline runs on is missing on this machine."""


def find_java() -> str:
    """The path of a Java that Spark runs on. Raises NotInstalled with what to do; PipelineError
    where it does not say in time which one it is."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else (shutil.which("java") or "")
    what_to_do = f"install Java {JAVA_MIN} or newer (Debian: openjdk-17-jre-headless)"
    if not java:
        raise NotInstalled(f"Spark needs Java, and there is none: {what_to_do}")
    try:
        told = subprocess.run(  # noqa: S603 - the Java of this machine, no shell
            [java, "-version"], capture_output=True, text=True, check=True, timeout=JAVA_SECONDS_MAX
        ).stderr
    except subprocess.TimeoutExpired as error:
        # Not NotInstalled: whoever does without a Java must not do so because this one is slow.
        raise PipelineError(f"{java} -version: no answer in {JAVA_SECONDS_MAX} s") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(f"{java} does not run ({error}): {what_to_do}") from error
    version = java_version(told)
    if version < JAVA_MIN:
        raise NotInstalled(f"{java} is version {version}: {what_to_do}")
    return java


def java_version(told: str) -> int:
    """The major version in what `java -version` says; 0 when it cannot be found."""
    _, _, rest = told.partition('version "')
    parts = rest.partition('"')[0].replace("-", ".").split(".")
    numbers = [int(part) for part in parts if part.isdigit()]
    if len(numbers) > 1 and numbers[0] == 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def check_installed() -> None:
    """Raises NotInstalled; PipelineError as `find_java`."""
    check_packages()
    find_java()


def check_packages() -> None:
    """Raises NotInstalled."""
    missing: list[str] = []
    for module in ("pyspark", "pyarrow", "pandas", "confluent_kafka", "deltalake"):
        try:
            __import__(module)
        except ImportError:
            missing.append(module)
    if missing:
        raise NotInstalled(
            f"the pipeline needs {', '.join(missing)}: pip install 'vdl-log[spark]', or "
            "pip install '.[spark]' in a checkout"
        )


def set_home() -> None:
    """Point SPARK_HOME at a folder that has Spark's jars and scripts but not its `pyspark.zip`.

    Spark puts that archive in front of the path of every Python process it starts, and modules in
    an archive are compiled anew each time: 1.4 s of processor time a start, where the same modules
    as they are installed take 0.4. A job starts six or so. Nothing is done where SPARK_HOME is set,
    or where pyspark was not installed with its jars.
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
    """Settings for Unix sockets between the JVM and its Python processes on this machine: 5 to 10 %
    less processor time for rows that go through them than over loopback.

    They have no password, as those over loopback do: they are in a folder that only this user can
    enter, which is removed when this process ends.
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
    """Have Spark's pages served where the driver listens, if nobody has said where: they have no
    login, and show what a job does."""
    os.environ.setdefault(LOCAL_ADDRESS, settings["spark.driver.bindAddress"])


def is_local(master: str) -> bool:
    """Whether driver and executors are on this machine."""
    return master.startswith("local")


def session_settings(
    *,
    master: str,
    settings: Mapping[str, str],
    is_submitted: bool,
    given: Collection[str] = (),
) -> dict[str, str]:
    """What a new session is told; `settings` have the last word. `is_submitted`: spark-submit has
    said which master, and where the driver is; `given`: what else it was told, which stays."""
    if is_submitted:
        return {**{name: v for name, v in SETTINGS.items() if name not in given}, **settings}
    chosen = {"spark.master": master or MASTER_DEFAULT, **settings}
    nearby = LOOPBACK if is_local(chosen["spark.master"]) else {}
    return {**nearby, **SETTINGS, **chosen}


def _submitted() -> frozenset[str]:
    """Names of the settings that spark-submit was given, on its line or in its file of defaults."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # SparkConf asks the JVM, which is there already
    return frozenset(name for name, _ in SparkConf().getAll())


def start_jvm(settings: Mapping[str, str]) -> Any:
    """The JVM that Spark is going to run in, with its classes; nothing of Spark is started. What
    was started before stays. Raises as `check_installed`."""
    check_packages()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    set_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # The driver's own word for the socket time-out above.
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
    """A descriptor for a JVM's errors, of which what is noise goes nowhere; None where LOG_LEVEL
    asks for all of it."""
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
    """To this process's errors, without what is noise, until it is closed at the other end."""
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
    """The session, with `format("vdl")` known. `master` "" is two local cores, or what spark-submit
    says. `before` is called with the JVM when there is no Spark in it yet. Raises as
    `check_installed`."""
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
        # What ends a job is told by its exception, in a line: Spark would add a page for each
        # thread that it passes through.
        active.sparkContext.setLogLevel(os.environ.get(LOG_LEVEL, "FATAL"))
        if LOG_LEVEL not in os.environ:
            from pyspark.logger import PySparkLogger

            for logger in OWN_LOGGERS:
                PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    register(active)
    return active
