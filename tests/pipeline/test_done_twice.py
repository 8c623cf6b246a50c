"""Detection in Spark's log of tasks that run a second time: violence.py."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")

from tests.pipeline.violence import done_twice

AT = "26/11/26 20:06:43 INFO TaskSetManager: [queryId = 2f690] [batchId = 2] "
PLACE = "(127.0.0.3,executor 1, partition 0, PROCESS_LOCAL, 9863 bytes)"
BEGUN = f"{AT}Starting task 0.0 in stage 10.0 (TID 12) {PLACE}"
MARKED = (
    f"{AT}Marking task 0 in stage 10.0 (on 127.0.0.2) as speculatable because it ran more than "
    "1000.0 ms(1speculatable tasks in this taskset now)"
)
COPIED = f"{AT}Starting task 0.1 in stage 10.0 (TID 13) {PLACE}"
OVERTAKEN = (
    f"{AT}Killing attempt 0 for task 0.0 in stage 10.0 (TID 12) on 127.0.0.2 as the attempt 1 "
    "succeeded on 127.0.0.3"
)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # The complete log if both executors have one address.
        ([BEGUN, MARKED], (0, 0)),
        ([BEGUN, MARKED, COPIED], (1, 0)),
        ([BEGUN, MARKED, COPIED, OVERTAKEN], (1, 1)),
        # A second attempt after a failure.
        ([BEGUN, COPIED], (0, 0)),
    ],
)
def test_tasks_are_done_twice_where_a_copy_was_begun(
    lines: list[str], found: tuple[int, int]
) -> None:
    assert done_twice("\n".join(lines)) == found
