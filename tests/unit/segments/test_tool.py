"""Offline tools."""

import json
import re
import shutil

import pytest

from segments.api import DirectoryInUse
from segments.io.fs import RealFileSystem
from segments.tool import Directory, dump, rebuild_index, verify
from tests.storage_contract.damage import flip_bit
from vdl.commands.app import run_app


def filled(bench):
    first, second = bench.create(2)
    bench.append(first, 100, size=300)
    bench.append(second, 10, size=30)
    bench.checkpoint()
    bench.store.abandon()


def look(path):
    return Directory(RealFileSystem(), str(path), index_entries=64)


def test_dump_names_every_log_and_its_state(bench):
    """The dump comes from identity and journal, without a server."""
    filled(bench)
    with look(bench.path) as directory:
        first, second = dump(directory)
    assert (first.group_id, first.last_index, first.commit, first.term) == (9, 100, 100, 1)
    assert (first.flushed_index, first.problems) == (100, [])
    assert first.segments >= 4
    assert (second.last_index, second.flushed_index, second.segments) == (10, 0, 0)
    bench.open()


def test_dump_of_a_directory_in_use_is_refused(bench):
    """A server holds it."""
    with pytest.raises(DirectoryInUse):
        look(bench.path)


def test_verify_names_the_copy_that_is_wrong(bench, tmp_path):
    """Three directories: the first differing entry, and the wrong copy."""
    filled(bench)
    copies = [bench.path]
    for name in ("two", "three"):
        copies.append(tmp_path / name)
        shutil.copytree(bench.path, copies[-1])
    looked = [look(path) for path in copies]
    reports, differences = verify(looked)
    assert [report.problems for report in reports] == [[]] * 6
    assert differences == []
    for directory in looked:
        directory.__exit__()
    flip_bit(copies[1] / "logs/00000001/0000000002.log", 64 + 348 * 2 + 200)
    flip_bit(copies[2] / "logs/00000001/0000000000.index", 64 + 40 * 5 + 3)
    looked = [look(path) for path in copies]
    reports, differences = verify(looked)
    (found,) = differences
    assert (found.group_id, found.wrong) == (9, [str(copies[1])])
    assert found.offset == found.index - 1
    problems = {report.directory: report.problems for report in reports if report.problems}
    assert list(problems) == [str(copies[1]), str(copies[2])]
    assert "are damaged" in problems[str(copies[1])][0]
    assert f"entries [{found.index}, {found.index + 1})" in problems[str(copies[1])][0]
    assert "rebuilt" in problems[str(copies[2])][0]
    assert rebuild_index(looked[2]) >= 4
    assert [r.problems for r in verify([looked[2]])[0]] == [[], []]
    for directory in looked:
        directory.__exit__()
    bench.open()


def test_verify_names_the_longest_committed_copy_and_not_the_majority(bench, tmp_path, capsys):
    """Two copies follow an outdated one; the third has the acknowledged entries."""
    (log,) = bench.create(1)
    bench.append(log, 10, size=300)
    bench.checkpoint()
    bench.store.abandon()
    copies = [bench.path, tmp_path / "two", tmp_path / "three"]
    for copy in copies[1:]:
        shutil.copytree(bench.path, copy)
    log = bench.open().logs[1]
    bench.append(log, 30, size=300)
    bench.store.abandon()
    for copy in copies[1:]:
        bench.directory = str(copy)
        log = bench.open().logs[1]
        bench.append(log, 5, size=200)
        bench.store.abandon()
    with look(copies[0]) as one, look(copies[1]) as two, look(copies[2]) as three:
        reports, (found,) = verify([one, two, three])
    assert [report.problems for report in reports] == [[]] * 3
    assert (found.index, found.wrong) == (11, [])
    assert (found.longest, found.longest_index) == ([str(copies[0])], 40)
    assert run_app(["log", "verify", "--index-entries", "64", *map(str, copies)]) == 1
    assert f"wrong: unknown; most committed entries (to entry 40), keep: {copies[0]}" in (
        capsys.readouterr().out
    )
    bench.open()


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("logs/00000001/0000000001.log", r"entries \[1, \d+\) are missing"),
        ("logs/00000001/0000000003.log", r"entries \[\d+, \d+\) are damaged at position \d+"),
        ("logs/00000001/0000000005.log", r"entries \[\d+, 101\) are damaged at position \d+"),
        ("logs", r"entries \[1, 101\) are missing"),
    ],
)
def test_verify_misses_what_is_in_no_file_any_more(bench, tmp_path, lost, says):
    """A removed file takes along the CRC that would mismatch."""
    filled(bench)
    copies = [bench.path, tmp_path / "two", tmp_path / "three"]
    for copy in copies[1:]:
        shutil.copytree(bench.path, copy)
    gone = copies[1] / lost
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()
    with look(copies[0]) as one, look(copies[1]) as two, look(copies[2]) as three:
        reports, (found,) = verify([one, two, three])
    ((directory, (problem, *rest)),) = [(r.directory, r.problems) for r in reports if r.problems]
    assert directory == str(copies[1])
    assert re.fullmatch(says, problem)
    is_inside = lost.endswith("3.log")
    assert ["the replica is lost" in told for told in rest] == [True] * (not is_inside)
    assert found.wrong == [str(copies[1])]
    assert f"entries [{found.index}, " in problem
    bench.open()


def test_verify_does_not_miss_what_was_trimmed(bench):
    """A log begins where its prefix was trimmed, whatever else its first segment holds."""
    filled(bench)
    log = bench.open().logs[1]
    bench.store.trim_log(log, first_index=37)
    bench.store.submit()
    bench.idle()
    bench.store.abandon()
    with look(bench.path) as directory:
        first, _ = verify([directory])[0]
    assert (first.first_index, first.entries_read, first.problems) == (37, 64, [])
    bench.open()


def test_command_names_the_first_offset_and_the_wrong_copy(bench, tmp_path, capsys):
    """`vdl log verify DIR...`: 0 when all copies agree, else 1, as text and as JSON."""
    filled(bench)
    copies = [bench.path, tmp_path / "two", tmp_path / "three"]
    for copy in copies[1:]:
        shutil.copytree(bench.path, copy)
    arguments = ["--index-entries", "64", *map(str, copies)]
    assert run_app(["log", "verify", *arguments]) == 0
    assert "6 logs, 0 with problems, 0 groups that differ" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in copies[2].rglob("*") if path.is_file()}
    flip_bit(copies[1] / "logs/00000001/0000000003.log", 64 + 348 * 3 + 100)
    assert run_app(["log", "verify", "--json", *arguments]) == 1
    found = json.loads(capsys.readouterr().out)
    (difference,) = found["differences"]
    assert difference["wrong"] == [str(copies[1])]
    assert difference["offset"] == difference["index"] - 1
    assert sum(bool(log["problems"]) for log in found["logs"]) == 1
    assert run_app(["log", "verify", *arguments]) == 1
    assert f"from offset {difference['offset']}" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before, "verify writes nothing"


def test_command_verifies_what_only_the_journal_holds(bench, capsys):
    """Small logs are in no segment: their entries are verified all the same."""
    (log,) = bench.create()
    bench.append(log, 7)
    bench.idle()
    bench.store.abandon()
    assert run_app(["log", "verify", "--json", str(bench.path)]) == 0
    (report,) = json.loads(capsys.readouterr().out)["logs"]
    assert (report["entries_read"], report["segments"]) == (7, 0)
    assert run_app(["log", "dump", str(bench.path)]) == 0
    assert "entries 1 to 7, committed 7" in capsys.readouterr().out


def test_copies_without_a_majority_are_not_judged(bench, tmp_path, capsys):
    """Two intact copies that differ: which one is wrong is unknown."""
    (log,) = bench.create()
    bench.append(log, 3)
    bench.reopen()
    other = tmp_path / "other"
    bench.store.abandon()
    shutil.copytree(bench.path, other)
    for path, size in ((bench.path, 10), (other, 11)):
        one = type(bench)(path)
        one.append(one.store.logs[1], 2, size=size)
        one.idle()
        one.store.abandon()
    assert run_app(["log", "verify", str(bench.path), str(other)]) == 1
    out = capsys.readouterr().out
    assert "copies differ from offset 3 (entry 4); wrong: unknown" in out


def test_command_rebuilds_indexes_and_refuses_what_is_in_use(bench, capsys):
    """`vdl log index DIR`; a running server's directory is left alone."""
    filled(bench)
    for path in (bench.path / "logs" / "00000001").glob("*.index"):
        path.unlink()
    where = ["--index-entries", "64", str(bench.path)]
    assert run_app(["log", "verify", *where]) == 1
    assert run_app(["log", "index", *where]) == 0
    assert run_app(["log", "verify", *where]) == 0
    bench.open()
    assert run_app(["log", "dump", *where]) == 1
    assert "in use" in capsys.readouterr().err
    assert run_app(["log", "dump", str(bench.path / "journal")]) == 1
    assert "not a data directory" in capsys.readouterr().err
