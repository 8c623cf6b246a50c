"""Journal files belongs to another data directory, copied here by mistake, are never used."""

import shutil
from pathlib import Path

import pytest

from segments.api import ForeignFile
from segments.io.fs import RealFileSystem
from segments.recovery.replay import replay_journal
from segments.tool import Directory
from tests.storage_contract.conftest import SMALL, DiskHarness, put


class Two:
    """Two stopped directories: one under test, and that of another server with the same groups."""

    def __init__(self, tmp_path, writer):
        self.ours, self.theirs = (
            DiskHarness(SMALL, directory=str(tmp_path / name), lives=lives)
            for lives, name in ((0, "data"), (50, "other"))
        )
        for harness, count in ((self.ours, 90), (self.theirs, 140)):
            harness.start()
            log = harness.new_log(9)
            put(harness, log, writer, count, size=400)
            harness.checkpoint()
            put(harness, log, writer, 20)
            harness.pump()
            harness.workers.advance(1000)
            harness.crash()
        for _ in range(5):  # each start begins a file
            self.theirs.start()
            for _ in range(3):
                put(self.theirs, self.theirs.log, writer, 1)
            self.theirs.crash()
        self.before = self.contents()

    @staticmethod
    def journals(harness):
        return sorted(Path(harness.directory, "journal").glob("*.journal"))

    def contents(self):
        top = Path(self.ours.directory)
        return {
            path.relative_to(top): path.read_bytes()
            for path in top.rglob("*")
            if path.is_file() and path.name != "lock.mdb"
        }

    def written(self, harness):
        """Return the files with a block, oldest first. Their headers name them."""
        return [
            path
            for path in self.journals(harness)
            if int.from_bytes(path.read_bytes()[16:24], "little") == int(path.stem, 16)
        ]


@pytest.fixture
def two(tmp_path, writer):
    return Two(tmp_path, writer)


def is_refused(two, path):
    before = two.contents()
    for _ in range(2):
        with pytest.raises(ForeignFile, match="belongs to another data directory") as raised:
            two.ours.start()
        assert raised.value.path == str(path)
        assert two.contents() == before
    with Directory(RealFileSystem(), two.ours.directory, SMALL.index_segment_entries) as found:
        assert str(path) in found.replay.strays


def goes_on(two):
    assert two.contents() == two.before
    two.ours.start()
    assert len(two.ours.all_entries(two.ours.log)) == 110
    assert not two.ours.log.lost
    two.ours.crash()


def test_newer_file_of_another_directory_stops_the_start(two):
    """A newer foreign file is an error.

    It would count as the newest, and define the votes of the logs here.
    """
    theirs = two.written(two.theirs)[-1]
    here = Path(two.ours.directory, "journal", theirs.name)
    assert theirs.name > two.journals(two.ours)[-1].name
    shutil.copy(theirs, here)
    is_refused(two, here)
    here.unlink()
    goes_on(two)


def test_file_of_another_directory_in_place_of_ours_stops_the_start(two):
    """The file's own contents can neither be read from it nor be ignored."""
    ours = two.written(two.ours)[-1]
    kept = ours.read_bytes()
    theirs = two.written(two.theirs)[-1].read_bytes()
    ours.write_bytes(theirs)
    is_refused(two, ours)
    ours.write_bytes(kept)
    goes_on(two)


def test_file_of_another_directory_under_another_name_stops_the_start(two):
    """A foreign file under another name is an error.

    It would pass for a released file and be reused, or for a sign of damage.
    """
    last = two.journals(two.ours)[-1]
    here = last.with_name(f"{int(last.stem, 16) + 9:016x}.journal")
    shutil.copy(two.written(two.theirs)[-1], here)
    is_refused(two, here)
    here.unlink()
    goes_on(two)


def test_file_of_another_directory_whose_first_block_is_damaged_stops_the_start(two):
    """The other files identify the directory."""
    theirs = two.written(two.theirs)[-1]
    here = Path(two.ours.directory, "journal", theirs.name)
    data = bytearray(theirs.read_bytes())
    first = data.index(b"VDLB")
    assert data.count(b"VDLB") > 1
    data[first + 70] ^= 1
    here.write_bytes(data)
    with pytest.raises(ForeignFile):
        two.ours.start()
    here.unlink()
    goes_on(two)


def test_whole_journal_of_another_directory_stops_the_start(two):
    shutil.rmtree(f"{two.ours.directory}/journal")
    shutil.copytree(f"{two.theirs.directory}/journal", f"{two.ours.directory}/journal")
    before = two.contents()
    with pytest.raises(ForeignFile):
        two.ours.start()
    assert two.contents() == before


def test_every_block_says_whose_it_is(two):
    two.ours.start()
    identity = two.ours.store._recovered.identity
    directory_id = two.ours.store.directory_id
    two.ours.crash()
    for path in two.written(two.ours):
        data = path.read_bytes()
        at = data.index(b"VDLB")
        assert data[at + 48 : at + 64] == directory_id
    replay = replay_journal(RealFileSystem(), f"{two.ours.directory}/journal", identity)
    assert not any(log.lost for log in replay.logs.values())
