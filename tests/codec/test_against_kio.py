"""The codec against kio, an independent implementation, for its messages and versions."""

import io
import random
from importlib import import_module

import kio.serial

from tests.wire import complete
from vdl.kafka.codegen.samples import Sampler, side_of
from vdl.kafka.codegen.schema import load_all, snake_case

SAMPLES = 3


def test_messages_read_and_written_by_kio_keep_their_bytes() -> None:
    """kio decodes the encoded message completely, and encodes the same bytes again."""
    rng = random.Random(5)
    compared = 0
    for api in load_all():
        for message in api.messages:
            side = side_of(api, message)
            encode = getattr(complete(api), f"encode{side}")
            for version in message.versions:
                kind = side.removeprefix("_") or "data"
                name = f"kio.schema.{snake_case(api.name)}.v{version}.{kind}"
                try:
                    entity_class = getattr(import_module(name), message.name)
                except ModuleNotFoundError:
                    continue
                read = kio.serial.entity_reader(entity_class)
                write = kio.serial.entity_writer(entity_class)
                for _ in range(SAMPLES):
                    sample = Sampler(rng, is_modest=True).message(api, message, version)
                    data = b"".join(encode(sample, version))
                    entity, size = read(data, 0)
                    assert size == len(data), (name, data)
                    out = io.BytesIO()
                    write(out, entity)
                    assert out.getvalue() == data, name
                    compared += 1
    assert compared > 1_000
