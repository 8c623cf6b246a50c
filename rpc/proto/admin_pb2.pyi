from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FOLLOWER: _ClassVar[Role]
    PRE_CANDIDATE: _ClassVar[Role]
    CANDIDATE: _ClassVar[Role]
    LEADER: _ClassVar[Role]

class ProgressState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBE: _ClassVar[ProgressState]
    REPLICATE: _ClassVar[ProgressState]
    SNAPSHOT: _ClassVar[ProgressState]

class TransferOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSFERRED: _ClassVar[TransferOutcome]
    NOT_LEADER: _ClassVar[TransferOutcome]
    UNKNOWN_GROUP: _ClassVar[TransferOutcome]
    NO_REPLICA: _ClassVar[TransferOutcome]
    TIMED_OUT: _ClassVar[TransferOutcome]

class MemberChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADD: _ClassVar[MemberChange]
    REMOVE: _ClassVar[MemberChange]
    RESTORE: _ClassVar[MemberChange]
FOLLOWER: Role
PRE_CANDIDATE: Role
CANDIDATE: Role
LEADER: Role
PROBE: ProgressState
REPLICATE: ProgressState
SNAPSHOT: ProgressState
TRANSFERRED: TransferOutcome
NOT_LEADER: TransferOutcome
UNKNOWN_GROUP: TransferOutcome
NO_REPLICA: TransferOutcome
TIMED_OUT: TransferOutcome
ADD: MemberChange
REMOVE: MemberChange
RESTORE: MemberChange

class StatusRequest(_message.Message):
    __slots__ = ("group_ids",)
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("server_id", "cluster_id", "directory_id", "incarnation", "version", "uptime_ms", "problems", "links", "groups")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    cluster_id: str
    directory_id: bytes
    incarnation: int
    version: str
    uptime_ms: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    links: _containers.RepeatedCompositeFieldContainer[LinkStatus]
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    def __init__(self, server_id: _Optional[int] = ..., cluster_id: _Optional[str] = ..., directory_id: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., version: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., links: _Optional[_Iterable[_Union[LinkStatus, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ...) -> None: ...

class LinkStatus(_message.Message):
    __slots__ = ("server_id", "is_up", "dialed_by_us", "unsent_bytes", "round_trip_ns", "silent_ns", "dial_failures")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    IS_UP_FIELD_NUMBER: _ClassVar[int]
    DIALED_BY_US_FIELD_NUMBER: _ClassVar[int]
    UNSENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_NS_FIELD_NUMBER: _ClassVar[int]
    SILENT_NS_FIELD_NUMBER: _ClassVar[int]
    DIAL_FAILURES_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    is_up: bool
    dialed_by_us: bool
    unsent_bytes: int
    round_trip_ns: int
    silent_ns: int
    dial_failures: int
    def __init__(self, server_id: _Optional[int] = ..., is_up: _Optional[bool] = ..., dialed_by_us: _Optional[bool] = ..., unsent_bytes: _Optional[int] = ..., round_trip_ns: _Optional[int] = ..., silent_ns: _Optional[int] = ..., dial_failures: _Optional[int] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("group_id", "name", "replica_id", "role", "term", "leader", "first_index", "last_index", "commit", "applied", "log_start_offset", "high_watermark", "end_offset", "voters", "learners", "progress", "in_sync", "in_sync_min")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_MIN_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    name: str
    replica_id: int
    role: Role
    term: int
    leader: int
    first_index: int
    last_index: int
    commit: int
    applied: int
    log_start_offset: int
    high_watermark: int
    end_offset: int
    voters: _containers.RepeatedScalarFieldContainer[int]
    learners: _containers.RepeatedScalarFieldContainer[int]
    progress: _containers.RepeatedCompositeFieldContainer[ReplicaProgress]
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    in_sync_min: int
    def __init__(self, group_id: _Optional[int] = ..., name: _Optional[str] = ..., replica_id: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., term: _Optional[int] = ..., leader: _Optional[int] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., commit: _Optional[int] = ..., applied: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., end_offset: _Optional[int] = ..., voters: _Optional[_Iterable[int]] = ..., learners: _Optional[_Iterable[int]] = ..., progress: _Optional[_Iterable[_Union[ReplicaProgress, _Mapping]]] = ..., in_sync: _Optional[_Iterable[int]] = ..., in_sync_min: _Optional[int] = ...) -> None: ...

class ReplicaProgress(_message.Message):
    __slots__ = ("replica_id", "state", "match", "next", "recent_active", "is_paused")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RECENT_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    replica_id: int
    state: ProgressState
    match: int
    next: int
    recent_active: bool
    is_paused: bool
    def __init__(self, replica_id: _Optional[int] = ..., state: _Optional[_Union[ProgressState, str]] = ..., match: _Optional[int] = ..., next: _Optional[int] = ..., recent_active: _Optional[bool] = ..., is_paused: _Optional[bool] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("group_id", "to_server")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TO_SERVER_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    to_server: int
    def __init__(self, group_id: _Optional[int] = ..., to_server: _Optional[int] = ...) -> None: ...

class TransferLeadershipReply(_message.Message):
    __slots__ = ("outcome", "leader")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    outcome: TransferOutcome
    leader: int
    def __init__(self, outcome: _Optional[_Union[TransferOutcome, str]] = ..., leader: _Optional[int] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class EventsReply(_message.Message):
    __slots__ = ("server_id", "now_ms", "started_ms", "events", "dropped", "groups")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    now_ms: int
    started_ms: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    dropped: _containers.RepeatedCompositeFieldContainer[Dropped]
    groups: _containers.RepeatedCompositeFieldContainer[ConsumerGroup]
    def __init__(self, server_id: _Optional[int] = ..., now_ms: _Optional[int] = ..., started_ms: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[Dropped, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[ConsumerGroup, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("event", "level", "first_ms", "last_ms", "count", "fields")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    event: str
    level: str
    first_ms: int
    last_ms: int
    count: int
    fields: str
    def __init__(self, event: _Optional[str] = ..., level: _Optional[str] = ..., first_ms: _Optional[int] = ..., last_ms: _Optional[int] = ..., count: _Optional[int] = ..., fields: _Optional[str] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("kind", "until_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    until_ms: int
    def __init__(self, kind: _Optional[str] = ..., until_ms: _Optional[int] = ...) -> None: ...

class ConsumerGroup(_message.Message):
    __slots__ = ("name", "type", "state", "generation", "changed_ms", "members_count", "members", "offsets_count", "offsets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    state: str
    generation: int
    changed_ms: int
    members_count: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    offsets_count: int
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., state: _Optional[str] = ..., generation: _Optional[int] = ..., changed_ms: _Optional[int] = ..., members_count: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., offsets_count: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("id", "client_id", "host", "instance", "silent_ms", "session_timeout_ms", "is_awaited", "partitions")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_AWAITED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    client_id: str
    host: str
    instance: str
    silent_ms: int
    session_timeout_ms: int
    is_awaited: bool
    partitions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., instance: _Optional[str] = ..., silent_ms: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., is_awaited: _Optional[bool] = ..., partitions: _Optional[_Iterable[str]] = ...) -> None: ...

class CommittedOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "committed_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    committed_ms: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., committed_ms: _Optional[int] = ...) -> None: ...

class HintStopRequest(_message.Message):
    __slots__ = ("whole_cluster",)
    WHOLE_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    whole_cluster: bool
    def __init__(self, whole_cluster: _Optional[bool] = ...) -> None: ...

class HintStopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SlowestRequestsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartTraceRequest(_message.Message):
    __slots__ = ("apis", "topics", "client_ids", "slower_than_ns", "duration_ns", "requests_max")
    APIS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    SLOWER_THAN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_MAX_FIELD_NUMBER: _ClassVar[int]
    apis: _containers.RepeatedScalarFieldContainer[str]
    topics: _containers.RepeatedScalarFieldContainer[str]
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    slower_than_ns: int
    duration_ns: int
    requests_max: int
    def __init__(self, apis: _Optional[_Iterable[str]] = ..., topics: _Optional[_Iterable[str]] = ..., client_ids: _Optional[_Iterable[str]] = ..., slower_than_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., requests_max: _Optional[int] = ...) -> None: ...

class StartTraceReply(_message.Message):
    __slots__ = ("trace",)
    TRACE_FIELD_NUMBER: _ClassVar[int]
    trace: int
    def __init__(self, trace: _Optional[int] = ...) -> None: ...

class ReadTraceRequest(_message.Message):
    __slots__ = ("trace", "ends")
    TRACE_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    trace: int
    ends: bool
    def __init__(self, trace: _Optional[int] = ..., ends: _Optional[bool] = ...) -> None: ...

class TracedRequests(_message.Message):
    __slots__ = ("requests", "ended")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[TracedRequest]
    ended: str
    def __init__(self, requests: _Optional[_Iterable[_Union[TracedRequest, _Mapping]]] = ..., ended: _Optional[str] = ...) -> None: ...

class TracedRequest(_message.Message):
    __slots__ = ("number", "server_id", "api", "version", "correlation_id", "client_id", "principal", "listener", "peer", "connection_id", "began_ms", "total_ns", "busy_ns", "request_bytes", "response_bytes", "partitions", "partition_count", "group", "slowest", "term", "acked_by", "stages")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    BEGAN_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ACKED_BY_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    number: int
    server_id: int
    api: str
    version: int
    correlation_id: int
    client_id: str
    principal: str
    listener: str
    peer: str
    connection_id: int
    began_ms: int
    total_ns: int
    busy_ns: int
    request_bytes: int
    response_bytes: int
    partitions: _containers.RepeatedScalarFieldContainer[str]
    partition_count: int
    group: str
    slowest: str
    term: int
    acked_by: int
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    def __init__(self, number: _Optional[int] = ..., server_id: _Optional[int] = ..., api: _Optional[str] = ..., version: _Optional[int] = ..., correlation_id: _Optional[int] = ..., client_id: _Optional[str] = ..., principal: _Optional[str] = ..., listener: _Optional[str] = ..., peer: _Optional[str] = ..., connection_id: _Optional[int] = ..., began_ms: _Optional[int] = ..., total_ns: _Optional[int] = ..., busy_ns: _Optional[int] = ..., request_bytes: _Optional[int] = ..., response_bytes: _Optional[int] = ..., partitions: _Optional[_Iterable[str]] = ..., partition_count: _Optional[int] = ..., group: _Optional[str] = ..., slowest: _Optional[str] = ..., term: _Optional[int] = ..., acked_by: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("name", "start_ns", "duration_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_ns: int
    duration_ns: int
    def __init__(self, name: _Optional[str] = ..., start_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ...) -> None: ...

class MembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MembersReply(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("server_id", "standing", "is_voter", "is_connected", "address", "rack", "replicas", "leading", "blocking", "reason", "directory_id")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    IS_VOTER_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADING_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    standing: str
    is_voter: bool
    is_connected: bool
    address: str
    rack: str
    replicas: int
    leading: int
    blocking: str
    reason: str
    directory_id: str
    def __init__(self, server_id: _Optional[int] = ..., standing: _Optional[str] = ..., is_voter: _Optional[bool] = ..., is_connected: _Optional[bool] = ..., address: _Optional[str] = ..., rack: _Optional[str] = ..., replicas: _Optional[int] = ..., leading: _Optional[int] = ..., blocking: _Optional[str] = ..., reason: _Optional[str] = ..., directory_id: _Optional[str] = ...) -> None: ...

class ChangeMemberRequest(_message.Message):
    __slots__ = ("change", "server_id", "host", "port")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    change: MemberChange
    server_id: int
    host: str
    port: int
    def __init__(self, change: _Optional[_Union[MemberChange, str]] = ..., server_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class ChangeMemberReply(_message.Message):
    __slots__ = ("error", "message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    message: str
    def __init__(self, error: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
