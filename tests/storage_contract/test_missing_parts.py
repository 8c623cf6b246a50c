"""Opening a directory with missing parts: each row of the table in `segments/INTERNALS.md`.

Runs on the real file system and the simulated one. A missing part is an error that names it and
changes nothing; once it is put back, nothing is lost.
"""

import pytest

from segments.api import DataMissing
from tests.storage_contract.conftest import SMALL, make, put

ROOT = "data"


def pairs(harness):
    """Return (path, bytes) of every file, and (path, None) of every directory."""
    if hasattr(harness, "disk"):
        return _sim_pairs(harness.disk.root, "")
    from pathlib import Path

    top = Path(harness.directory)
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else None
        for path in top.rglob("*")
        if path.name != "lock.mdb"
    }


def _sim_pairs(directory, at):
    from vdl.sim.disk import Directory, Inode

    found = {}
    for name, node in directory.entries.items():
        path = f"{at}{name}"
        if isinstance(node, Directory):
            found[path] = None
            found |= _sim_pairs(node, f"{path}/")
        else:
            found[path] = bytes(node.data) if isinstance(node, Inode) else dict(node.items)
    return found


class Place:
    """A stopped directory: parts of it are removed and put back."""

    def __init__(self, harness):
        self.harness = harness
        self.aside = {}

    def path(self, name):
        from pathlib import Path

        return Path(self.harness.directory) / name

    def directory(self, name):
        node = self.harness.disk.root.entries[ROOT]
        for part in name.split("/")[:-1]:
            node = node.entries[part]
        return node, name.rpartition("/")[2]

    def take(self, name):
        if hasattr(self.harness, "disk"):
            parent, last = self.directory(name)
            self.aside[name] = parent.entries.pop(last)
            parent.durable.pop(last, None)
        else:
            aside = self.path("..").resolve() / f"aside {len(self.aside)}"
            self.path(name).rename(aside)
            self.aside[name] = aside

    def give_back(self):
        for name, node in reversed(self.aside.items()):
            if hasattr(self.harness, "disk"):
                parent, last = self.directory(name)
                parent.entries[last] = parent.durable[last] = node
            else:
                node.rename(self.path(name))
        self.aside.clear()

    def make_empty(self, name):
        if hasattr(self.harness, "disk"):
            from vdl.sim.disk import Directory

            parent, last = self.directory(name)
            parent.entries[last] = parent.durable[last] = Directory()
        else:
            self.path(name).mkdir()

    def remove_empty(self, name):
        if hasattr(self.harness, "disk"):
            parent, last = self.directory(name)
            del parent.entries[last], parent.durable[last]
        else:
            self.path(name).rmdir()

    def journals(self):
        names = sorted(name for name in pairs(self.harness) if name.endswith(".journal"))
        at = f"{ROOT}/" if hasattr(self.harness, "disk") else ""
        return [name.removeprefix(at) for name in names]


@pytest.fixture(params=["disk", "sim"])
def lived(request, tmp_path, writer):
    """Return a stopped directory with logs in segments and in the journal."""
    harness = make(request.param, tmp_path)
    first, second = harness.new_log(9), harness.new_log(10)
    for log in (first, second):
        put(harness, log, writer, 120, size=400)
    harness.checkpoint()
    put(harness, first, writer, 30)
    harness.pump()
    harness.workers.advance(1000)
    harness.crash()
    yield harness
    harness.crash()


def contents(harness):
    return {n: harness.all_entries(log) for n, log in harness.store.logs.items()}


ROWS = {
    "identity": "identity is missing: the directory is not empty; it has",
    "journal": "journal is missing",
    "logs": "logs is missing",
    "logs/00000001": "logs/00000001 is missing: it has entries up to",
    "meta": "meta is missing",
}


@pytest.mark.parametrize("name", ROWS)
def test_part_that_is_missing_stops_the_start_and_changes_nothing(lived, name):
    """The directory is neither new nor lost.

    The error names the missing path, and once the part is back all is as before.
    """
    place = Place(lived)
    place.take(name)
    before = pairs(lived)
    for _ in range(2):
        with pytest.raises(DataMissing, match=ROWS[name]) as raised:
            lived.start()
        assert raised.value.path.endswith(f"data/{name}")
        assert "restore it" in str(raised.value)
        assert pairs(lived) == before
    place.give_back()
    lived.start()
    assert {len(entries) for entries in contents(lived).values()} == {120, 150}
    assert not any(log.lost for log in lived.store.logs.values())


@pytest.mark.parametrize("name", ["journal", "logs"])
def test_part_that_is_a_mount_point_of_its_own_and_not_mounted_stops_the_start(lived, name):
    """An empty directory of that name counts as missing."""
    place = Place(lived)
    place.take(name)
    place.make_empty(name)
    before = pairs(lived)
    with pytest.raises(DataMissing, match=f"{name}/"):
        lived.start()
    assert pairs(lived) == before
    place.remove_empty(name)
    place.give_back()
    lived.start()
    assert not any(log.lost for log in lived.store.logs.values())


def test_two_parts_that_are_missing_stop_the_start(lived):
    """Any remaining part shows that the directory is not new."""
    for left in ("meta", "logs", "journal"):
        place = Place(lived)
        for name in ("identity", "logs", "meta", "journal"):
            if name != left:
                place.take(name)
        with pytest.raises(DataMissing, match="identity"):
            lived.start()
        place.give_back()
    lived.start()
    assert not any(log.lost for log in lived.store.logs.values())


def test_journal_of_which_only_files_that_were_never_written_are_left_stops_the_start(lived):
    """Such files are prepared ahead, and look like those of a journal that has just begun."""
    place = Place(lived)
    data = pairs(lived)
    at = f"{ROOT}/" if hasattr(lived, "disk") else ""
    for name in place.journals():
        sequence = int(name.rpartition("/")[2].partition(".")[0], 16)
        if data[at + name][16:24] == sequence.to_bytes(8, "little"):
            place.take(name)
    assert place.journals()
    with pytest.raises(DataMissing, match=r"journal/\*\.journal"):
        lived.start()
    place.give_back()
    lived.start()
    assert not any(log.lost for log in lived.store.logs.values())


@pytest.mark.parametrize("backend", ["disk", "sim"])
def test_oldest_journal_file_that_a_log_needs_stops_the_start(tmp_path, writer, backend):
    """No damage explains its absence."""
    harness = make(backend, tmp_path)
    log = harness.new_log(9)
    for _ in range(14):
        harness.store.append(log, writer(log).entries(10, size=700))  # not committed: no flush
        harness.submit()
    harness.workers.advance(1000)
    harness.crash()
    place = Place(harness)
    oldest = place.journals()[0]
    place.take(oldest)
    before = pairs(harness)
    with pytest.raises(DataMissing, match=oldest):
        harness.start()
    assert pairs(harness) == before
    place.give_back()
    harness.start()
    assert not harness.log.lost
    assert harness.log.last_index == 140


@pytest.mark.parametrize("name", ["deleted", "reserve", "lock"])
def test_part_that_holds_nothing_is_made_again(lived, name):
    """A missing folder that held nothing is created again."""
    place = Place(lived)
    there = pairs(lived)
    if any(path.removeprefix(f"{ROOT}/") == name for path in there):
        place.take(name)
    lived.start()
    assert {len(entries) for entries in contents(lived).values()} == {120, 150}


@pytest.mark.parametrize("backend", ["disk", "sim"])
def test_directory_that_is_empty_is_new(tmp_path, backend):
    """An empty directory is new, also the root of a file system with the entries created there."""
    harness = make(backend, tmp_path)
    first = harness.store.directory_id
    harness.close()
    place = Place(harness)
    names = [n for n in pairs(harness) if n.removeprefix(f"{ROOT}/").count("/") == 0 and n != ROOT]
    for name in names:
        place.take(name.removeprefix(f"{ROOT}/"))
    for name in ("lost+found", ".Trash-0"):
        place.make_empty(name)
    harness.start()
    assert harness.store.directory_id != first
    assert harness.store.strays == []
    harness.reopen()
    place.take("lost+found")


@pytest.mark.parametrize("backend", ["disk", "sim"])
def test_empty_directory_is_refused_when_the_configuration_says_so(tmp_path, backend):
    """The configuration can refuse an empty directory, which may be an unmounted disk's."""
    from dataclasses import replace

    harness = make(backend, tmp_path)
    harness.close()
    harness.options = replace(SMALL, accept_empty=False)
    harness.start()
    harness.close()
    place = Place(harness)
    names = [n for n in pairs(harness) if n.removeprefix(f"{ROOT}/").count("/") == 0 and n != ROOT]
    for name in names:
        place.take(name.removeprefix(f"{ROOT}/"))
    before = pairs(harness)
    with pytest.raises(DataMissing, match=r"storage\.accept_empty is false"):
        harness.start()
    assert pairs(harness) == before
    place.give_back()
    harness.start()
    harness.crash()


@pytest.mark.parametrize("backend", ["disk", "sim"])
def test_directory_with_something_else_in_it_is_not_new(tmp_path, backend):
    """No store is created beside other files.

    For example in a directory one level too high, or beside an identity under another name.
    """
    harness = make(backend, tmp_path)
    harness.close()
    place = Place(harness)
    names = [n for n in pairs(harness) if n.removeprefix(f"{ROOT}/").count("/") == 0 and n != ROOT]
    for name in names:
        place.take(name.removeprefix(f"{ROOT}/"))
    place.make_empty("server-1")
    with pytest.raises(DataMissing, match="it has server-1"):
        harness.start()
    place.remove_empty("server-1")
    place.give_back()
    harness.start()
    harness.crash()
