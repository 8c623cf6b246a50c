"""`vdl log verify` on placed appends, compared with a start's result.

One test for each row of the table in segments/INTERNALS.md, on real files.
"""

import json
import random
from pathlib import Path

import pytest

from segments.api import EntriesDamaged
from segments.log.index import place
from segments.tool import Directory, dump, rebuild_index, verify
from tests.storage_contract.conftest import PLACING, DiskHarness, SimHarness
from tests.storage_contract.test_placed import append, commit, jobs, proved, settled
from vdl.commands.app import run_app

GOOD, DAMAGED, LOST = "good", "damaged", "lost"


@pytest.fixture
def engine(tmp_path):
    """Yield two logs on real files; the first one is examined."""
    made = settled(DiskHarness(PLACING, directory=str(tmp_path / "data")))
    made.new_log()
    yield made
    made.crash()


@pytest.fixture
def sim():
    """Yield the same on a simulated disk, for tests that examine many."""
    made = settled(SimHarness(PLACING))
    made.new_log()
    yield made
    made.crash()


def look(engine):
    directory = engine.directory if isinstance(engine, DiskHarness) else "data"
    return Directory(engine.store._fs, directory, index_entries=16)


def problems(engine):
    """Return the problems of the first log; the second has none.

    Parts that are merely rebuilt are not problems.
    """
    with look(engine) as directory:
        (report, *others), _ = verify([directory])
    assert all(other.problems == [] for other in others)
    return [text for text in report.problems if "rebuilt" not in text]


def start_finds(engine):
    """Return what a start reports of the first log, and its last entry."""
    engine.start()
    log, found = engine.log, GOOD
    assert all(not other.lost for other in engine.store.logs.values() if other is not log)
    if log.lost:
        found = LOST
    else:
        try:
            engine.all_entries(log)
        except EntriesDamaged:
            found = DAMAGED
    engine.crash()
    return found, log.last_index


def agree(engine):
    """After the process has ended, return what a start finds, and the last entry."""
    engine.crash()
    said = problems(engine)
    if isinstance(engine, DiskHarness):
        code = run_app(["log", "verify", "--index-entries", "16", "--json", engine.directory])
        assert code == int(bool(said))
    found, last = start_finds(engine)
    assert bool(said) == (found != GOOD), said
    assert any("the replica is lost" in text for text in said) == (found == LOST), said
    return found, last


def place_of(engine, index):
    """Return (path of the segment, position) of a placed entry."""
    log = engine.log
    segment, position = log.placement.place_of(index, log.cursor, log.tail)
    return log.files.segment_path(segment), position


def flip(engine, path, position):
    file = engine.store._fs.open(path)
    file.pwrite([bytes([file.pread(1, position)[0] ^ 4])], position, durable=True)
    file.close()


def cut(engine, path, length):
    file = engine.store._fs.open(path)
    file.truncate(length)
    file.sync()
    file.close()


def run(*made):
    for job, done in made:
        done(job())


def placed(engine, count=8, **what):
    """Append entries that are on disk and proved; none is committed."""
    append(engine, count, **what)
    assert engine.store._queue.batch.payloads
    engine.submit()
    proved(engine)
    last = engine.log.last_index
    return last, {n: place_of(engine, n) for n in range(last + 1 - count, last + 1)}


def test_payload_without_its_block(engine):
    """No entry: it was never acknowledged."""
    last = engine.log.last_index
    append(engine, 8)
    _, payload = jobs(engine)
    run(payload)
    assert agree(engine) == (GOOD, last)


@pytest.mark.parametrize("what", ["table", "header"])
def test_payload_whose_block_is_torn(engine, what):
    """A payload whose block is torn is no entry, though the payload itself is intact."""
    last = engine.log.last_index
    append(engine, 8)
    run(*jobs(engine))
    path = engine.store._journal.chain.paths[engine.store._journal.current_sequence]
    file = engine.store._fs.open(path)
    at = file.pread(file.size(), 0).rindex(b"VDLB")
    file.close()
    flip(engine, path, at + (80 if what == "table" else 5))
    assert agree(engine) == (GOOD, last)


def test_last_block_without_its_payload(engine):
    """A last block without its payload counts as torn."""
    last = engine.log.last_index
    append(engine, 8)
    block, _ = jobs(engine)
    block[0]()
    assert agree(engine) == (GOOD, last)


@pytest.mark.parametrize("behind", [0, 3, 7])
@pytest.mark.parametrize("at", [0, 4, 16, 24, 60])
def test_last_block_with_a_damaged_payload(sim, behind, at):
    """A last block whose payload is damaged anywhere counts as torn."""
    last = sim.log.last_index
    append(sim, 8)
    run(*jobs(sim))
    path, position = place_of(sim, sim.log.last_index - behind)
    flip(sim, path, position + at)
    assert agree(sim) == (GOOD, last)


def test_last_block_with_its_payload(engine):
    """All of it is there."""
    append(engine, 8)
    run(*jobs(engine))
    assert agree(engine) == (GOOD, engine.log.last_index)


@pytest.mark.parametrize("upto", [0, 3, 8])
def test_proved_block_with_its_payload(engine, upto):
    """A proved block's entries are all there, independent of how many are committed."""
    last, _ = placed(engine)
    if upto:
        commit(engine, last - 8 + upto)
        engine.submit()
    assert agree(engine) == (GOOD, last)


def test_damaged_payload_that_was_cut_off(engine):
    """Damage to truncated payloads is not reported: their place may be overwritten."""
    last, places = placed(engine)
    path, position = places[last - 1]
    append(engine, 2, first=last - 3, term=2, size=20)
    engine.submit()
    proved(engine)
    flip(engine, path, position + 60)
    assert agree(engine) == (GOOD, last - 2)


def test_damaged_payload_that_its_own_block_cut_off(engine):
    """Damage to payloads that their own last block truncates is not reported."""
    append(engine, 8)
    last = engine.log.last_index
    path, position = place_of(engine, last - 1)
    append(engine, 2, first=last - 3, term=2, size=20)
    run(*jobs(engine))
    flip(engine, path, position + 60)
    assert agree(engine) == (GOOD, last - 2)


@pytest.mark.parametrize("what", ["reset", "delete"])
def test_damaged_payload_of_a_log_that_begins_anew(engine, what):
    """Files are removed; those of a deleted log have no effect on another."""
    last, places = placed(engine)
    path, position = places[last - 1]
    flip(engine, path, position + 60)
    if what == "reset":
        engine.store.reset_log(engine.log, first_index=last + 5, prev_term=1, next_offset=99)
    else:
        engine.store.delete_log(engine.log.log_id)
    engine.submit()
    assert agree(engine) == (GOOD, last + 4 if what == "reset" else 0)


@pytest.mark.parametrize("at", [0, 4, 16, 24, 60])
@pytest.mark.parametrize("behind", [0, 3, 7])
def test_damaged_payload_that_is_committed(sim, behind, at):
    """Other replicas have it: entries are damaged, and the rest is reported as intact."""
    last, places = placed(sim)
    commit(sim, last)
    sim.submit()
    proved(sim)
    path, position = places[last - behind]
    flip(sim, path, position + at)
    assert agree(sim) == (DAMAGED, last)


@pytest.mark.parametrize("at", [0, 4, 16, 24, 60])
@pytest.mark.parametrize("behind", [0, 3, 7])
def test_damaged_payload_that_is_not_committed(sim, behind, at):
    """Damage to an uncommitted payload loses the replica, for the start and the tool.

    It may have been acknowledged.
    """
    last, places = placed(sim)
    path, position = places[last - behind]
    flip(sim, path, position + at)
    index = last - behind
    sim.crash()
    (said,) = problems(sim)
    assert said.startswith(f"entries [{index}, {index + 1}) are damaged at position {position}")
    assert agree(sim) == (LOST, last)


def test_command_says_that_the_replica_is_lost(engine, capfd):
    """The command reports a lost replica by its message and its exit code."""
    last, places = placed(engine)
    path, position = places[last]
    flip(engine, path, position + 60)
    assert agree(engine) == (LOST, last)
    (problem,) = json.loads(capfd.readouterr().out)["logs"][0]["problems"]
    assert problem.startswith(f"entries [{last}, {last + 1}) are damaged at position {position}")
    assert "the replica is lost" in problem


def test_damage_on_both_sides_of_the_commit_index(engine):
    """One of the two may have been acknowledged, and is lost."""
    last, places = placed(engine)
    commit(engine, last - 4)
    engine.submit()
    proved(engine)
    for index in (last - 6, last - 2, last - 1):
        path, position = places[index]
        flip(engine, path, position + 60)
    engine.crash()
    said = problems(engine)
    assert agree(engine) == (LOST, last)
    assert [text.split(",")[0:2] for text in said] == [
        [f"entries [{last - 6}", f" {last - 5}) are damaged at position {places[last - 6][1]}"],
        [f"entries [{last - 2}", f" {last}) are damaged at position {places[last - 2][1]}"],
    ]


@pytest.mark.parametrize("upto", [0, 8])
@pytest.mark.parametrize("what", ["cut", "gone"])
def test_segment_that_a_payload_began_is_cut_short_or_missing(engine, what, upto):
    """A start reports the log lost, committed or not, as with any segment."""
    last, places = placed(engine, 7, size=500)
    assert engine.log.placement.begun
    if upto:
        commit(engine, last)
        engine.submit()
        proved(engine)
    path, position = places[last]
    if what == "gone":
        engine.store._fs.unlink(path)
    else:
        cut(engine, path, position + 20)
    engine.crash()
    assert problems(engine)
    assert start_finds(engine)[0] == LOST


@pytest.mark.parametrize("upto", [0, 8])
def test_header_of_a_segment_that_a_payload_began(engine, upto):
    """A damaged header of such a segment is rebuilt from the other copies."""
    last, _ = placed(engine, 7, size=500)
    begun = engine.log.placement.begun[-1]
    if upto:
        commit(engine, last)
        engine.submit()
        proved(engine)
    flip(engine, engine.log.files.segment_path(begun.number), 20)
    assert agree(engine) == (GOOD, last)


def test_log_that_a_checkpoint_says_is_committed_further(engine):
    """Applied entries are committed, though the journal does not record it yet."""
    last, places = placed(engine)
    engine.crash()
    with look(engine) as directory:
        replayed = directory.replay.logs[engine.log.log_id]
        known = directory.identity.logs[engine.log.log_id]
        path, position = places[last]
        flip(engine, path, position + 60)
        assert [found.first for found in directory.lost_ahead(known)] == [last]
        replayed.applied = last
        assert directory.lost_ahead(known) == []


def flushed_end(engine):
    """Return (path of the segment, position) of the end of the last flushed entry."""
    files = engine.log.files
    idx = files.idx(engine.log.flushed_index)
    return files.segment_path(idx.segment), idx.position


@pytest.mark.parametrize(("kept", "finds"), [(1, LOST), (0, GOOD)])
def test_end_of_the_last_flushed_entry_that_nothing_tells(sim, kept, finds):
    """The next entry would be placed there.

    The replica lost its log, unless the segment is removed as well.
    """
    log, last = sim.log, sim.log.last_index
    path, position = flushed_end(sim)
    number, at = place(last, 16)
    sim.store.trim_log(log, first_index=last + 1 - kept)
    sim.store.submit()
    sim.workers.run_one(sim.workers.journal_jobs)
    flip(sim, path, position + 2)
    flip(sim, log.files.index_path(number), at + 3)
    assert agree(sim) == (finds, last)


def test_damaged_entry_whose_idx_is_gone(sim):
    """A damaged entry without Idx is skipped, and those behind it are read."""
    log, (first, *_) = sim.log, sim.log.segments
    index = first.first_index + 1
    idx = log.files.idx(index)
    flip(sim, log.files.segment_path(idx.segment), idx.position + 60)
    sim.store._fs.unlink(log.files.index_path(place(index, 16)[0]))
    sim.crash()
    (said,) = problems(sim)
    assert said.startswith(f"entries [{index}, {index + 1}) are damaged at position {idx.position}")


def test_other_commands_beside_a_damaged_payload(engine):
    """`dump` shows the journal's records; `index` writes what is flushed, and leaves the rest."""
    last, places = placed(engine)
    path, position = places[last - 1]
    flushed = engine.log.flushed_index
    flip(engine, path, position + 60)
    engine.crash()
    before = Path(path).read_bytes()
    with look(engine) as directory:
        (report, _) = dump(directory)
        assert (report.last_index, report.flushed_index, report.problems) == (last, flushed, [])
        assert rebuild_index(directory) == report.segments
    assert Path(path).read_bytes() == before
    assert start_finds(engine)[0] == LOST


@pytest.mark.parametrize("seed", range(60))
def test_any_byte_of_what_is_placed(sim, seed):
    """Flipped, or the file cut there, wherever the log's files and the journal have one."""
    rng = random.Random(seed)
    last = sim.log.last_index
    append(sim, rng.randint(2, 8), size=rng.choice((300, 500)))
    sim.submit()
    if rng.random() < 0.7:
        proved(sim)
    if rng.random() < 0.5:
        commit(sim, rng.randint(last, sim.log.last_index))
        sim.submit()
    if rng.random() < 0.5:
        proved(sim)
    files, begins = sim.store._fs, sim.log.flushed_index + 1
    path, position = place_of(sim, begins)
    end_path, end = place_of(sim, sim.log.last_index)
    if path != end_path:
        path, position, end = rng.choice([(path, position, 1 << 30), (end_path, 0, end)])
    file = files.open(path)
    at = rng.randrange(position, min(end + 48, file.size()))
    file.close()
    if rng.random() < 0.2:
        cut(sim, path, at)
    else:
        flip(sim, path, at)
    sim.crash()
    said = problems(sim)
    found, _ = start_finds(sim)
    assert bool(said) == (found != GOOD), said
