"""The file format and the command's verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from vdl.check import history
from vdl.check.history import MalformedHistory, Mark, Op, Record, Send
from vdl.check.report import main


def an_op() -> Op:
    return Op(
        1, "c", "poll", "ok", 5, 6, node="n2", err=7, group="g", gen=3, member="m", pid=9, epoch=1,
        final=True, note="x", sends=[Send("t-0", None, 4), Send("t-0", 2, 5)],
        polls=[("t-0", [Record(0, 1), Record(1, 2, 3), Record(2, 3, 3, 400)]), ("t-1", [])],
        keys=["t-0"], hw={"t-0": (3, 7)},
    )  # fmt: skip


def test_operation_survives_the_round_trip_through_its_line() -> None:
    """Reading returns what was written."""
    assert history.decode(history.encode(an_op())) == an_op()
    for f in ("commit", "committed", "seek"):
        op = Op(1, "c", f, "ok", 5, 6, marks=[Mark("t-0", 3)])
        assert history.decode(history.encode(op)) == op
    op = Op(1, "c", "list_offsets", "ok", 5, 6, marks=[Mark("t-0", 3, -1)])
    assert history.decode(history.encode(op)) == op


@pytest.mark.parametrize("line", [
    b"{", b"{}", b'{"i":1,"proc":"a","f":"x","type":"ok","t0":0,"t1":1,"mops":[["what"]]}',
    b'{"i":1,"proc":"a","f":"x","type":"ok","t0":0,"t1":1,"mops":[[]]}', b'"\xff"',
    b'{"i":1,"proc":"a","f":"send","type":"okay","t0":0,"t1":1}',
])  # fmt: skip
def test_line_that_is_no_operation_is_refused(line: bytes) -> None:
    """Bad input is reported with its line."""
    with pytest.raises(MalformedHistory) as error:
        history.decode(line, 17)
    assert error.value.line == 17


def test_check_of_a_file_prints_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 clean, 1 anomalies, 2 not a history."""
    path = tmp_path / "history.jsonl"
    ops = [Op(1, "p", "send", "ok", 1, 2, sends=[Send("t-0", 0, 1)])]
    with path.open("w") as file:
        history.write(ops, file)
    assert main(str(path)) == 0
    ops.append(Op(2, "c", "poll", "ok", 3, 4, polls=[("t-0", [Record(0, 2)])]))
    with path.open("w") as file:
        history.write(ops, file)
    assert main(str(path)) == 1
    assert "1 phantom" in capsys.readouterr().out
    for nothing in ("nonsense\n", "", "\n"):
        path.write_text(nothing)
        assert main(str(path)) == 2
