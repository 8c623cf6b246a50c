"""Answers and events of the catalog's commands.

The answer's type depends on the command (`commands.py`). It has an error code, or one for each part
of the command, in the requested order, and events, from which a server derives what it must do.
Nothing here is stored or sent over a link: every server makes its own answers by applying.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ids import GroupId, ServerId
from vdl.errors import ErrorCode
from vdl.state.commands import AclBinding


@dataclass(slots=True)
class GroupAdded:
    """Event: a partition's group was created."""

    group_id: GroupId


@dataclass(slots=True)
class GroupRemoved:
    """Event: a group was deleted; its replicas may be deleted."""

    group_id: GroupId


@dataclass(slots=True)
class ServerRegistered:
    """Event: a server is new, or changed its registration."""

    server_id: ServerId


@dataclass(slots=True)
class ReplicasReplaced:
    """Event: the server's replicas of these groups have new numbers; the old ones are invalid."""

    server_id: ServerId
    group_ids: list[GroupId]


@dataclass(slots=True)
class FeaturesUpdated:
    """Answer to UpdateFeatures: all levels are set as requested, or none changed."""

    error: ErrorCode
    message: str = ""
    events: list[CatalogEvent] = field(default_factory=list)


CatalogEvent = GroupAdded | GroupRemoved | ServerRegistered | ReplicasReplaced


@dataclass(slots=True)
class Replacement:
    """Answer to ReplaceServer and ReplaceReplicas."""

    error: ErrorCode
    message: str = ""
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class Registration:
    """Answer to RegisterServer."""

    error: ErrorCode
    message: str = ""
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class MembershipChanged:
    """Answer to the commands that add, drain and remove servers."""

    error: ErrorCode
    message: str = ""
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class CreatedTopic:
    """Answer for one topic of CreateTopics; the numbers are valid if `error` is NONE."""

    name: str
    error: ErrorCode
    message: str = ""
    topic_id: bytes = bytes(16)
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = field(default_factory=dict)
    group_ids: list[GroupId] = field(default_factory=list)
    """Empty with `validate_only`."""


@dataclass(slots=True)
class TopicsCreated:
    """Answer to CreateTopics, in the requested order."""

    topics: list[CreatedTopic]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class GrownTopic:
    """Answer for one topic of CreatePartitions."""

    name: str
    error: ErrorCode
    message: str = ""
    group_ids: list[GroupId] = field(default_factory=list)
    """Group ids of the new partitions; empty with `validate_only`."""


@dataclass(slots=True)
class PartitionsCreated:
    """Answer to CreatePartitions, in the requested order."""

    topics: list[GrownTopic]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class DeletedTopic:
    """Answer for one topic of DeleteTopics. `name` is empty for an unknown id."""

    name: str
    topic_id: bytes
    error: ErrorCode
    group_ids: list[GroupId] = field(default_factory=list)


@dataclass(slots=True)
class TopicsDeleted:
    """Answer to DeleteTopics: names in the requested order, then ids."""

    topics: list[DeletedTopic]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class ConfigsAltered:
    """Answer to AlterTopicConfigs and AlterQuotas: an error for each change, in order."""

    errors: list[ErrorCode]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class ReassignmentsAltered:
    """Answer to AlterReassignments: an error and its text for each change, in order."""

    errors: list[tuple[ErrorCode, str]]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class AclsCreated:
    """Answer to CreateAcls: an error for each binding, in order."""

    errors: list[ErrorCode]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class AclsDeleted:
    """Answer to DeleteAcls: the bindings that each filter selected, in order."""

    deleted: list[list[AclBinding]]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class ProducerIdBlock:
    """Answer to AllocateProducerIds: [first, first + count) belong to the proposer."""

    first: int
    count: int
    events: list[CatalogEvent] = field(default_factory=list)
