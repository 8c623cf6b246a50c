"""Offline tools."""

import shutil

import pytest

from segments.api import DirectoryInUse
from segments.fs import RealFileSystem
from segments.tool import Directory, dump, rebuild_index, verify


def filled(bench):
    first, second = bench.create(2)
    bench.append(first, 100, size=300)
    bench.append(second, 10, size=300)
    bench.checkpoint()
    bench.store.abandon()


def look(path):
    return Directory(RealFileSystem(), str(path), index_entries=64)


def test_dump_names_every_log_and_its_state(bench):
    """Offline, from identity and journal."""
    filled(bench)
    with look(bench.path) as directory:
        first, second = dump(directory)
    assert (first.group_id, first.last_index, first.commit, first.term) == (9, 100, 100, 1)
    assert (first.flushed_index, first.problems) == (100, [])
    assert first.segments >= 4
    assert (second.last_index, second.flushed_index, second.segments) == (10, 0, 0)
    bench.open()


def test_dump_of_a_directory_in_use_is_refused(bench):
    """No server may hold it."""
    with pytest.raises(DirectoryInUse):
        look(bench.path)


def test_verify_names_the_copy_that_is_wrong(bench, flip_bit, tmp_path):
    """Three directories: the first entry that differs, and which copy."""
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
    reports, _ = verify(looked)
    problems = {report.directory: report.problems for report in reports if report.problems}
    assert list(problems) == [str(copies[1]), str(copies[2])]
    assert "entries [" in problems[str(copies[1])][0]
    assert "rebuilt" in problems[str(copies[2])][0]
    assert rebuild_index(looked[2]) >= 4
    assert [r.problems for r in verify([looked[2]])[0]] == [[], []]
    for directory in looked:
        directory.__exit__()
    bench.open()
