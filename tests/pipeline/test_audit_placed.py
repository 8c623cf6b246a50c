"""Audit of preallocated files: large appends are read where they were placed, damage included."""

from pathlib import Path

from segments.tool import Directory
from tests.storage_contract.conftest import PLACING, DiskHarness
from tests.storage_contract.test_placed import damage_one, settled
from vdl.pipeline.audit import DAMAGED, tail_of


def test_audit_tells_of_a_damaged_payload_and_goes_on(tmp_path: Path) -> None:
    engine = settled(DiskHarness(PLACING, directory=str(tmp_path / "data")))
    damaged, last = damage_one(engine)
    with Directory(engine.store._fs, engine.directory, 16) as directory:
        rows = tail_of(directory, engine.log.log_id)
    assert [(row[2], row[-1]) for row in rows if row[-1]] == [(damaged, DAMAGED)]
    assert rows[-1][2] == last
