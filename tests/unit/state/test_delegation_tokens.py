"""Delegation tokens as replicated state: owner, expiry and space."""

from __future__ import annotations

import pytest

from vdl.errors import ErrorCode
from vdl.state.catalog import Catalog
from vdl.state.commands import AlterDelegationToken, CreateDelegationToken, ScramUpsert
from vdl.state.delegation_tokens import ALL_BYTES_MAX, TokenAnswer

OWNER, REQUESTER, RENEWER = "User:alice", "User:bob", "User:carol"
NOW = 1_000_000
KINDS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def create(
    catalog: Catalog, token_id: str = "t", now_ms: int = NOW, renewers: tuple[str, ...] = (RENEWER,)
) -> TokenAnswer:
    """Create a token with a lifetime of ten seconds, to be renewed every four."""
    verifiers = [ScramUpsert(token_id, kind, 4_096, b"s" * 16, b"k", b"v") for kind in KINDS]
    command = CreateDelegationToken(
        token_id, OWNER, REQUESTER, list(renewers), 10_000, 4_000, verifiers
    )
    answer = catalog.apply(command, now_ms, 1)
    assert isinstance(answer, TokenAnswer)
    return answer


def alter(
    catalog: Catalog, period_ms: int, now_ms: int, who: str = OWNER, token_id: str = "t"
) -> TokenAnswer:
    answer = catalog.apply(AlterDelegationToken(token_id, who, period_ms), now_ms, 2)
    assert isinstance(answer, TokenAnswer)
    return answer


def test_token_lives_until_it_should_have_been_renewed() -> None:
    catalog = Catalog()
    answer = create(catalog)
    assert (answer.error, answer.issued_ms, answer.expires_ms, answer.max_ms) == (
        ErrorCode.NONE, NOW, NOW + 4_000, NOW + 10_000,
    )  # fmt: skip
    assert catalog.tokens.valid("t", NOW + 3_999) is not None
    assert catalog.tokens.valid("t", NOW + 4_000) is None
    assert alter(catalog, 4_000, NOW + 4_000).error is ErrorCode.DELEGATION_TOKEN_EXPIRED


def test_token_is_renewed_up_to_its_largest_age() -> None:
    catalog = Catalog()
    create(catalog)
    assert alter(catalog, 4_000, NOW + 3_000).expires_ms == NOW + 7_000
    assert alter(catalog, 4_000, NOW + 6_900).expires_ms == NOW + 10_000
    assert alter(catalog, 4_000, NOW + 9_999).expires_ms == NOW + 10_000
    assert alter(catalog, 4_000, NOW + 10_000).error is ErrorCode.DELEGATION_TOKEN_EXPIRED


@pytest.mark.parametrize(
    ("who", "code"),
    [
        (OWNER, ErrorCode.NONE),
        (REQUESTER, ErrorCode.NONE),
        (RENEWER, ErrorCode.NONE),
        ("User:eve", ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        ("Group:alice", ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
    ],
)
def test_token_is_altered_by_those_whose_it_is(who: str, code: ErrorCode) -> None:
    for period_ms in (1_000, -1):
        catalog = Catalog()
        create(catalog)
        assert alter(catalog, period_ms, NOW + 1, who).error is code
        gone = code is ErrorCode.NONE and period_ms < 0
        assert (catalog.tokens.valid("t", NOW + 1) is None) == gone


def test_token_that_was_removed_is_not_there_any_more() -> None:
    catalog = Catalog()
    create(catalog)
    assert alter(catalog, -1, NOW + 1).expires_ms == NOW + 1
    assert alter(catalog, -1, NOW + 2).error is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert len(catalog.tokens) == 0


def test_token_that_is_created_twice_is_one() -> None:
    """A client's server retries when it does not know the outcome."""
    catalog = Catalog()
    first = create(catalog)
    assert create(catalog, now_ms=NOW + 50) == first


def test_tokens_take_bounded_room_and_those_that_ended_take_none() -> None:
    catalog = Catalog()
    names = tuple(f"User:{'n' * 900}{number}" for number in range(50))
    count = 0
    while create(catalog, f"t{count}", renewers=names).error is ErrorCode.NONE:
        count += 1
    assert 10 < count <= ALL_BYTES_MAX // (50 * 900)
    refused = create(catalog, "late", NOW + 3_999, names)
    assert refused.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert create(catalog, "later", NOW + 4_000, names).error is ErrorCode.NONE
    assert list(catalog.tokens.tokens) == ["later"]


def test_tokens_are_in_snapshots_and_in_what_changed() -> None:
    catalog, other = Catalog(), Catalog()
    create(catalog)
    create(catalog, "u")
    alter(catalog, 1_000, NOW + 5)
    alter(catalog, -1, NOW + 6, token_id="u")
    changed = catalog.take_dirty()
    assert sum(value is None for _, value in changed) == 1
    other.load(catalog.items())
    assert other.items() == catalog.items()
    assert dict(other.tokens.tokens) == dict(catalog.tokens.tokens)
    assert other.item_count == catalog.item_count == len(catalog.items())
    stored = {key: value for key, value in changed if value is not None}
    assert stored.items() <= dict(catalog.items()).items()
