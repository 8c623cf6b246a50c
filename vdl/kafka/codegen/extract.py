"""Take the facts out of two `kafka-clients` jars: the newest, and one that still has old versions.

    python -m vdl.kafka.codegen.extract kafka-clients-4.4.0.jar kafka-clients-3.9.2.jar

Kafka 4 dropped the oldest versions of many messages, but clients of that time still exist. The
newest jar's schema is the base; versions only the older jar has are added, and with them the fields
that exist in those versions alone. Versions the older jar marks as unstable are left out: they were
never a promise. Only facts are kept; descriptions are not read.
"""

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from vdl.kafka.codegen import schema
from vdl.kafka.codegen.schema import NEVER, Api, Default, Field, Message, Versions, snake_case

Json = dict[str, Any]  # the shape is Kafka's, checked where it is used

# Messages between brokers, or for tools of features that VDL does not have.
LEFT_OUT = frozenset(
    {
        "AddRaftVoter",
        "AllocateProducerIds",
        "AlterPartition",
        "AssignReplicasToDirs",
        "BeginQuorumEpoch",
        "BrokerHeartbeat",
        "BrokerRegistration",
        "ControlledShutdown",
        "ControllerRegistration",
        "DeleteShareGroupState",
        "EndQuorumEpoch",
        "Envelope",
        "FetchSnapshot",
        "InitializeShareGroupState",
        "LeaderAndIsr",
        "ReadShareGroupState",
        "ReadShareGroupStateSummary",
        "RemoveRaftVoter",
        "StopReplica",
        "StreamsGroupDescribe",
        "StreamsGroupHeartbeat",
        "StreamsGroupTopologyDescriptionUpdate",
        "UnregisterController",
        "UpdateMetadata",
        "UpdateRaftVoter",
        "Vote",
        "WriteShareGroupState",
    }
)
BLOBS = ("ConsumerProtocolAssignment", "ConsumerProtocolSubscription", "EndTxnMarker")


def main(arguments: list[str]) -> int:
    """Write `facts/*.json` from the two jars named on the command line."""
    if len(arguments) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    newest, older = (read_jar(Path(argument)) for argument in arguments)
    schema.FACTS.mkdir(exist_ok=True)
    for api in merge_all(newest, older):
        (schema.FACTS / f"{snake_case(api.name)}.json").write_text(schema.dump(api))
    return 0


def read_jar(path: Path) -> dict[str, Json]:
    """Return name → schema of every message in the jar."""
    schemas: dict[str, Json] = {}
    with zipfile.ZipFile(path) as jar:
        for name in jar.namelist():
            if re.fullmatch(r"common/message/\w+\.json", name):
                text = re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE)
                message: Json = json.loads(text)
                schemas[message["name"]] = message
    return schemas


def merge_all(newest: dict[str, Json], older: dict[str, Json]) -> list[Api]:
    """Return the facts of both jars, one `Api` per key and one per blob."""
    apis = [Api(name, -1, (_merge(newest[name], None),)) for name in BLOBS]
    for name, request in sorted(newest.items()):
        api_name = name.removesuffix("Request")
        if request["type"] != "request" or api_name in LEFT_OUT:
            continue
        stable = name in older and not older[name].get("latestVersionUnstable", False)
        messages = tuple(
            _merge(newest[api_name + side], older[api_name + side] if stable else None)
            for side in ("Request", "Response")
        )
        apis.append(Api(api_name, request["apiKey"], messages))
    return apis


def _merge(newest: Json, older: Json | None) -> Message:
    versions = Versions.parse(newest["validVersions"])
    flexible = Versions.parse(newest["flexibleVersions"])
    fields = _fields(newest["fields"], _structs(newest))
    if older is not None:
        old_versions = Versions.parse(older["validVersions"])
        dropped = Versions(old_versions.first, min(old_versions.last, versions.first - 1))
        if dropped.first <= dropped.last:
            assert dropped.last + 1 == versions.first, f"a gap in the versions of {newest['name']}"
            fields = _merge_fields(fields, _fields(older["fields"], _structs(older)), dropped)
            versions = Versions(dropped.first, versions.last)
    return Message(newest["name"], versions, flexible, fields)


def _merge_fields(
    newest: tuple[Field, ...], older: tuple[Field, ...], dropped: Versions
) -> tuple[Field, ...]:
    """Return `newest` plus the fields of `older` that exist in `dropped` only, each in its
    place."""
    merged = list(newest)
    for position, old in enumerate(older):
        names = [field.name for field in merged]
        if old.name in names:
            where = names.index(old.name)
            new = merged[where]
            for version in dropped:
                assert (version in new.versions) == (version in old.versions), old.name
                assert (version in new.nullable) == (version in old.nullable), old.name
            assert new.type == old.type, old.name
            nested = _merge_fields(new.fields, old.fields, dropped)
            merged[where] = _replace_fields(new, nested)
        elif any(version in old.versions for version in dropped):
            before = older[position - 1].name if position else ""
            merged.insert(names.index(before) + 1 if before in names else 0, old)
    return tuple(merged)


def _replace_fields(field: Field, fields: tuple[Field, ...]) -> Field:
    return Field(
        name=field.name,
        type=field.type,
        versions=field.versions,
        nullable=field.nullable,
        tagged=field.tagged,
        tag=field.tag,
        default=field.default,
        has_default=field.has_default,
        ignorable=field.ignorable,
        fields=fields,
    )


def _structs(message: Json) -> dict[str, list[Json]]:
    """Return every struct of the message, shared or defined at its first use."""
    structs: dict[str, list[Json]] = {
        struct["name"]: struct["fields"] for struct in message.get("commonStructs", [])
    }

    def visit(fields: list[Json]) -> None:
        for field in fields:
            if field.get("fields"):
                structs[field["type"].removeprefix("[]")] = field["fields"]
                visit(field["fields"])

    visit(message["fields"])
    for struct in message.get("commonStructs", []):
        visit(struct["fields"])
    return structs


def _fields(fields: list[Json], structs: dict[str, list[Json]]) -> tuple[Field, ...]:
    result = []
    for facts in fields:
        element = facts["type"].removeprefix("[]")
        tagged = Versions.parse(facts.get("taggedVersions", "none"))
        result.append(
            Field(
                name=facts["name"],
                type=facts["type"],
                versions=Versions.parse(facts["versions"]),
                nullable=Versions.parse(facts.get("nullableVersions", "none")),
                tagged=tagged,
                tag=int(facts["tag"]) if tagged != NEVER else -1,
                default=_default(facts["type"], facts.get("default")),
                has_default="default" in facts,
                ignorable=facts.get("ignorable", False),
                fields=_fields(structs[element], structs) if element in structs else (),
            )
        )
    return tuple(result)


def _default(type_: str, text: object) -> Default:
    if text is None or text == "null":
        return None
    if type_ == "bool":
        return str(text).lower() == "true"
    if re.fullmatch(r"u?int\d+", type_):
        return int(str(text), 0)
    assert type_ == "string", f"a default for {type_}"
    return str(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
