"""Checks on Spark report the same as `vdl check`, word for word.

Covers histories with one anomaly each, and random ones that were tampered with.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow as pa
from click.testing import CliRunner

from tests.unit.check.test_anomalies import S, Script
from vdl.check import anomalies, history
from vdl.check.anomalies import RETRIED
from vdl.check.findings import TEXTS, Anomaly, name_of
from vdl.check.history import EARLIEST, LATEST, Mark, Op, Record, Send
from vdl.check.report import find
from vdl.commands import pipeline as commands
from vdl.pipeline.check import CHECKED, CHECKS, NOT_CHECKED, check
from vdl.pipeline.evidence import FACTS, MALFORMED, OTHER, READ, SENT, facts_of

SEEDS = 40
KEYS = ("t-0", "t-1")
PROCS = ("p0", "p1", "c0", "c1")


def planted() -> list[Script]:
    """Return small histories: a clean one, one for every anomaly, and near misses."""
    scripts: list[Script] = []

    def begin() -> Script:
        scripts.append(Script())
        return scripts[-1]

    h = begin()  # clean
    h.op("c", "assign", keys=["t-0"])
    h.list(LATEST, 0)
    h.send(1, 0, node="n1")
    h.poll((0, 1), hw={"t-0": (3, 1)})
    h.send(2, kind="info")
    h.send(3, kind="fail")
    h.poll((4, 2))
    h.op("c", "seek", marks=[Mark("t-0", 0)])
    h.poll((0, 1))
    h.poll((0, 1, 3, 100), (4, 2, 3, 110), proc="drain", final=True)  # type: ignore[arg-type]
    h.list(105, 4)
    h.list(500, -1)
    h.list(EARLIEST, 0)
    assert h.names() == set()

    h = begin()  # inconsistent-offsets: read, and acknowledged
    h.send(1, 0)
    h.send(2, kind="info")
    h.poll((0, 2))
    h.send(3, 7)
    h.send(4, 7, proc="q")
    h = begin()  # duplicate, but not of a producer that may write twice
    h.send(1, 0, pid=7)
    h.send(2, 2, note=RETRIED)
    h.poll((0, 1), (1, 1), (2, 2), (3, 2))
    h = begin()  # lost-write
    h.send(1, 0)
    h.send(2, 1, proc="q")
    h.poll((1, 2))
    h = begin()  # lost-write: half of the writes of an operation of unknown outcome are there
    h.op("p", "send", kind="info", sends=[Send("t-0", None, 1), Send("t-0", None, 2)])
    h.op("p", "send", kind="info", sends=[Send("t-0", None, 3), Send("t-0", None, 4)])
    h.op("c", "poll", kind="info", polls=[("t-0", [Record(1, 1), Record(5, 9)])])
    h.send(2, 2, proc="q")
    h.send(4, 3, proc="q")
    h = begin()  # unseen; one without an offset, and one that was trimmed
    for value in (1, 2, 3):
        h.send(value, value)
    h.send(4)
    h.poll((2, 2), proc="drain", final=True)
    h = begin()  # unseen: nothing was left
    h.send(1, 0)
    h.poll(proc="drain", final=True)
    h = begin()  # phantom, aborted-read
    h.send(1, kind="fail")
    h.poll((0, 1), (1, 9))
    h = begin()  # nonmonotonic-send and its form inside one operation; not one that was retried
    h.send(1, 1)
    h.send(2, 0)
    h.op("q", "send", sends=[Send("t-0", 5, 11), Send("t-0", 4, 12)])
    h.send(21, 9, proc="r")
    h.send(22, 8, proc="r", note=RETRIED)
    # polls, with and without an order to move
    for told in ("assign", "rebalance", "revoke", "seek", ""):
        h = begin()
        for value in range(6):
            h.send(value, value)
        h.op("c", "assign", keys=["t-0"])
        h.poll((0, 0), (2, 2), (1, 1))
        if told:
            more: dict[str, Any] = {"marks": [Mark("t-0", 0)]} if told == "seek" else {"keys": []}
            h.op("c", told, **more)
        h.poll((4, 4), kind="fail")
        h.poll((3, 3), (4, 4))
        h.op("c", "assign", keys=["t-0"])
        h.poll((3, 3))
    h = begin()  # realtime-offset
    h.send(1, 5)
    h.send(2, 4, proc="q")
    for note in ("", "heal", "begin"):  # stale-read; not in a fault, nor just after
        h = begin()
        h.op("nemesis", "fault", note="heal")
        h.send(1, 0)
        h.poll((0, 1))
        h.send(2, 1)
        h.now += 6 * S
        if note:
            h.op("nemesis", "fault", note=note)
        h.poll()
        h.op("nemesis", "fault", note="heal")
        h.now += 6 * S
        h.poll()
        h.op("c", "assign", keys=["t-0"])
        h.poll()
    h = begin()  # truncated-read
    h.send(1, 0)
    h.send(2, kind="info")
    h.send(3, 2)
    h.poll((0, 1), (1, 2))
    h.poll((0, 1), (2, 3), proc="drain", final=True)
    h = begin()  # hw-regress, within one epoch
    h.poll(hw={"t-0": (1, 5)})
    h.poll(hw={"t-0": (2, 4)})
    h.poll(hw={"t-0": (2, 3)})
    h = begin()  # epoch-regress, two-leaders
    h.send(1, 0, node="n1")
    h.send(2, 1, node="n2")
    h.send(3, 2, node="n2")
    h.poll(
        *[(0, 1, 5), (1, 2, 5), (2, 3, 4)],  # type: ignore[arg-type]
        proc="drain",
        final=True,
    )
    h = begin()  # list-offsets, each of its forms
    h.send(1, 0)
    h.send(2, 1)
    for timestamp, offset in ((LATEST, 1), (EARLIEST, 1), (105, -1), (110, 0), (100, 1)):
        h.list(timestamp, offset)
    h.poll((0, 1, 1, 100), (1, 2, 1, 110), proc="drain", final=True)  # type: ignore[arg-type]
    return scripts


def random_history(rng: random.Random) -> list[Op]:
    """Return a history that a correct log of two keys might show, with errors in some places.

    It has two producers and two consumers.
    """
    h = Script()
    logs: dict[str, dict[int, Record]] = {key: {} for key in KEYS}
    ends = dict.fromkeys(KEYS, 0)
    places: dict[tuple[str, str], int] = {}
    for value in range(rng.randrange(20, 90)):
        key, proc, took = rng.choice(KEYS), rng.choice(PROCS), rng.randrange(1, 9)
        h.now = max(0, h.now - rng.choice((0, 0, 3)) + rng.choice((0, 0, 0, 6 * S)))
        log = logs[key]
        if proc.startswith("p"):
            kind = rng.choice(("ok", "ok", "ok", "info", "fail"))
            sends = []
            for n in range(rng.choice((1, 1, 2))):
                if kind != "fail" and (kind == "ok" or rng.random() < 0.5):
                    offset = ends[key]
                    log[offset] = Record(offset, 2 * value + n, value // 30, 100 + value)
                    ends[key] = offset + rng.choice((1, 1, 1, 2))
                sends.append(Send(key, offset if kind == "ok" else None, 2 * value + n))
            pid, note = rng.choice((-1, 7)), rng.choice(("", "", RETRIED))
            node = f"n{value // 30}"
            h.op(proc, "send", kind=kind, took=took, sends=sends, pid=pid, note=note, node=node)
            continue
        f = rng.choice(
            ("poll",) * 8 + ("assign", "seek", "revoke", "rebalance", "list_offsets", "fault")
        )
        if f == "poll":
            start = places.get((proc, key), 0)
            taken = [log[offset] for offset in sorted(log) if offset >= start]
            taken = taken[: rng.randrange(5)]
            if taken:
                places[proc, key] = taken[-1].offset + 1
            kind = rng.choice(("ok",) * 5 + ("info",))
            hw = {key: (value // 30, ends[key])}
            polls = [(key, [replace(record) for record in taken])]
            h.op(proc, f, kind=kind, took=took, polls=polls, hw=hw)
        elif f == "list_offsets":
            timestamp = rng.choice((LATEST, EARLIEST, 100 + rng.randrange(90)))
            at = 0 if timestamp == EARLIEST else ends[key]
            h.op(proc, f, took=took, marks=[Mark(key, at, timestamp)])
        elif f == "fault":
            h.op("nemesis", f, note=rng.choice(("begin", "heal")))
        elif f == "seek":
            places[proc, key] = rng.randrange(ends[key] + 1)
            h.op(proc, f, marks=[Mark(key, places[proc, key])])
        else:
            h.op(proc, f, keys=rng.choice(([], [key], list(KEYS))))
    for key in KEYS:
        records = [replace(logs[key][offset]) for offset in sorted(logs[key])]
        h.op("drain", "poll", polls=[(key, records)], final=True)
    for _ in range(rng.choice((0, 1, 2, 8))):
        tamper(rng, rng.choice(h.ops))
    return h.ops


def tamper(rng: random.Random, op: Op) -> None:
    """Change one field of an operation."""
    records = [record for _, records in op.polls for record in records]
    choices: list[Callable[[], object]] = [
        lambda: setattr(op, "type", rng.choice(("ok", "fail", "info"))),
        lambda: setattr(op, "t1", op.t1 + rng.randrange(30)),
    ]
    if op.sends:
        send = rng.choice(op.sends)
        choices += [
            lambda: setattr(send, "offset", rng.choice((None, rng.randrange(30)))),
            lambda: setattr(send, "value", rng.randrange(150)),
            lambda: setattr(op, "node", "n9"),
            lambda: op.sends.append(replace(send)),
        ]
    if records:
        record = rng.choice(records)
        choices += [
            lambda: setattr(record, "offset", rng.randrange(30)),
            lambda: setattr(record, "value", rng.randrange(150)),
            lambda: setattr(record, "leader_epoch", rng.randrange(-1, 4)),
            lambda: setattr(record, "timestamp", rng.randrange(-1, 200)),
            lambda: op.polls[0][1].remove(record),
            op.polls[0][1].reverse,
        ]
    if op.marks:
        choices.append(lambda: setattr(op.marks[0], "offset", rng.randrange(-1, 20)))
    if op.hw:
        choices.append(lambda: op.hw.update(dict.fromkeys(op.hw, (0, 3))))
    rng.choice(choices)()


def joined(histories: list[list[Op]]) -> list[Op]:
    """Return one history made of many in sequence, each with its own keys and processes."""
    ops: list[Op] = []
    now = 0
    for n, one in enumerate(histories):
        name, first = f"h{n:02}", len(ops)
        ops.append(Op(first, "nemesis", "fault", "ok", now, now, note="heal"))
        end = now + 1
        for op in one:
            op.i += first + 1
            op.t0 += now + 1
            op.t1 += now + 1
            end = max(end, op.t1 + 1)
            op.proc = f"{name}{op.proc}"
            op.keys = [f"{name}{key}" for key in op.keys]
            op.polls = [(f"{name}{key}", records) for key, records in op.polls]
            op.hw = {f"{name}{key}": told for key, told in op.hw.items()}
            for place in (*op.sends, *op.marks):
                place.key = f"{name}{place.key}"
            ops.append(op)
        now = end
    return ops


def write(path: Path, ops: list[Op]) -> str:
    with path.open("w", encoding="utf-8") as file:
        history.write(ops, file)
    return str(path)


def told(found: list[Anomaly]) -> list[str]:
    return sorted(str(one) for one in found if one.name not in NOT_CHECKED)


class Shared:
    """Session of all tests, which a command must not stop."""

    def __init__(self, spark: Any) -> None:
        self.read = spark.read

    def stop(self) -> None:
        pass


def test_checks_are_those_of_the_checker_in_memory() -> None:
    """A new check there that is missing here makes the test fail."""
    assert [one.find.__name__ for one in CHECKS] == [one.__name__ for one in anomalies.CHECKS]
    assert set(CHECKED) == {name_of(kind) for kind in TEXTS}


def test_facts_of_a_line_are_numbered_and_each_names_its_operation() -> None:
    """A blank line is ignored; a line that is no operation is kept as it is."""
    h = Script()
    h.op("p", "send", kind="info", sends=[Send("t-0", None, 4), Send("t-1", None, 5)])
    h.poll((0, 4), (1, 7))
    h.op("a", "commit", marks=[Mark("t-0", 3)])
    lines = [history.encode(op) for op in h.ops]
    batch = pa.record_batch([pa.array([*lines, b" ", b"{\xff"], pa.binary())], ["line"])
    (facts,) = facts_of(iter([batch]))
    assert facts.schema == FACTS
    rows = facts.to_pylist()
    assert [(row["what"], row["op"], row["seq"]) for row in rows] == [
        (SENT, 0, 0), (SENT, 0, 1), (READ, 1, 0), (READ, 1, 1), (OTHER, 2, 0), (MALFORMED, None, 0),
    ]  # fmt: skip
    assert rows[0]["siblings"] == [4, 5]
    assert rows[-1]["line"] == b"{\xff"


@pytest.mark.takes_turns(parts=2)
@pytest.mark.spark
def test_check_on_spark_finds_what_the_check_in_memory_finds(spark: Any, tmp_path: Path) -> None:
    """Names, keys, texts and operations are equal; every anomaly is among them."""
    histories = [script.ops for script in planted()]
    histories += [random_history(random.Random(seed)) for seed in range(SEEDS)]
    ops = joined(histories)
    wanted = find(ops)
    assert {one.name for one in wanted} >= set(CHECKED)
    assert not any(one.key.startswith("h00") for one in wanted)
    # In two files, both in random order.
    random.Random(1).shuffle(ops)
    files = [tmp_path / "some.jsonl", tmp_path / "others.jsonl"]
    for file, some in zip(files, (ops[::2], ops[1::2]), strict=True):
        file.write_bytes(b"".join(history.encode(op) + b"\n" for op in some))
    verdict = check([str(file) for file in files], spark, examples_max=len(wanted))
    assert told(verdict.examples) == told(wanted)
    assert verdict.anomalies == Counter(one.name for one in wanted if one.name in CHECKED)
    assert verdict.outcomes == Counter(op.type for op in ops)
    assert verdict.operations == len(ops)


@pytest.mark.spark
def test_command_of_a_bad_history_shows_some_of_each_anomaly(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts cover all anomalies, examples the first twenty; exit code 1."""
    monkeypatch.setattr(commands, "make_session", lambda *_, **__: Shared(spark))
    h = Script()
    h.poll(*[(n, n) for n in range(23)])
    path = write(tmp_path / "history.jsonl", h.ops)
    done = CliRunner().invoke(commands.pipeline, ["check", path, "--json"], standalone_mode=False)
    assert done.return_value == 1
    said = json.loads(done.stdout)  # Spark's workers write to stderr
    assert said["anomalies"] == {"phantom": 23}
    assert len(said["examples"]) == 20
    assert said["not_checked"] == list(NOT_CHECKED)


@pytest.mark.spark
def test_command_of_no_history_names_file_and_line(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, as for `vdl check`, also for a file that Spark would not read."""
    monkeypatch.setattr(commands, "make_session", lambda *_, **__: Shared(spark))
    h = Script()
    h.send(1, 0)
    good, bad = write(tmp_path / "good.jsonl", h.ops), tmp_path / "bad.jsonl"
    bad.write_text(Path(good).read_text(encoding="utf-8") + "\nnonsense\n", encoding="utf-8")
    run = CliRunner().invoke
    done = run(commands.pipeline, ["check", good, str(bad)], standalone_mode=False)
    assert done.return_value == 2
    assert done.output.startswith(f"{bad}: not an operation: ")
    assert "nonsense" in done.output
    hidden = write(tmp_path / "_hidden.jsonl", h.ops)
    assert run(commands.pipeline, ["check", hidden], standalone_mode=False).return_value == 2
