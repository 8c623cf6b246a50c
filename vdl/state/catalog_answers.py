"""What commands of the catalog are answered with, and what became of it by them.

An answer's type goes with its command's (`commands.py`). It has an error code, or one for each part
of the command, in the order asked; and events, by which a server sees what it has to do itself.
Nothing here is stored, and nothing crosses a link: every server makes its own by applying.

Must not know: how a command is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ids import GroupId, ServerId
from vdl.errors import ErrorCode
from vdl.state.commands import AclBinding


@dataclass(slots=True)
class GroupAdded:
    """Event: a partition's group exists from now on."""

    group_id: GroupId


@dataclass(slots=True)
class GroupRemoved:
    """Event: its replicas may be deleted."""

    group_id: GroupId


@dataclass(slots=True)
class ServerRegistered:
    """Event: a server is new, or changed its registration."""

    server_id: ServerId


@dataclass(slots=True)
class ReplicasReplaced:
    """Event: the server's replicas of these groups have new numbers; the old ones are gone."""

    server_id: ServerId
    group_ids: list[GroupId]


@dataclass(slots=True)
class FeaturesUpdated:
    """Answer to UpdateFeatures: all levels are as asked for, or none changed."""

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
class CreatedTopic:
    """Answer for one topic of CreateTopics; the numbers are valid when `error` is NONE."""

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
    """Answer to CreateTopics, in the order asked."""

    topics: list[CreatedTopic]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class GrownTopic:
    """Answer for one topic of CreatePartitions."""

    name: str
    error: ErrorCode
    message: str = ""
    group_ids: list[GroupId] = field(default_factory=list)
    """Of the new partitions; empty with `validate_only`."""


@dataclass(slots=True)
class PartitionsCreated:
    """Answer to CreatePartitions, in the order asked."""

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
    """Answer to DeleteTopics: names in the order asked, then ids."""

    topics: list[DeletedTopic]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class ConfigsAltered:
    """Answer to AlterTopicConfigs and AlterQuotas: an error for each change, in the order asked."""

    errors: list[ErrorCode]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class ReassignmentsAltered:
    """Answer to AlterReassignments: an error and its text for each change, in the order asked."""

    errors: list[tuple[ErrorCode, str]]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class AclsCreated:
    """Answer to CreateAcls: an error for each binding, in the order asked."""

    errors: list[ErrorCode]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class AclsDeleted:
    """Answer to DeleteAcls: what each filter selected, in the order asked."""

    deleted: list[list[AclBinding]]
    events: list[CatalogEvent] = field(default_factory=list)


@dataclass(slots=True)
class ProducerIdBlock:
    """Answer to AllocateProducerIds: [first, first + count) are the proposer's."""

    first: int
    count: int
    events: list[CatalogEvent] = field(default_factory=list)
