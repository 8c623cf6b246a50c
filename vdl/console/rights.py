"""Access control lists, users and quotas, as far as the user may see them.

Does not depend on HTTP.
"""

from __future__ import annotations

from typing import Any, Final

from vdl.console.parameters import LIST, Listing, Parameters
from vdl.console.problems import check_code
from vdl.console.question import (
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    Question,
)
from vdl.errors import ErrorCode
from vdl.kafka.security.protocol import SCRAM_SHA_256, SCRAM_SHA_512
from vdl.kafka.wire.describe_acls import DescribeAclsRequest
from vdl.kafka.wire.describe_client_quotas import DescribeClientQuotasRequest
from vdl.kafka.wire.describe_user_scram_credentials import DescribeUserScramCredentialsRequest

RIGHTS: Final = LIST
_ANY: Final = 1
_RESOURCES: Final = {
    2: "topic", 3: "group", 4: "cluster", 5: "transactional id", 6: "delegation token", 7: "user",
}  # fmt: skip
_PATTERNS: Final = {3: "literal", 4: "prefixed"}
_OPERATIONS: Final = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe",
    9: "cluster action", 10: "describe configs", 11: "alter configs", 12: "idempotent write",
    13: "create tokens", 14: "describe tokens", 15: "two-phase commit",
}  # fmt: skip
_PERMISSIONS: Final = {2: "deny", 3: "allow"}
_MECHANISMS: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}


def acls(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET acls`."""
    listing = Listing(given, ("principal", "resource"))
    request = DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    answer = question.ask(DESCRIBE_ACLS, request)
    is_enforced = answer.error_code != ErrorCode.SECURITY_DISABLED
    if is_enforced:
        check_code(answer.error_code, "access control lists", answer.error_message)
    rows = [
        {
            "resource_type": _RESOURCES.get(resource.resource_type, "unknown"),
            "resource": resource.resource_name,
            "pattern": _PATTERNS.get(resource.pattern_type, "unknown"),
            "principal": one.principal,
            "host": one.host,
            "operation": _OPERATIONS.get(one.operation, "unknown"),
            "permission": _PERMISSIONS.get(one.permission_type, "unknown"),
        }
        for resource in answer.resources
        for one in resource.acls
    ]
    found = [row for row in rows if listing.finds(" ".join(row.values()))]
    found.sort(key=lambda row: (row["principal"], row["resource"], row["operation"]))
    return {
        "page": listing.info(len(found)), "is_enforced": is_enforced, "acls": listing.choose(found),
    }  # fmt: skip


def users(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET users`."""
    listing = Listing(given, ("user",))
    request = DescribeUserScramCredentialsRequest(users=None)
    answer = question.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, request)
    check_code(answer.error_code, "users", answer.error_message)
    rows = [
        {
            "user": one.user,
            "mechanisms": [
                {"mechanism": _MECHANISMS.get(info.mechanism, ""), "iterations": info.iterations}
                for info in one.credential_infos
            ],
        }
        for one in answer.results
        if one.error_code == ErrorCode.NONE and listing.finds(one.user)
    ]
    return {"page": listing.info(len(rows)), "users": listing.choose(rows)}


def quotas(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET quotas`."""
    listing = Listing(given, ("name",))
    answer = question.ask(DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest())
    check_code(answer.error_code, "quotas", answer.error_message)
    rows = []
    for entry in answer.entries or []:
        name = ", ".join(f"{one.entity_type} {one.entity_name or '*'}" for one in entry.entity)
        if listing.finds(name):
            entity = [{"type": one.entity_type, "name": one.entity_name} for one in entry.entity]
            values = [{"name": one.key, "value": one.value} for one in entry.values]
            rows.append({"name": name, "entity": entity, "values": values})
    return {"page": listing.info(len(rows)), "quotas": listing.choose(rows)}
