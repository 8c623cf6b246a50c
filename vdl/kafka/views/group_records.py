"""Encoding of the records in which Kafka's coordinators keep groups.

Formats: `group-coordinator/src/main/resources/common/message/*.json` of Kafka 4.3.1, whose own
reader (`GroupCoordinatorRecordSerde`) accepts them. Each value has the newest version that Burrow
and KMinion also read: for a position the third, which has no topic id. A key begins with the number
of its type, a value with its own version. Strings of keys, and of values older than KIP-482, have a
length of 16 bits; the others are compact.

Does not depend on the source of groups, nor on readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import TypeVar

from vdl.kafka.wire.runtime import write_string_length, write_uvarint
from vdl.state.changed_parts import Part, PartKind
from vdl.state.consumer_group import ConsumerGroup
from vdl.state.modern.member import ClassicSide, ModernMember
from vdl.state.modern.partitions import Partitions
from vdl.state.offsets import NO_EXPIRY, CommittedOffset

Element = TypeVar("Element")


_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_POSITION = Struct(">hqi")
_OLD_POSITION = Struct(">hq")
_TIMEOUTS = Struct(">ii")
_MEMBER_EPOCHS = Struct(">hiib")
_EPOCH = Struct(">hi")
_TIMES = Struct(">qq")
_VERSION_0 = _INT16.pack(0)
_NO_TAGS = b"\0"
_NULL = _INT16.pack(-1)

_NAMED = {PartKind.MEMBER, PartKind.TARGET, PartKind.ASSIGNMENT, PartKind.PATTERN}


def key(part: Part) -> bytes:
    """Return the key of a part. Raises struct.error if a name is longer than 32,767 bytes."""
    data = _INT16.pack(part.kind) + _text(part.group_id)
    if part.kind is PartKind.POSITION:
        data += _text(part.name) + _INT32.pack(part.partition)
    elif part.kind in _NAMED:
        data += _text(part.name)
    return data


def position_value(position: CommittedOffset) -> bytes:
    """Return OffsetCommitValue v3, or v1 if the position has an expiry time of its own. Raises
    struct.error."""
    rest = _text(position.metadata) + _INT64.pack(position.committed_ms)
    if position.expires_ms == NO_EXPIRY:
        return _POSITION.pack(3, position.offset, position.leader_epoch) + rest
    return _OLD_POSITION.pack(1, position.offset) + rest + _INT64.pack(position.expires_ms)


def classic_value(group: ConsumerGroup) -> Callable[[], bytes]:
    """Return a function that encodes GroupMetadataValue v3 of the group as it is now. It may run in
    any thread. Raises struct.error."""
    head = (
        _text(group.protocol_type)
        + _INT32.pack(group.generation)
        + _maybe_text(group.protocol_name)
        + _maybe_text(group.leader)
        + _INT64.pack(group.changed_ms)
    )
    members = [
        (
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
            member.metadata(group.protocol_name),
            member.assignment,
        )
        for member in group.members.values()
    ]

    def value() -> bytes:
        parts = [_INT16.pack(3), head, _INT32.pack(len(members))]
        for member_id, instance_id, client_id, host, timeouts, metadata, assignment in members:
            parts += [_text(member_id), _maybe_text(instance_id), _text(client_id), _text(host)]
            parts += [timeouts, _sized(metadata), _sized(assignment)]
        return b"".join(parts)

    return value


def group_value(epoch: int) -> bytes:
    """Return ConsumerGroupMetadataValue v0."""
    return _EPOCH.pack(0, epoch) + _NO_TAGS


def target_epoch_value(epoch: int) -> bytes:
    """Return ConsumerGroupTargetAssignmentMetadataValue v0."""
    return _EPOCH.pack(0, epoch) + _NO_TAGS


def member_value(member: ModernMember) -> bytes:
    """Return ConsumerGroupMemberMetadataValue v0. Raises EncodeError if a field is too long."""
    parts = [
        _VERSION_0,
        _maybe_compact(member.instance_id),
        _maybe_compact(member.rack_id),
        _compact(member.client_id),
        _compact(member.client_host),
        _array(member.topics, _compact),
        _maybe_compact(member.pattern),
        _INT32.pack(member.rebalance_timeout_ms),
        _maybe_compact(member.assignor),
    ]
    # Kafka does not read an absent struct as null: a member of the consumer protocol writes null.
    classic = b"\0" if member.classic is None else b"\1" + _classic_side(member.classic)
    parts += [write_uvarint(1), write_uvarint(0), write_uvarint(len(classic)), classic]
    return b"".join(parts)


def _classic_side(classic: ClassicSide) -> bytes:
    protocols = _array(
        classic.protocols, lambda one: _compact(one.name) + _compact_bytes(one.metadata) + _NO_TAGS
    )
    return _INT32.pack(classic.session_timeout_ms) + protocols + _NO_TAGS


def target_value(target: Partitions) -> bytes:
    """Return ConsumerGroupTargetAssignmentMemberValue v0."""
    return _VERSION_0 + _array(target, _topic) + _NO_TAGS


def assignment_value(member: ModernMember) -> bytes:
    """Return ConsumerGroupCurrentMemberAssignmentValue v0."""
    head = _MEMBER_EPOCHS.pack(0, member.epoch, member.previous_epoch, member.state)
    return head + _array(member.assigned, _topic) + _array(member.revoking, _topic) + _NO_TAGS


def pattern_value(topics: Iterable[str], resolved_ms: int) -> bytes:
    """Return ConsumerGroupRegularExpressionValue v0. The version of the metadata that was matched
    is not known here. Raises EncodeError."""
    return _VERSION_0 + _array(list(topics), _compact) + _TIMES.pack(0, resolved_ms) + _NO_TAGS


# --- fields ----------------------------------------------------------------------------------
def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _maybe_text(text: str | None) -> bytes:
    return _NULL if text is None else _text(text)


def _sized(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def _compact(text: str) -> bytes:
    data = text.encode()
    return write_string_length(len(data) + 1) + data


def _maybe_compact(text: str | None) -> bytes:
    return b"\0" if text is None else _compact(text)


def _compact_bytes(data: bytes) -> bytes:
    return write_uvarint(len(data) + 1) + data


def _array(elements: Sequence[Element], encode: Callable[[Element], bytes]) -> bytes:
    return write_uvarint(len(elements) + 1) + b"".join(map(encode, elements))


def _topic(topic: tuple[bytes, tuple[int, ...]]) -> bytes:
    topic_id, partitions = topic
    return topic_id + _array(partitions, _INT32.pack) + _NO_TAGS
