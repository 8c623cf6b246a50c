"""The liar's batches: each is valid from outside and false inside."""

from random import Random

import pytest

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.host import at_once
from vdl.kafka.partitions.record_checks import Bounds, RecordChecks
from vdl.records.batch import Record, check_batch, crc_matches, iter_records, read_header
from vdl.records.compression import Compression
from vdl.records.walk import ANY_TIME
from vdl.sim.liar import Lie, lying_batch
from vdl.sim.options import Options
from vdl.sim.run import run_seed

ANYTHING: Bounds = (*ANY_TIME, False)


def verdict(batch: bytearray) -> int | ErrorCode:
    """Return the largest timestamp that a server finds, or its error."""
    found: list[int | BaseException] = []
    try:
        header = check_batch(memoryview(batch), produce_version=9, bytes_max=1 << 20)
        RecordChecks(at_once, 0).check_later(memoryview(batch), header, ANYTHING, found.append)
    except KafkaError as error:
        return error.code
    (result,) = found
    if isinstance(result, KafkaError):
        return result.code
    assert isinstance(result, int), result
    return result


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("lie", Lie)
def test_lie_is_inside_a_batch_whose_outside_is_sound(lie: Lie, codec: Compression) -> None:
    """The checksum is right; the records are invalid, or the header's timestamp is false."""
    for seed in range(40):
        rng = Random(seed)
        count, size = rng.randint(2, 6), rng.randint(0, 60)
        records = [Record(b"k", bytes(size), timestamp=1_000) for _ in range(count)]
        batch = lying_batch(lie, records, codec, rng)
        assert crc_matches(memoryview(batch))
        if lie is Lie.MAX_TIMESTAMP:
            assert verdict(batch) == 1_000 != read_header(batch).max_timestamp
            assert len(list(iter_records(memoryview(batch)))) == count
        else:
            assert verdict(batch) == ErrorCode.INVALID_RECORD


def test_liar_in_a_quiet_world_is_found_out_each_time() -> None:
    """Lies are detected on the loop and off it, without effects on other clients."""
    for loop_bytes in (64, 2 << 20):
        options = Options(seconds=4, liars=1, check_on_loop_bytes=loop_bytes)
        outcome = run_seed(5, options=options)
        assert outcome.violations == []
        refused = [op for op in outcome.history if op.err == ErrorCode.INVALID_RECORD]
        assert len(refused) > 20
        assert {op.proc for op in refused} == {"l0"}
