"""`vdl pipeline`: everything that needs no Spark is reported without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.test_job_file import GOOD
from vdl.commands.app import run_app
from vdl.pipeline.errors import PipelineError, TopicMissing, reason_of
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.preflight import check_cluster, check_folders
from vdl.pipeline.session import NotInstalled, check_installed, pass_on

ROOT = Path(__file__).resolve().parents[2]


Shown = pytest.CaptureFixture[str]


def test_validate_of_a_good_job_says_what_it_does(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "job.toml").write_text(GOOD, encoding="utf-8")
    assert run_app(["pipeline", "validate", str(tmp_path / "job.toml")]) == 0
    assert "flights: flights (vdl, json)" in capsys.readouterr().out


def test_validate_of_a_bad_job_exits_with_one(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "job.toml").write_text(GOOD.replace("path", "paht"), encoding="utf-8")
    assert run_app(["pipeline", "validate", str(tmp_path / "job.toml")]) == 1
    told = capsys.readouterr().err
    assert "sink.paht: unknown setting" in told
    assert "sink.path: is required" in told


def test_validate_of_the_examples_finds_nothing() -> None:
    files = sorted((ROOT / "examples" / "pipeline").glob("*.toml"))
    assert len(files) == 3
    for file in files:
        assert run_app(["pipeline", "validate", str(file)]) == 0


@pytest.mark.spark
def test_validate_of_upserts_by_a_key_that_is_no_column_says_so(
    tmp_path: Path, capsys: Shown
) -> None:
    try:
        check_installed()
    except NotInstalled as error:
        pytest.skip(str(error))
    upsert = GOOD.replace("[sink]", '[sink]\nkind = "delta"\nmode = "upsert"\nkey = ["jahr"]')
    (tmp_path / "job.toml").write_text(upsert, encoding="utf-8")
    assert run_app(["pipeline", "validate", str(tmp_path / "job.toml")]) == 1
    assert "sink.key: decode.schema has no column jahr" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.parametrize("had_session", [False, True])
def test_validate_names_every_text_that_spark_cannot_parse(
    tmp_path: Path, capsys: Shown, had_session: bool
) -> None:
    """The report is one line, and needs Spark's parser only.

    It holds also after PySpark has changed how errors are reported, which its first session does
    for good.
    """
    if had_session:
        from pyspark.errors.exceptions.captured import install_exception_handler

        install_exception_handler()
    try:
        check_installed()
    except NotInstalled as error:
        pytest.skip(str(error))
    steps = (
        '[transform]\nsteps = [{name = "one", sql = "selec 1"}, '
        '{name = "two", sql = "select ("}, {name = "good", sql = "select 1"}]\n'
    )
    text = GOOD.replace("year int", "year int, name strin") + steps
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    assert run_app(["pipeline", "validate", str(tmp_path / "job.toml")]) == 1
    # Spark's JVM, perhaps of an earlier test, may write too, at any time.
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: "))
    for told in ("decode.schema: [UNSUPPORTED", "steps.one: [PARSE_SYNTAX", "steps.two: [PARSE"):
        assert told in line
    assert "good" not in line


# --- before Spark starts --------------------------------------------------------------------------
def job_of(folder: Path, old: str = "", new: str = "") -> Job:
    (folder / "job.toml").write_text(GOOD.replace(old, new), encoding="utf-8")
    return load_job(folder / "job.toml")


def test_servers_that_do_not_answer_are_one_line(tmp_path: Path) -> None:
    """The line names the cause, and librdkafka adds none of its own."""
    pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")
    from vdl.pipeline.topics import ClusterUnreachable

    job = job_of(tmp_path, "127.0.0.1:9092", "127.0.0.1:9")
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:9: .*Connection refused"):
        check_cluster(job)


def test_topic_that_does_not_exist_is_named(tmp_path: Path, bootstrap: str) -> None:
    from tests.pipeline.test_reading import create

    create(bootstrap, "there")
    file = tmp_path / "job.toml"
    text = GOOD.replace("127.0.0.1:9092", bootstrap)
    file.write_text(text.replace('["flights"]', '["there", "nowhere"]'), encoding="utf-8")
    with pytest.raises(TopicMissing, match="topic nowhere does not exist"):
        check_cluster(load_job(file))


def test_folders_that_take_no_files_are_named(tmp_path: Path) -> None:
    """Holds also if permissions would allow writing."""
    (tmp_path / "file").touch()
    for path, reason in (("/proc/x/y", "/proc cannot be written to"), ("file/t", "not a folder")):
        with pytest.raises(PipelineError, match=f"sink.path: .*{reason}"):
            check_folders(job_of(tmp_path, '"out"', f'"{path}"'))
    check_folders(job_of(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "job.toml"]


SHOWN = (
    'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
    "\tat java.base/java.util.Arrays.copyOf(Arrays.java:1)",
    "OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory(1, 2, 0) failed",
    "java.lang.IllegalStateException: of nobody's warning",
    "Error: Could not find or load main class",
)


def test_noise_of_a_jvm_is_kept_back(capsys: Shown) -> None:
    """Other text is shown."""
    reading, writing = os.pipe()
    for line in (
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "26/01/02 03:04:05 WARN NativeCodeLoader: Unable to load native-hadoop library",
        'Setting default log level to "WARN".',
        "Picked up JAVA_TOOL_OPTIONS: -Xmx1g",
        "NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g",
        "OpenJDK 64-Bit Server VM warning: Options -Xverify:none was deprecated in JDK 13",
        "SLF4J(W): Class path contains multiple SLF4J providers.",
        "26/01/02 03:04:05 WARN FileSystem: Failed to initialize fileystem hdfs://x",
        "java.lang.IllegalArgumentException: java.net.UnknownHostException: x",
        "\tat org.apache.hadoop.security.SecurityUtil.buildTokenService(SecurityUtil.java:1)",
        "Caused by: java.net.UnknownHostException: x",
        "\t... 26 more",
        *SHOWN,
    ):
        os.write(writing, f"{line}\n".encode())
    os.close(writing)
    pass_on(reading)
    assert capsys.readouterr().err.splitlines() == list(SHOWN)


def test_run_without_java_says_what_to_install(tmp_path: Path) -> None:
    """One line, no traceback; also if the extra is not installed."""
    (tmp_path / "job.toml").write_text(GOOD, encoding="utf-8")
    command = "import sys; from vdl.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", command, "pipeline", "run", str(tmp_path / "job.toml")],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "Spark requires Java" in done.stderr or "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_reason_of_an_exception_of_sparks_is_one_line() -> None:
    """Our error if it quotes one, at any depth; else its own message."""
    quoted = """
    An exception was thrown from the Python worker:
      Traceback (most recent call last):
        File "read.py", line 1, in read
      vdl.pipeline.errors.RowsGone: t/0: offset 3 is required, but the log begins at 9

        at org.apache.spark.api.python.BasePythonRunner
    """
    told = "t/0: offset 3 is required, but the log begins at 9"
    assert reason_of(ValueError(quoted)) == told
    other = quoted.replace("vdl.pipeline.errors.RowsGone: t/0: offset 3", "KeyError: 'a'; offset 3")
    assert reason_of(ValueError(other)).startswith("KeyError: 'a'; offset 3")
    own = "An error occurred while calling o7.collect.\n: java.io.IOException: disk full\n\tat x"
    assert reason_of(ValueError(own)) == "java.io.IOException: disk full"
    assert reason_of(ValueError()) == "ValueError"


def test_help_of_the_group_loads_neither_spark_nor_arrow() -> None:
    code = (
        "import sys; from vdl.commands.app import run_app; run_app(['pipeline', '--help']); "
        "print(sorted({'pyspark', 'pyarrow', 'deltalake', 'confluent_kafka'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "[]"
