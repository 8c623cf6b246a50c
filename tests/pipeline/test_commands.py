"""`vdl pipeline`: what can be said without Spark is said without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pipeline.test_job_file import GOOD
from vdl.pipeline.errors import reason_of

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vdl.cli", "pipeline", *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
    )  # fmt: skip


def test_validate_of_a_good_job_says_what_it_does(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(GOOD, encoding="utf-8")
    done = run("validate", str(tmp_path / "job.toml"))
    assert done.returncode == 0
    assert "flights: flights (vdl, json)" in done.stdout


def test_validate_of_a_bad_job_exits_with_one(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(GOOD.replace("path", "paht"), encoding="utf-8")
    done = run("validate", str(tmp_path / "job.toml"))
    assert done.returncode == 1
    assert "sink.paht: there is no such setting" in done.stderr
    assert "sink.path: is needed" in done.stderr


def test_validate_of_the_examples_finds_nothing() -> None:
    files = sorted((ROOT / "examples" / "pipeline").glob("*.toml"))
    assert len(files) == 3
    for file in files:
        assert run("validate", str(file)).returncode == 0


def test_run_without_java_says_what_to_install(tmp_path: Path) -> None:
    """One line, no traceback; also where the extra is not installed."""
    (tmp_path / "job.toml").write_text(GOOD, encoding="utf-8")
    command = "import sys; from vdl.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", command, "pipeline", "run", str(tmp_path / "job.toml")],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "Spark needs Java" in done.stderr or "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_reason_of_an_exception_of_sparks_is_one_line() -> None:
    """Ours where it quotes one, however deep; else its own."""
    quoted = """
    An exception was thrown from the Python worker:
      Traceback (most recent call last):
        File "read.py", line 1, in read
      vdl.pipeline.errors.RowsGone: t/0: offset 3 is wanted, the log begins at 9

        at org.apache.spark.api.python.BasePythonRunner
    """
    assert reason_of(ValueError(quoted)) == (
        "vdl.pipeline.errors.RowsGone: t/0: offset 3 is wanted, the log begins at 9"
    )
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
