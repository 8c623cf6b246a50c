"""Tasks on the files of a table: in this process, and on executors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.tasks import here, on_spark


def process_of(number: int) -> tuple[int, int]:
    return number, os.getpid()


def half_of(number: int) -> int:
    if number % 2:
        raise PipelineError(f"{number} is odd")
    return number // 2


def test_tasks_of_this_process_are_done_in_order() -> None:
    assert here(process_of, [3, 1, 2]) == [(n, os.getpid()) for n in (3, 1, 2)]
    with pytest.raises(PipelineError, match="3 is odd"):
        here(half_of, [2, 3])


@pytest.mark.spark
def test_tasks_of_executors_are_done_in_other_processes(spark: Any) -> None:
    found = on_spark(spark)(process_of, [3, 1, 2])
    assert [number for number, _ in found] == [3, 1, 2]
    assert os.getpid() not in {process for _, process in found}
    assert on_spark(spark)(process_of, []) == []


@pytest.mark.spark
def test_processes_of_tasks_begin_with_the_modules_of_the_pipeline(spark: Any) -> None:
    """Their parent has imported them, and each is a fork of it."""
    found = on_spark(spark)(
        lambda _: (
            Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8"),
            "vdl.pipeline.direct_batches" in sys.modules,
        ),
        [0],
    )
    ((parent, is_loaded),) = found
    assert "vdl.pipeline.worker_daemon" in parent
    assert is_loaded


@pytest.mark.spark
def test_task_that_fails_on_an_executor_says_why(spark: Any) -> None:
    """In a line, as all that stops a job."""
    with pytest.raises(PipelineError, match=r"3 is odd$") as caught:
        on_spark(spark)(half_of, [2, 3])
    assert "\n" not in str(caught.value)
