"""The codec against Kafka's own, for every API and every version that either library knows."""

import json
import random
from collections.abc import Callable

import pytest

from tests.codec.java_oracle import NEWEST, OLDER
from tests.wire import complete
from vdl.kafka.codegen.samples import Sampler, side_of, to_json
from vdl.kafka.codegen.schema import load_all
from vdl.kafka.wire.header import RequestHeader, encode_request_header, encode_response_header
from vdl.records.batch import BatchFields, Record, build_batch, iter_records, read_header
from vdl.records.compression import Compression

pytestmark = pytest.mark.java

Oracle = Callable[[str, list[str]], list[list[str]]]
SAMPLES = 4


def test_messages_of_every_version_have_the_bytes_kafka_gives_them(oracle: Oracle) -> None:
    """Kafka encodes the JSON of a message to the same bytes, and decodes these to the same JSON."""
    rng = random.Random(11)
    lines, expected = [], []
    for api in load_all():
        module = complete(api)
        for message in api.messages:
            side = side_of(api, message)
            for version in message.versions:
                for _ in range(SAMPLES):
                    sample = Sampler(rng).message(api, message, version)
                    data = b"".join(getattr(module, f"encode{side}")(sample, version))
                    assert getattr(module, f"decode{side}")(memoryview(data), version) == sample
                    text = json.dumps(to_json(message.fields, sample, version))
                    lines.append(f"{message.name}\t{version}\t{data.hex()}\t{text}")
                    expected.append(data.hex())
    by_newest = oracle(NEWEST, lines)
    dropped = [index for index, answer in enumerate(by_newest) if answer == ["unsupported"]]
    by_older = dict(zip(dropped, oracle(OLDER, [lines[i] for i in dropped]), strict=True))
    wrong = [
        (lines[index][:300], answer)
        for index, newest in enumerate(by_newest)
        if (answer := by_older.get(index, newest)) != [expected[index]] * 2
    ]
    assert not wrong, wrong[:3]
    assert len(lines) - len(dropped) > 2_000
    assert len(dropped) > 100


def test_headers_have_the_bytes_kafka_gives_them(oracle: Oracle) -> None:
    """Request headers 1 and 2, response headers 0 and 1."""
    lines, expected = [], []
    for client_id in (None, "", "client-é", "x" * 300):
        header = RequestHeader(1, 11, -7, client_id)
        fields = {"requestApiKey": 1, "requestApiVersion": 11, "correlationId": -7}
        text = json.dumps(fields | {"clientId": client_id})
        for version in (1, 2):
            data = encode_request_header(header, is_flexible=version == 2).hex()
            lines.append(f"RequestHeader\t{version}\t{data}\t{text}")
            expected.append([data, data])
    for version in (0, 1):
        data = encode_response_header(2**31 - 1, is_flexible=version == 1).hex()
        text = json.dumps({"correlationId": 2**31 - 1})
        lines.append(f"ResponseHeader\t{version}\t{data}\t{text}")
        expected.append([data, data])
    assert oracle(NEWEST, lines) == expected


def _text(record: Record) -> str:
    def hexadecimal(data: bytes | None) -> str:
        return "null" if data is None else data.hex()

    parts = [str(record.offset), str(record.timestamp)]
    parts += [hexadecimal(record.key), hexadecimal(record.value)]
    parts += [f"{name}={hexadecimal(value)}" for name, value in record.headers]
    return ",".join(parts)


def test_batches_of_every_codec_are_read_by_kafka_and_its_batches_by_us(oracle: Oracle) -> None:
    """Records are equal in both directions, and bytes are equal without compression."""
    rng = random.Random(3)
    lines, batches = [], []
    for codec in Compression:
        for count in (1, 2, 300):
            records = [
                Record(
                    key=rng.choice((None, b"", rng.randbytes(9))),
                    value=rng.choice((None, b"v" * rng.randrange(500), rng.randbytes(70))),
                    headers=[("h", b"1"), ("n", None), ("é", b"")][: rng.randrange(4)],
                    timestamp=1_700_000_000_000 + rng.randrange(-500, 500),
                )
                for _ in range(count)
            ]
            fields = BatchFields(
                base_offset=2**40,
                leader_epoch=5,
                compression=codec,
                producer_id=2**33,
                producer_epoch=3,
                base_sequence=2**31 - 2,
                is_transactional=count == 2,
            )
            batch = build_batch(records, fields)
            batches.append((codec, batch))
            lines.append(f"batch\t{codec.name.lower()}\t{batch.hex()}")
    for (codec, batch), answer in zip(batches, oracle(NEWEST, lines), strict=True):
        assert answer[0] != "error", answer
        texts, built = answer[0].split(";"), bytes.fromhex(answer[1])
        assert texts == [_text(record) for record in iter_records(memoryview(batch))]
        assert texts == [_text(record) for record in iter_records(memoryview(built))]
        ours, theirs = read_header(batch), read_header(built)
        if codec is Compression.NONE:
            assert built == batch
        theirs.batch_length, theirs.crc = ours.batch_length, ours.crc
        assert theirs == ours
