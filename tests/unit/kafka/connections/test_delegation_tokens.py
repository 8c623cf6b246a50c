"""Delegation tokens at a front end on virtual time: who may create them, and how long they are
valid (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kafka.connections.test_logins import PASSWORD, Place
from tests.unit.kafka.fake_host import Client
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.handlers.delegation_tokens import token_hmac
from vdl.kafka.security.delegation_keys import DelegationKeys
from vdl.kafka.security.principal import Principal
from vdl.kafka.security.protocol import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from vdl.kafka.security.scram_client import ScramConversation
from vdl.kafka.wire.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from vdl.kafka.wire.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from vdl.kafka.wire.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from vdl.kafka.wire.expire_delegation_token import ExpireDelegationTokenRequest
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.kafka.wire.renew_delegation_token import RenewDelegationTokenRequest
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest
from vdl.state.acls import AclOperation, AclPattern, AclPermission, AclResource
from vdl.state.commands import (
    AclBinding,
    AlterScramCredentials,
    CreateAcls,
    CreateDelegationToken,
)
from vdl.state.delegation_tokens import ALL_BYTES_MAX

CREATE, RENEW, EXPIRE, DESCRIBE, HANDSHAKE, METADATA = 38, 39, 40, 41, 17, 3
ALTER_USERS = 51
KEY = b"a key that only servers have"
DAY_MS = 86_400_000


class Tokens(Place):
    """A front end with delegation tokens enabled."""

    def __init__(self, **options: Any) -> None:
        super().__init__(KafkaOptions(**options))
        self.context.delegation_keys = DelegationKeys(KEY)

    def user(self, name: str = "alice") -> Client:
        client = self.visitor()
        assert self.log_in(client, SCRAM_SHA_512, name).error_code == ErrorCode.NONE
        return client

    def make(self, client: Client, *, owner: str = "", **fields: Any) -> Any:
        request = CreateDelegationTokenRequest(
            owner_principal_type="User" if owner else None,
            owner_principal_name=owner or None,
            **({"renewers": [], "max_lifetime_ms": -1} | fields),
        )
        return client.ask(CREATE, 3, request)

    def come_with(
        self, token: Any, mechanism: str = SCRAM_SHA_256, extra: bytes = b",tokenauth=true"
    ) -> tuple[Client, Any]:
        """Log a new client in with a token. Return the client and the last answer."""
        client = self.visitor()
        client.ask(HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
        password = base64.b64encode(token.hmac).decode()
        scram = ScramConversation(mechanism, token.token_id, password, "n")
        first = scram.first()
        scram._bare += extra.decode()
        answer = self.prove(client, first + extra)
        if not answer.error_code:
            answer = self.prove(client, scram.final(answer.auth_bytes))
        return client, answer


def names(place: Tokens, client: Client, owners: Any = None) -> list[str]:
    answer = client.ask(DESCRIBE, 3, DescribeDelegationTokenRequest(owners=owners))
    assert answer.error_code == ErrorCode.NONE
    return [token.token_id for token in answer.tokens]


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_token_lets_its_bearer_in_as_its_owner_until_it_ends(mechanism: str) -> None:
    place = Tokens()
    token = place.make(place.user())
    assert (token.error_code, token.principal_name) == (0, "alice")
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == DAY_MS
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 7 * DAY_MS
    assert token.hmac == token_hmac(KEY, token.token_id)
    client, answer = place.come_with(token, mechanism)
    assert answer.error_code == ErrorCode.NONE
    assert client.session.info.principal == Principal("alice")
    assert 0 < answer.session_lifetime_ms <= DAY_MS
    place.run(answer.session_lifetime_ms + 1)
    client.request(METADATA, 12, MetadataRequest())
    place.run()
    assert client.closed
    assert place.come_with(token)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_token_is_no_user_and_a_user_is_no_token() -> None:
    """Refused: a token without the extension, a user's name with it, PLAIN, another secret."""
    place = Tokens()
    token = place.make(place.user())
    refused = ErrorCode.SASL_AUTHENTICATION_FAILED
    assert place.come_with(token, extra=b"")[1].error_code == refused
    assert place.come_with(token, extra=b",tokenauth=false")[1].error_code == refused
    password = base64.b64encode(token.hmac).decode()
    answer = place.log_in(place.visitor(), PLAIN, token.token_id, password)
    assert answer.error_code == refused
    token.token_id, token.hmac = "alice", base64.b64decode(base64.b64encode(PASSWORD.encode()))
    assert place.come_with(token)[1].error_code == refused


def test_token_that_is_removed_ends_its_connections() -> None:
    """The connection of the token is closed at once; the owner's own connection is not."""
    place = Tokens()
    user = place.user()
    token = place.make(user)
    client, _ = place.come_with(token)
    answer = user.ask(EXPIRE, 2, ExpireDelegationTokenRequest(token.hmac, -1))
    assert answer.error_code == ErrorCode.NONE
    place.frontend.credentials_changed()
    assert client.closed
    assert not user.closed
    gone = user.ask(RENEW, 2, RenewDelegationTokenRequest(token.hmac, -1))
    assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_tokens_of_one_user_leave_room_for_those_of_others() -> None:
    """One owner may use half of the memory. Beyond it, creation fails with a retriable error, and
    succeeds again once tokens end. A token for another owner counts for its requester."""
    place = Tokens()
    alice = place.user()
    renewers = [CreatableRenewers("User", f"{number:03}".ljust(256, "r")) for number in range(100)]
    made = []
    while True:
        token = place.make(alice, renewers=renewers)
        if token.error_code:
            break
        made.append(token)
    assert token.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    (first, *_) = place.host.catalog.tokens.tokens.values()
    assert len(made) == ALL_BYTES_MAX // 2 // first.bytes
    for_bob = place.make(alice, owner="bob", renewers=renewers[1:])
    assert for_bob.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert place.make(place.user("=,"), renewers=renewers).error_code == ErrorCode.NONE
    answer = alice.ask(EXPIRE, 2, ExpireDelegationTokenRequest(made[0].hmac, -1))
    assert answer.error_code == ErrorCode.NONE
    assert place.make(alice, renewers=renewers).error_code == ErrorCode.NONE
    assert not place.context.token_bytes_asked


def test_tokens_of_a_removed_user_end_with_its_last_credential() -> None:
    """Tokens that the user owns end; tokens that it requested for others too. A second removal
    ends tokens created meanwhile."""
    place = Tokens()
    user, other = place.user(), place.user("=,")
    own, of_other = place.make(user), place.make(other)
    client, _ = place.come_with(own)
    both = [ScramCredentialDeletion("alice", number) for number in (1, 2)]
    for deletions, ends in ((both[:1], False), (both[1:], True)):
        answer = other.ask(ALTER_USERS, 0, AlterUserScramCredentialsRequest(deletions))
        assert [result.error_code for result in answer.results] == [ErrorCode.NONE]
        place.frontend.credentials_changed()
        assert client.closed is ends
    assert place.come_with(own)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert place.come_with(of_other)[1].error_code == ErrorCode.NONE
    gone = other.ask(RENEW, 2, RenewDelegationTokenRequest(own.hmac, -1))
    assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    place.host.apply(CreateDelegationToken("late", "User:=,", "User:alice", [], DAY_MS, DAY_MS, []))
    answer = other.ask(ALTER_USERS, 0, AlterUserScramCredentialsRequest(both[:1]))
    assert answer.results[0].error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert list(place.host.catalog.tokens.tokens) == [of_other.token_id]


@pytest.mark.parametrize("is_proposed", [False, True])
def test_room_for_a_token_is_given_back_when_its_client_goes_away(*, is_proposed: bool) -> None:
    """The client disconnects while the secret is computed, or while the catalog is changed."""
    place = Tokens()
    user = place.user()
    jobs: list[Callable[[], None]] = []
    place.context.login_compute = lambda job, done: jobs.append(lambda: done(job()))
    user.request(CREATE, 3, CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1))
    place.time.step()
    (compute,) = jobs
    assert place.context.token_bytes_asked
    if is_proposed:
        compute()
    user.session.connection_lost()
    if not is_proposed:
        compute()
    place.run()
    assert not place.context.token_bytes_asked
    assert len(place.host.catalog.tokens.tokens) == is_proposed


def test_tokens_of_a_removed_user_end_also_when_who_removed_it_goes_away() -> None:
    place = Tokens()
    user, other = place.user(), place.user("=,")
    for _ in range(3):
        place.make(user)
    both = [ScramCredentialDeletion("alice", number) for number in (1, 2)]
    other.request(ALTER_USERS, 0, AlterUserScramCredentialsRequest(both))
    other.session.connection_lost()
    place.run()
    assert not place.host.catalog.scram.of("alice")
    assert not place.host.catalog.tokens.tokens


def test_token_and_user_that_are_removed_within_a_minute_are_both_told() -> None:
    """Each kind of log line is limited, and these are two kinds."""
    place = Tokens()
    user = place.user()
    place.come_with(token := place.make(user))
    user.ask(EXPIRE, 2, ExpireDelegationTokenRequest(token.hmac, -1))
    place.frontend.credentials_changed()
    place.host.apply(
        AlterScramCredentials([("alice", kind) for kind in (SCRAM_SHA_256, SCRAM_SHA_512)], [], b"")
    )
    place.frontend.credentials_changed()
    told = [fields for _, event, fields in place.log.events if event == "client_disconnected"]
    assert [fields["reason"] for fields in told] == [
        "token: it was removed",
        "user: it was removed",
    ]


def test_token_is_renewed_and_shortened_by_its_own() -> None:
    place = Tokens()
    user, other = place.user(), place.user("=,")
    token = place.make(user, max_lifetime_ms=2 * DAY_MS)
    place.run(DAY_MS // 2)
    user, other = place.user(), place.user("=,")
    answer = user.ask(RENEW, 2, RenewDelegationTokenRequest(token.hmac, -1))
    assert answer.expiry_timestamp_ms > token.expiry_timestamp_ms + DAY_MS // 3
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    for key, request in (
        (RENEW, RenewDelegationTokenRequest(token.hmac, -1)),
        (EXPIRE, ExpireDelegationTokenRequest(token.hmac, -1)),
    ):
        assert other.ask(key, 2, request).error_code == mismatch
    short = user.ask(EXPIRE, 2, ExpireDelegationTokenRequest(token.hmac, 5_000))
    assert short.error_code == ErrorCode.NONE
    place.run(6_000)
    ended = user.ask(RENEW, 2, RenewDelegationTokenRequest(token.hmac, -1))
    assert ended.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert names(place, user) == []
    renewers = [CreatableRenewers("User", "=,")]
    shared = place.make(user, renewers=renewers)
    assert other.ask(RENEW, 2, RenewDelegationTokenRequest(shared.hmac, 1_000)).error_code == 0


def test_who_is_nobody_or_came_with_a_token_cannot_ask_about_tokens() -> None:
    """Otherwise a token could create the next one, and access would never end."""
    place = Tokens()
    token = place.make(place.user())
    bearer, _ = place.come_with(token)
    refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    for client in (bearer, place.client()):
        assert place.make(client).error_code == refused
        for key, version, request in (
            (RENEW, 2, RenewDelegationTokenRequest(token.hmac, -1)),
            (EXPIRE, 2, ExpireDelegationTokenRequest(token.hmac, -1)),
            (DESCRIBE, 3, DescribeDelegationTokenRequest(owners=None)),
        ):
            answer = client.ask(key, version, request)
            assert answer.error_code == refused
    place.context.delegation_keys = DelegationKeys()
    assert place.make(place.user()).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert place.come_with(token)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_tokens_end_with_their_key() -> None:
    """Tokens are valid while their key is the current or the previous one. Afterwards they cannot
    log in and are not described. A token with an id of the old form, which names no key, is valid
    until it expires."""
    place = Tokens()
    user = place.user()
    before = place.make(user)
    next_key = b"a key that comes after it"
    refused = ErrorCode.SASL_AUTHENTICATION_FAILED
    place.context.delegation_keys = DelegationKeys(next_key, KEY)
    after = place.make(user)
    for token in (before, after):
        assert place.come_with(token)[1].error_code == ErrorCode.NONE
        assert user.ask(RENEW, 2, RenewDelegationTokenRequest(token.hmac, 9_000)).error_code == 0
    assert len(names(place, user)) == 2
    place.context.delegation_keys = DelegationKeys(next_key)
    assert names(place, user) == [after.token_id]
    assert place.come_with(before)[1].error_code == refused
    assert place.come_with(after)[1].error_code == ErrorCode.NONE
    answer = user.ask(RENEW, 2, RenewDelegationTokenRequest(before.hmac, 9_000))
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert DelegationKeys(next_key, KEY).of("an-id_of_before") == (next_key, KEY)
    assert DelegationKeys().of(after.token_id) == ()


def test_token_for_somebody_else_needs_permission() -> None:
    """KIP-373: CREATE_TOKENS on the owner is required. Owner and requester see the token."""
    place = Tokens(authorizer=True)
    user = place.user()
    refused = place.make(user, owner="carol")
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert refused.hmac == b""
    place.host.apply(
        CreateAcls(
            [
                AclBinding(
                    AclResource.USER, "User:carol", AclPattern.LITERAL, "User:alice", "*",
                    AclOperation.CREATE_TOKENS, AclPermission.ALLOW,
                )
            ]
        )
    )  # fmt: skip
    token = place.make(user, owner="carol")
    assert (token.principal_name, token.token_requester_principal_name) == ("carol", "alice")
    client, _ = place.come_with(token)
    assert client.session.info.principal == Principal("carol")
    assert names(place, user) == [token.token_id]


@pytest.mark.parametrize("how", ["token", "owner"])
def test_tokens_of_others_are_seen_with_permission_only(how: str) -> None:
    """DESCRIBE on the token, or DESCRIBE_TOKENS on its owner, is required. Without it, the answer
    does not show that the token exists."""
    place = Tokens(authorizer=True)
    user, other = place.user(), place.user("=,")
    token = place.make(user)
    wanted = [DescribeDelegationTokenOwner("User", "alice")]
    assert names(place, other) == names(place, other, wanted) == []
    assert names(place, user, []) == []
    assert names(place, user, [DescribeDelegationTokenOwner("User", "=,")]) == []
    resource, name, operation = {
        "token": (AclResource.DELEGATION_TOKEN, token.token_id, AclOperation.DESCRIBE),
        "owner": (AclResource.USER, "User:alice", AclOperation.DESCRIBE_TOKENS),
    }[how]
    binding = AclBinding(
        resource, name, AclPattern.LITERAL, "User:=,", "*", operation, AclPermission.ALLOW
    )
    place.host.apply(CreateAcls([binding]))
    assert names(place, other) == names(place, other, wanted) == [token.token_id]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"renewers": [CreatableRenewers("Group", "g")]}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        ({"renewers": [CreatableRenewers("User", "")]}, ErrorCode.INVALID_REQUEST),
        ({"renewers": [CreatableRenewers("User", str(n)) for n in range(101)]}, 42),
        ({"owner": "x" * 300}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_token_of_impossible_people_is_refused(fields: dict[str, Any], code: int) -> None:
    place = Tokens()
    assert place.make(place.user(), **fields).error_code == code


def test_secret_of_a_token_is_in_nothing_that_is_kept_or_said() -> None:
    """The catalog, and so its snapshots and files, does not contain it; nor does the log."""
    place = Tokens()
    token = place.make(place.user())
    place.come_with(token)
    kept = repr(place.host.catalog.items()) + repr(place.log.events) + repr(place.context)
    for secret in (token.hmac, base64.b64encode(token.hmac), KEY):
        assert repr(secret)[2:-1] not in kept
