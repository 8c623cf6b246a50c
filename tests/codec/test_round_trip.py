"""The laws of the codec, for every API, message and version."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire import complete
from vdl.kafka.codegen.samples import Sampler, side_of, wire_module
from vdl.kafka.codegen.schema import Api, Message, load_all
from vdl.kafka.wire.runtime import UnsupportedVersion, WireError

CASES = [(api, message) for api in load_all() for message in api.messages]
IDS = [message.name for _, message in CASES]
CUTS_MAX = 120


def _codec(api: Api, message: Message) -> tuple[Any, Any]:
    side = side_of(api, message)
    module = complete(api)
    return getattr(module, f"decode{side}"), getattr(module, f"encode{side}")


@given(seed=st.integers(0, 2**32), pick=st.integers(0, 10_000))
@settings(max_examples=600, deadline=None)
def test_decode_of_encode_gives_the_message_back(seed: int, pick: int) -> None:
    """decode(encode(m)) == m, and bytes left over after a message are ignored."""
    api, message = CASES[pick % len(CASES)]
    decode, encode = _codec(api, message)
    rng = random.Random(seed)
    version = rng.choice(list(message.versions))
    sample = Sampler(rng).message(api, message, version)
    data = b"".join(encode(sample, version))
    assert decode(memoryview(data), version) == sample
    assert decode(memoryview(data + b"left over"), version) == sample


@pytest.mark.parametrize(("api", "message"), CASES, ids=IDS)
def test_message_cut_anywhere_is_a_wire_error(api: Api, message: Message) -> None:
    """Every proper prefix of a message is refused, with a WireError and nothing else."""
    decode, encode = _codec(api, message)
    rng = random.Random(message.name)
    for version in message.versions:
        data = b"".join(encode(Sampler(rng).message(api, message, version), version))
        cuts = range(len(data))
        if len(data) > CUTS_MAX:
            cuts = rng.sample(cuts, CUTS_MAX)
        for cut in cuts:
            with pytest.raises(WireError):
                decode(memoryview(data)[:cut], version)


@pytest.mark.parametrize(("api", "message"), CASES, ids=IDS)
def test_bytes_with_errors_raise_nothing_but_wire_errors(api: Api, message: Message) -> None:
    """Random bytes, and messages with some bytes replaced, decode or raise WireError."""
    decode, encode = _codec(api, message)
    rng = random.Random(message.name)
    for version in message.versions:
        for _ in range(25):
            data = bytearray(b"".join(encode(Sampler(rng).message(api, message, version), version)))
            for _ in range(rng.randint(1, 4)):
                if data:
                    data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255))
            for hostile in (data, rng.randbytes(rng.randrange(60))):
                try:
                    decode(memoryview(hostile), version)
                except WireError:
                    pass


@given(data=st.binary(max_size=200), pick=st.integers(0, 10_000), version=st.integers(-1, 20))
@settings(max_examples=500, deadline=None)
def test_random_bytes_raise_nothing_but_wire_errors(data: bytes, pick: int, version: int) -> None:
    """Any bytes in any version decode to a message or raise WireError."""
    decode, _ = _codec(*CASES[pick % len(CASES)])
    try:
        decode(memoryview(data), version)
    except WireError:
        pass


@pytest.mark.parametrize(("api", "message"), CASES, ids=IDS)
def test_versions_outside_the_schema_are_unsupported(api: Api, message: Message) -> None:
    """Both directions refuse a version outside the schema's range."""
    decode, encode = _codec(api, message)
    sample = getattr(complete(api), message.name)()
    for version in (message.versions.first - 1, message.versions.last + 1):
        with pytest.raises(UnsupportedVersion):
            decode(memoryview(bytes(100)), version)
        with pytest.raises(UnsupportedVersion):
            encode(sample, version)


@pytest.mark.parametrize(
    "api", [api for api in load_all() if api.key >= 0], ids=lambda api: api.name
)
def test_versions_of_own_clients_are_those_of_the_whole_codec(api: Api) -> None:
    """The client's direction, as far as servers have it, behaves as in the complete codec."""
    rng = random.Random(9)
    for each in load_all():
        if each.key < 0:
            continue
        own, whole = wire_module(each), complete(each)
        request, response = each.messages
        for version in own.CLIENT_VERSIONS:
            sample = Sampler(rng).message(each, request, version)
            sent = b"".join(own.encode_request(sample, version))
            assert sent == b"".join(whole.encode_request(sample, version))
            sample = Sampler(rng).message(each, response, version)
            received = memoryview(b"".join(own.encode_response(sample, version)))
            assert own.decode_response(received, version) == sample
        assert tuple(request.versions) == whole.CLIENT_VERSIONS
