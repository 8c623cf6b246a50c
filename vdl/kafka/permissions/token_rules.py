"""Rules about delegation tokens (KIP-48, KIP-373).

Does not depend on the rules of each API (`table.py`).
"""

from __future__ import annotations

from typing import Any

from vdl.errors import ErrorCode
from vdl.kafka.permissions.rules import Check, Finish, Refused
from vdl.state.acls import AclOperation, AclResource


def created_token(check: Check) -> Refused | None:
    """for somebody else, CREATE_TOKENS on that user."""
    request = check.request
    if not request.owner_principal_name:
        return None
    owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    if owner == str(check.ctx.principal):
        return None
    if check.may(AclOperation.CREATE_TOKENS, AclResource.USER, owner):
        return None
    return check.refuse(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)


def own_token(check: Check) -> None:
    """to be its owner, who had it made, or one of its renewers.

    The catalog decides this with the token, whose secret the request contains.
    """
    del check


def described_tokens(check: Check) -> Finish:
    """for each token in the answer: to be its owner, its requester or a renewer, DESCRIBE on the
    token, or DESCRIBE_TOKENS on its owner."""
    asker = str(check.ctx.principal)
    tokens = check.ctx.server.host.catalog.tokens.tokens

    def is_told(token: Any) -> bool:
        owner = f"{token.principal_type}:{token.principal_name}"
        known = tokens.get(token.token_id)
        return (
            (known is not None and known.belongs_to(asker))
            or check.may(
                AclOperation.DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id, quietly=True
            )
            or check.may(AclOperation.DESCRIBE_TOKENS, AclResource.USER, owner, quietly=True)
        )

    def finish(answer: Any) -> Any:
        answer.tokens = [token for token in answer.tokens if is_told(token)]
        return answer

    return finish
