"""Properties of the generated codec that a table of samples does not cover."""

import struct
import tracemalloc
from contextlib import nullcontext

import pytest

from tests.wire import codec_of
from vdl.kafka.wire import (
    api_versions,
    create_topics,
    describe_acls,
    fetch,
    heartbeat,
    metadata,
    offset_fetch,
    produce,
)
from vdl.kafka.wire.runtime import (
    BadLength,
    BadTaggedField,
    EncodeError,
    NullField,
    ShortBuffer,
    TooManyElements,
    TooManyTaggedFields,
    UnencodableMessage,
    UnsupportedField,
    WireError,
    write_uvarint,
)


def produce_request(records: object) -> produce.ProduceRequest:
    partition = produce.PartitionProduceData(0, records)  # type: ignore[arg-type]
    return produce.ProduceRequest(
        acks=-1,
        timeout_ms=1_000,
        topic_data=[produce.TopicProduceData("t", partition_data=[partition])],
    )


@pytest.mark.parametrize("version", [3, 9, 12])
def test_decoded_records_are_a_view_of_the_frame(version: int) -> None:
    """Records are not copied: patching the view patches the frame."""
    frame = bytearray(
        b"".join(codec_of(produce).encode_request(produce_request(b"records!"), version))
    )
    request = produce.decode_request(memoryview(frame), version)
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert not records.readonly
    records[0:1] = b"R"
    assert b"Records!" in frame


@pytest.mark.parametrize("version", [3, 9, 12])
def test_encoded_records_are_the_very_buffers_that_were_given(version: int) -> None:
    """Large buffers are gathered, never joined."""
    pieces = [b"first", memoryview(b"second"), bytearray(b"third")]
    buffers = codec_of(produce).encode_request(produce_request(list(pieces)), version)
    for piece in pieces:
        assert any(buffer is piece for buffer in buffers)
    decoded = produce.decode_request(memoryview(b"".join(buffers)), version)
    assert decoded.topic_data[0].partition_data[0].records == b"firstsecondthird"


def test_empty_and_null_records_are_told_apart() -> None:
    """A fetch returns empty records, a bad produce may carry null."""
    for records, expected in ((b"", b""), ([], b""), (None, None)):
        data = b"".join(codec_of(produce).encode_request(produce_request(records), 9))
        decoded = produce.decode_request(memoryview(data), 9)
        assert decoded.topic_data[0].partition_data[0].records == expected


def test_text_that_is_not_utf8_is_replaced() -> None:
    """As Kafka reads it; the name is then refused like any other invalid name."""
    data = bytearray(
        b"".join(codec_of(heartbeat).encode_request(heartbeat.HeartbeatRequest("ab"), 0))
    )
    data[2:4] = b"\xff\xfe"
    assert heartbeat.decode_request(memoryview(data), 0).group_id == "\ufffd\ufffd"


def test_null_where_the_version_forbids_it_is_an_error() -> None:
    """A null group id in Heartbeat, flexible or not."""
    with pytest.raises(NullField):
        heartbeat.decode_request(memoryview(struct.pack(">hih", -1, 1, 0)), 0)
    with pytest.raises(NullField):
        heartbeat.decode_request(memoryview(bytes(20)), 4)
    with pytest.raises(EncodeError):
        codec_of(heartbeat).encode_request(heartbeat.HeartbeatRequest(None), 4)  # type: ignore[arg-type]


def test_null_array_is_not_the_empty_array() -> None:
    """Metadata from version 1: null means all topics, an empty list none."""
    for topics in (None, []):
        request = metadata.MetadataRequest(topics)
        for version in (1, 9, 13):
            data = b"".join(codec_of(metadata).encode_request(request, version))
            assert metadata.decode_request(memoryview(data), version).topics == topics


@pytest.mark.parametrize("count", [1, 1_000, 2**31 - 1])
def test_array_count_above_the_remaining_bytes_is_refused_before_allocating(count: int) -> None:
    """The count times the smallest element must fit into the remaining bytes."""
    data = struct.pack(">i", count)
    tracemalloc.start()
    with pytest.raises(WireError):
        metadata.decode_request(memoryview(data), 1)
    with pytest.raises(WireError):
        create_topics.decode_request(memoryview(data), 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_array_count_must_leave_room_for_the_smallest_elements() -> None:
    """100 topics of at least 6 bytes each do not fit into 599 bytes."""
    head = struct.pack(">hi", -1, 100)
    with pytest.raises(BadLength) as caught:
        produce.decode_request(memoryview(head + struct.pack(">i", 100) + bytes(599)), 0)
    assert (caught.value.length, caught.value.left) == (100, 599)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 200_000), (4, 50_000), (200_001, 0)])
def test_elements_of_a_message_are_counted_over_all_its_arrays(
    topics: int, partitions: int
) -> None:
    """The number of tiny elements is bounded. Objects take thirty times their encoded bytes."""
    topic = struct.pack(">hi", 0, partitions) + bytes(8) * partitions
    data = memoryview(struct.pack(">hhii", -1, -1, 0, topics) + topic * topics)
    with pytest.raises(TooManyElements):
        produce.decode_request(data, 3)


@pytest.mark.parametrize(("count", "error"), [(199_999, None), (200_000, TooManyElements)])
def test_numbers_in_arrays_are_elements(count: int, error: type[Exception] | None) -> None:
    """Each partition that OffsetFetch names is looked up and answered."""
    topics = struct.pack(">ihi", 1, 0, count) + bytes(4) * count
    data = memoryview(struct.pack(">h", 0) + topics)
    with pytest.raises(error) if error else nullcontext():
        (topic,) = offset_fetch.decode_request(data, 1).topics or ()
        assert len(topic.partition_indexes) == count


@pytest.mark.parametrize("tags", [2, 64])
def test_tagged_fields_that_nobody_knows_count_as_elements(tags: int) -> None:
    """Skipping one takes as long as reading a small element, and each struct may have 64."""
    tagged = bytes([tags]) + b"".join(bytes([100 - number, 0]) for number in range(tags))
    count = 200_000 // (1 + tags)
    topic = bytes(16) + b"\1" + tagged
    head = b"\0" + struct.pack(">hi", -1, 0)
    for more, error in ((0, None), (1, TooManyElements)):
        data = head + write_uvarint(count + more + 1) + topic * (count + more) + b"\0"
        with pytest.raises(error) if error else nullcontext():
            assert len(produce.decode_request(memoryview(data), 13).topic_data) == count


def test_long_texts_count_as_elements() -> None:
    """Replacing invalid UTF-8 takes a millisecond for one of the longest."""
    name = struct.pack(">h", 32_767) + b"\xff" * 32_767
    for count, error in ((1_500, None), (1_600, TooManyElements)):
        data = memoryview(struct.pack(">i", count) + name * count)
        with pytest.raises(error) if error else nullcontext():
            assert len(metadata.decode_request(data, 1).topics or ()) == count


def test_decoding_ends_at_the_budget_that_it_is_given() -> None:
    """This bounds what is decoded at once before the number of elements is known."""
    topic = struct.pack(">hi", 0, 1) + bytes(8)
    data = memoryview(struct.pack(">hhii", -1, -1, 0, 500) + topic * 500)
    assert len(produce.decode_request(data, 3, 1_000).topic_data) == 500
    with pytest.raises(TooManyElements):
        produce.decode_request(data, 3, 999)


def test_string_longer_than_kafka_allows_is_refused_in_flexible_versions() -> None:
    """The limit is 32,767 bytes, though the varint could state more."""
    for size, error in ((32_767, None), (32_768, BadLength)):
        data = bytearray()
        length = size + 1
        while length > 127:
            data.append(length & 0x7F | 0x80)
            length >>= 7
        data.append(length)
        data += b"g" * size + bytes(4) + bytes([1]) + bytes([0]) + bytes([0])
        if error is None:
            assert len(heartbeat.decode_request(memoryview(data), 4).group_id) == size
        else:
            with pytest.raises(error):
                heartbeat.decode_request(memoryview(data), 4)
    with pytest.raises(UnsupportedField):
        codec_of(heartbeat).encode_request(heartbeat.HeartbeatRequest("g" * 32_768), 4)
    with pytest.raises(UnencodableMessage):
        codec_of(heartbeat).encode_request(heartbeat.HeartbeatRequest("g" * 32_768), 0)


def api_versions_request(tags: bytes) -> memoryview:
    return memoryview(b"\x02a\x02b" + tags)


def test_unknown_tagged_fields_are_skipped_up_to_the_limit() -> None:
    """64 tagged fields in one struct are skipped, 65 refused. KIP-482."""
    field = bytes([9, 1, 0])
    request = api_versions.decode_request(api_versions_request(bytes([64]) + field * 64), 3)
    assert request == api_versions.ApiVersionsRequest("a", "b")
    with pytest.raises(TooManyTaggedFields):
        api_versions.decode_request(api_versions_request(bytes([65]) + field * 65), 3)


def test_tagged_field_count_above_the_remaining_bytes_is_refused() -> None:
    """A tagged field takes at least two bytes; a huge count costs nothing."""
    for tags in (bytes([3]) + bytes(5), b"\xff\xff\xff\xff\x07"):
        with pytest.raises(TooManyTaggedFields):
            api_versions.decode_request(api_versions_request(tags), 3)


def test_known_tagged_field_of_another_length_than_stated_is_refused() -> None:
    """The cluster id of a Fetch (tag 0) that ends before or after its stated length."""
    plain = b"".join(codec_of(fetch).encode_request(fetch.FetchRequest(), 12))
    assert plain[-1:] == b"\0"
    for length in (2, 4):
        tags = bytes([1, 0, length]) + b"\x03id" + bytes(4)
        with pytest.raises(BadTaggedField):
            fetch.decode_request(memoryview(plain[:-1] + tags), 12)


def test_tagged_struct_that_was_not_sent_is_none() -> None:
    """Most partitions of most responses carry none."""
    partition = fetch.PartitionData(partition_index=3, records=b"")
    response = fetch.FetchResponse(
        responses=[fetch.FetchableTopicResponse(topic_id=bytes(16), partitions=[partition])]
    )
    data = b"".join(fetch.encode_response(response, 16))
    assert (
        codec_of(fetch).decode_response(memoryview(data), 16).responses[0].partitions[0]
        == partition
    )
    partition.current_leader = fetch.LeaderIdAndEpoch(1, 7)
    data = b"".join(fetch.encode_response(response, 16))
    assert codec_of(fetch).decode_response(memoryview(data), 16) == response


def test_field_the_version_lacks_is_dropped_if_ignorable_and_refused_otherwise() -> None:
    """Kafka's rule: an ignorable field is omitted, any other must hold its default."""
    request = fetch.FetchRequest(rack_id="here")
    assert (
        fetch.decode_request(memoryview(b"".join(codec_of(fetch).encode_request(request, 4))), 4)
        == fetch.FetchRequest()
    )
    static = heartbeat.HeartbeatRequest(group_instance_id="static")
    with pytest.raises(UnsupportedField) as caught:
        codec_of(heartbeat).encode_request(static, 2)
    assert caught.value.what == "GroupInstanceId"


def test_value_out_of_range_is_our_error_and_says_which_message() -> None:
    """A number that does not fit is an EncodeError with its cause."""
    with pytest.raises(UnencodableMessage) as caught:
        codec_of(heartbeat).encode_request(heartbeat.HeartbeatRequest("g", generation_id=2**31), 0)
    assert (caught.value.what, caught.value.version) == ("HeartbeatRequest", 0)
    assert isinstance(caught.value.__cause__, struct.error)


def test_varint_of_more_than_five_bytes_is_a_wire_error() -> None:
    """A 32-bit value needs no more."""
    with pytest.raises(WireError):
        heartbeat.decode_request(memoryview(b"\xff" * 30), 4)


def test_truncated_message_names_what_was_cut() -> None:
    """The error carries the message and its size as data."""
    with pytest.raises(ShortBuffer) as caught:
        heartbeat.decode_request(memoryview(b"\0"), 0)
    assert (caught.value.what, caught.value.size) == ("HeartbeatRequest", 1)


@pytest.mark.parametrize("null", [b"\x00", b"\x80\x00", b"\x80\x80\x00"])
def test_null_string_may_have_a_longer_varint(null: bytes) -> None:
    """Zero in two or three bytes is the same length as zero in one."""
    data = b"\x01" + null + b"\x03" + null + null + b"\x01\x01\x00"
    request = describe_acls.decode_request(memoryview(data), 3)
    assert request.resource_name_filter is request.principal_filter is request.host_filter is None
    assert request.pattern_type_filter == 3
