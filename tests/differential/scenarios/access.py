"""Logins, ACLs, quotas, users and telemetry, without required logins and with all permissions."""

from __future__ import annotations

from typing import Any

from tests.differential.side import Side
from vdl.kafka.wire import alter_client_quotas as quotas
from vdl.kafka.wire.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from vdl.kafka.wire.create_acls import AclCreation, CreateAclsRequest
from vdl.kafka.wire.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from vdl.kafka.wire.describe_acls import DescribeAclsRequest
from vdl.kafka.wire.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from vdl.kafka.wire.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from vdl.kafka.wire.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from vdl.kafka.wire.push_telemetry import PushTelemetryRequest
from vdl.kafka.wire.sasl_authenticate import SaslAuthenticateRequest
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest

EXACT, DEFAULT, ANY = range(3)
"""Match types of a component in DescribeClientQuotas."""
SHA_256, SHA_512 = 1, 2
INSTANCE = bytes(range(1, 17))


def logins(side: Side) -> None:
    """Send logins on a listener without authentication."""
    for version in side.versions(17):
        with side.own_connections():
            side.ask(f"handshake v{version}", SaslHandshakeRequest("PLAIN"), version=version)
    for version in side.versions(36):
        with side.own_connections():
            side.ask(f"login v{version}", SaslAuthenticateRequest(b"\0a\0b"), version=version)


def acls_without_authorizer(side: Side) -> None:
    side.each("describe", DescribeAclsRequest(1, None, 1, None, None, 1, 1))
    side.each("create", CreateAclsRequest([AclCreation(2, "t", 3, "User:a", "*", 3, 3)]))
    side.each("create nothing", CreateAclsRequest([]))
    side.each("delete", DeleteAclsRequest([DeleteAclsFilter(2, "t", 3, None, None, 1, 1)]))
    side.each("delete nothing", DeleteAclsRequest([]))


def client_quotas(side: Side) -> None:
    name = f"{side.prefix}.client"

    def ask(label: str, entity: dict[str, str | None], *ops: tuple[str, float, bool]) -> None:
        rows = [quotas.EntityData(kind, found) for kind, found in entity.items()]
        entry = quotas.EntryData(rows, [quotas.OpData(*op) for op in ops])
        side.each(f"alter: {label}, validated", quotas.AlterClientQuotasRequest([entry], True))

    rate = ("producer_byte_rate", 1_000.0, False)
    ask("good", {"client-id": name}, rate)
    ask("of all", {"client-id": None}, rate)
    ask("of a user's client", {"user": "u", "client-id": name}, rate)
    ask("of an address", {"ip": "127.0.0.1"}, ("connection_creation_rate", 5.0, False))
    ask("of no address", {"ip": "nowhere.invalid"}, ("connection_creation_rate", 5.0, False))
    ask("of an address and a user", {"ip": "127.0.0.1", "user": "u"}, rate)
    ask("a client's rate of an address", {"ip": "127.0.0.1"}, rate)
    ask("unknown setting", {"client-id": name}, ("no_such_rate", 1.0, False))
    ask("unknown kind", {"planet": "earth"}, rate)
    ask("an empty name", {"client-id": ""}, rate)
    ask("of nothing", {}, rate)
    ask("nought", {"client-id": name}, ("producer_byte_rate", 0.0, False))
    ask("negative", {"client-id": name}, ("producer_byte_rate", -1.0, False))
    ask("a fraction", {"client-id": name}, ("producer_byte_rate", 1.5, False))
    ask("a share of time", {"client-id": name}, ("request_percentage", 1.5, False))
    ask("removed", {"client-id": name}, ("producer_byte_rate", 0.0, True))
    ask("twice", {"client-id": name}, rate, rate)
    ask("set and removed", {"client-id": name}, rate, ("producer_byte_rate", 0.0, True))
    side.each("alter: nothing", quotas.AlterClientQuotasRequest([], True))
    entry = quotas.EntryData([quotas.EntityData("client-id", name)], [quotas.OpData(*rate)])
    side.each("alter: one twice, validated", quotas.AlterClientQuotasRequest([entry, entry], True))
    side.each("alter: good", quotas.AlterClientQuotasRequest([entry]))

    def is_known() -> bool:
        request = DescribeClientQuotasRequest([ComponentData("client-id", EXACT, name)])
        return bool(side.quiet(request).entries)

    side.settle(is_known, "the quota is known")

    def describe(label: str, *rows: tuple[str, int, str | None], strict: bool = False) -> None:
        components = [ComponentData(*row) for row in rows]
        side.each(f"describe: {label}", DescribeClientQuotasRequest(components, strict))

    describe("it", ("client-id", EXACT, name))
    describe("it, strictly", ("client-id", EXACT, name), strict=True)
    describe("another", ("client-id", EXACT, f"{name}2"))
    describe("of a user", ("user", EXACT, name))
    describe("of a user's client", ("client-id", EXACT, name), ("user", ANY, None))
    describe("the same kind twice", ("client-id", EXACT, name), ("client-id", ANY, None))
    describe("unknown kind", ("planet", EXACT, "earth"))
    describe("no such match", ("client-id", 7, name))
    describe("exactly nothing", ("client-id", EXACT, None))
    describe("the default by name", ("client-id", DEFAULT, name))
    describe("no kind", ("", EXACT, name))


def scram_users(side: Side) -> None:
    name = f"{side.prefix}.user"

    def upsert(label: str, found: str = name, **fields: Any) -> None:
        fields = {
            "mechanism": SHA_256,
            "iterations": 4_096,
            "salt": b"salt",
            "salted_password": bytes(32),
        } | fields
        row = ScramCredentialUpsertion(found, **fields)
        side.each(f"alter: {label}", AlterUserScramCredentialsRequest([], [row]))

    upsert("few iterations", iterations=4_095)
    upsert("many iterations", iterations=16_385)
    upsert("no such mechanism", mechanism=7)
    upsert("no mechanism", mechanism=0)
    upsert("no name", "")
    upsert("good")
    upsert("another", mechanism=SHA_512, salted_password=bytes(64))
    row = ScramCredentialUpsertion(name, SHA_256, 4_096, b"salt", bytes(32))
    away = ScramCredentialDeletion(name, SHA_256)
    side.each("alter: twice", AlterUserScramCredentialsRequest([], [row, row]))
    side.each("alter: set and deleted", AlterUserScramCredentialsRequest([away], [row]))
    side.each("alter: nothing", AlterUserScramCredentialsRequest([], []))
    unknown = ScramCredentialDeletion(f"{side.prefix}.nobody", SHA_256)
    side.each("alter: nobody deleted", AlterUserScramCredentialsRequest([unknown], []))

    def describe(label: str, *names: str) -> None:
        users = [UserName(one) for one in names]
        side.each(f"describe: {label}", DescribeUserScramCredentialsRequest(users))

    def is_known() -> bool:
        request = DescribeUserScramCredentialsRequest([UserName(name)])
        return len(side.quiet(request).results[0].credential_infos) == 2

    side.settle(is_known, "the user is known")
    describe("it", name)
    describe("nobody", f"{side.prefix}.nobody")
    describe("twice", name, name)
    describe("both", name, f"{side.prefix}.nobody")
    side.each("alter: deleted", AlterUserScramCredentialsRequest([away], []))


def telemetry(side: Side) -> None:
    def subscribe(label: str, instance: bytes) -> Any:
        answers: list[Any] = []
        for version in side.versions(71):
            answer = side.quiet(GetTelemetrySubscriptionsRequest(instance), version=version)
            answers.append(answer)
            if instance == bytes(16):
                assert answer.client_instance_id != instance
                answer.client_instance_id = INSTANCE
            side.keep_answer(f"subscriptions: {label} v{version}", answer)
        return answers[-1] if answers else None

    subscribe("a new client", bytes(16))
    known = subscribe("one with an id", INSTANCE)
    if known is None:
        return

    def push(label: str, **fields: Any) -> None:
        fields = {"client_instance_id": INSTANCE, "subscription_id": known.subscription_id} | fields
        side.each(f"push: {label}", PushTelemetryRequest(**fields))

    push("an instance without an id", client_instance_id=bytes(16))
    push("one that never asked", client_instance_id=bytes(15) + b"\7")
    push("another subscription", subscription_id=known.subscription_id + 1)


SCENARIOS = (logins, acls_without_authorizer, client_quotas, scram_users, telemetry)
