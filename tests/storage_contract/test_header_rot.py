"""Damage to any byte of a journal header or of the identity loses nothing and stops no start.

What a start has repaired withstands the next damage.
"""

import shutil
from pathlib import Path

import pytest

from segments.format.block import FILE_MAGIC, decode_file_header
from tests.storage_contract.conftest import make, put

STEP = 409


@pytest.fixture
def lived(tmp_path, writer):
    """Return a harness with several needed journal files, and one used before."""
    harness = make("disk", tmp_path)
    log, other = harness.new_log(9), harness.new_log(10)
    put(harness, log, writer, 120, size=400)
    harness.checkpoint()
    for _ in range(9):
        harness.store.append(other, writer(other).entries(10, size=700))
        harness.submit()
    harness.workers.advance(1000)
    harness.crash()
    yield harness
    harness.crash()


def test_rot_anywhere_in_a_header_or_the_identity_costs_nothing(lived, tmp_path):
    root, aside = Path(lived.directory), tmp_path / "aside"
    shutil.copytree(root, aside)
    places = []
    for path in [*sorted((root / "journal").iterdir()), root / "identity"]:
        data = path.read_bytes()
        header = decode_file_header(data) if data[:8] == FILE_MAGIC else None
        end = header.bytes if header is not None else 0
        end = len(data) if path.name == "identity" else end
        first = range(0, min(end, 64), 4)
        places += [(path, at) for at in sorted({*first, *range(0, end, STEP)})]
    assert len({path for path, _ in places}) > 3
    for n, (path, at) in enumerate(places):
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << n % 8
        path.write_bytes(data)
        lived.start()
        logs = lived.store.logs
        assert not any(log.lost for log in logs.values()), (path, at)
        assert [log.last_index for log in logs.values()] == [120, 90], (path, at)
        lived.crash()
        shutil.rmtree(root)
        shutil.copytree(aside, root)
    lived.start()
