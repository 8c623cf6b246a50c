"""Users of the console may do what Kafka's permissions allow them, and no more."""

from __future__ import annotations

import re
import time
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from tests.console.asking import Answer, Browser
from tests.console.browser.console_set import (
    ConsoleSet,
    client_settings,
    consuming,
    make_topics,
)
from tests.console.conftest import ALICE, ALICE_PASSWORD, add_user, grant
from tests.hangs import HANG_SECONDS
from vdl.console.sessions import CONNECTION_SECONDS, NAME_FAILURES_MAX

PAGES = (
    "overview", "servers", "topics", "groups", "acls", "users", "quotas", "series", "explain",
    "explanation",
    "server?server=1", "topic?topic=hers", "partitions?topic=hers", "group?group=a",
    "records?topic=hers&partition=0", "topic_groups?topic=hers",
)  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_page_without_a_login_is_refused(secure_port: int, page: str) -> None:
    stranger = Browser(secure_port, {f"vdl-console-{secure_port}": "A" * 43})
    answer = stranger.send("GET", f"/console/api/{page}")
    assert (answer.status, answer.kind) == (401, "login_required")
    session = stranger.page("session")
    assert (session["state"], session["user"], session["version"]) == ("login_required", None, None)
    assert session["mechanisms"] == ["SCRAM-SHA-512", "SCRAM-SHA-256"]


def test_user_sees_the_topics_of_the_lists(alice: Browser) -> None:
    assert alice.page("session")["user"] == ALICE
    assert [one["name"] for one in alice.page("topics", internal="true")["topics"]] == ["hers"]
    assert alice.page("records", topic="hers", partition=0)["records"] == []
    found = alice.page("overview")
    assert found["counts"]["topics"] == 1
    assert found["problems_of"] == "server"
    assert [one["version"] for one in found["servers"]] == [None]


@pytest.mark.parametrize(
    ("page", "kinds"),
    [
        ("topic?topic=secret", ("forbidden", "not_found")),
        ("partitions?topic=secret", ("forbidden", "not_found")),
        ("records?topic=secret&partition=0", ("forbidden", "not_found")),
        ("topic_groups?topic=secret", ("forbidden", "not_found")),
        ("group?group=others", ("forbidden",)),
        ("acls", ("forbidden",)),
        ("users", ("forbidden",)),
        ("quotas", ("forbidden",)),
        ("explanation", ("forbidden",)),
        ("explanation?about=partition&topic=hers&partition=0", ("forbidden",)),
    ],
)
def test_user_does_not_see_the_rest(alice: Browser, page: str, kinds: tuple[str, ...]) -> None:
    answer = alice.send("GET", f"/console/api/{page}")
    assert answer.kind in kinds, answer.body


def test_user_does_not_see_settings_of_servers(alice: Browser) -> None:
    found = alice.page("server", server=1)
    assert found["settings"] is None
    assert found["settings_missing"]


def test_explanation_is_made_from_what_the_user_may_describe(
    secure_set: ConsoleSet, secure_port: int, root: Browser, admin_of_secure_set: AdminClient
) -> None:
    """An operator of the cluster learns nothing of others' topics and groups."""
    user = f"operator-{uuid.uuid4().hex[:8]}"
    add_user(admin_of_secure_set, user, "watches")
    for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS):
        grant(admin_of_secure_set, user, ResourceType.BROKER, "kafka-cluster", operation)
    grant(admin_of_secure_set, user, ResourceType.TOPIC, "hers", AclOperation.DESCRIBE)
    settings = client_settings(secure_set)
    for topic in ("hers", "secret"):
        producer = Producer({**settings, "message.max.bytes": 3_000_000})
        producer.produce(topic, bytes(2_000_000))
        assert producer.flush(HANG_SECONDS) == 0
    with consuming(settings, "secret", "secret-group", "till"):
        operator = Browser(secure_port)
        until_ok(lambda: operator.log_in(user, "watches"))
        until_ok(lambda: operator.get("explanation"))
        found = operator.page("explanation")
        assert "hers" in str(found)
        assert "secret" not in str(found)
        assert "secret" in str(root.page("explanation"))
        group = {"about": "group", "group": "secret-group"}
        assert root.page("explanation", **group)["explanation"]["evidence"]
        assert operator.get("explanation", **group).kind == "forbidden"
        lag = {"about": "lag", "group": "secret-group"}
        assert operator.get("explanation", **lag).kind == "forbidden"
        partition = {"topic": "secret", "partition": 0}
        answer = operator.get("explanation", about="partition", **partition)
        assert answer.kind in ("forbidden", "not_found")
        grant(admin_of_secure_set, user, ResourceType.GROUP, "secret-group", AclOperation.DESCRIBE)
        until_ok(lambda: operator.get("explanation", **lag))
        shown = operator.page("explanation", **lag)["explanation"]
        assert "secret-0" not in str(shown)


def test_administrator_sees_all(root: Browser) -> None:
    names = [one["name"] for one in root.page("topics")["topics"]]
    assert {"hers", "secret"} <= set(names)
    found = root.page("overview")
    assert found["problems_of"] == "cluster"
    assert found["servers"][0]["version"]
    users = {one["user"] for one in root.page("users")["users"]}
    assert ALICE in users
    acls = root.page("acls", search="user:alice")["acls"]
    assert ("topic", "hers", "read", "allow") in {
        (one["resource_type"], one["resource"], one["operation"], one["permission"]) for one in acls
    }
    assert root.page("quotas")["quotas"] == []
    settings = {one["name"]: one for one in root.page("server", server=1)["settings"]}
    assert all(one["value"] is None for one in settings.values() if one["is_sensitive"])


def test_user_writes_only_with_the_right(
    secure_set: ConsoleSet, alice: Browser, admin_of_secure_set: AdminClient
) -> None:
    topic = f"written.{uuid.uuid4().hex[:8]}"
    make_topics(client_settings(secure_set), {topic: 1})
    grant(admin_of_secure_set, ALICE, ResourceType.TOPIC, topic, AclOperation.READ)
    body = {"topic": topic, "partition": 0, "value": "x"}
    assert alice.post("records", body).kind == "forbidden"
    grant(admin_of_secure_set, ALICE, ResourceType.TOPIC, topic, AclOperation.WRITE)
    until_ok(lambda: alice.post("records", body))
    assert len(alice.page("records", topic=topic, partition=0)["records"]) == 1


def until_ok(ask: object) -> Answer:
    """Return the first answer that is 200."""
    deadline = time.monotonic() + HANG_SECONDS
    assert callable(ask)
    while True:
        answer = ask()
        if answer.status == 200:
            assert isinstance(answer, Answer)
            return answer
        assert time.monotonic() < deadline, answer.body
        time.sleep(0.2)


def test_login_says_the_same_of_all_failures(secure_port: int) -> None:
    """Answers do not tell which users exist."""
    wrong = Browser(secure_port).log_in(ALICE, "wrong")
    unknown = Browser(secure_port).log_in(f"nobody-{uuid.uuid4().hex}", "wrong")
    assert (wrong.status, wrong.kind) == (401, "login_failed")
    assert (unknown.status, unknown.body) == (wrong.status, wrong.body)
    assert "Set-Cookie" not in wrong.headers
    assert ALICE not in wrong.body.decode()


def test_guesses_are_slowed_before_the_servers_lock_the_name(
    secure_set: ConsoleSet, secure_port: int, admin_of_secure_set: AdminClient
) -> None:
    """Other users of this machine can still log in by that name at the servers."""
    user = f"guessed-{uuid.uuid4().hex[:8]}"
    add_user(admin_of_secure_set, user, "right")
    until_ok(lambda: Browser(secure_port).log_in(user, "right"))
    guesses = [Browser(secure_port).log_in(user, f"guess {number}") for number in range(12)]
    assert [one.status for one in guesses[:NAME_FAILURES_MAX]] == [401] * NAME_FAILURES_MAX
    assert {one.kind for one in guesses[NAME_FAILURES_MAX:]} == {"too_many"}
    assert int(guesses[-1].headers["Retry-After"]) > 0
    assert Browser(secure_port).log_in(user, "right").kind == "too_many"
    settings = client_settings(secure_set) | {"sasl.username": user, "sasl.password": "right"}
    assert AdminClient(settings).list_topics(timeout=HANG_SECONDS).cluster_id


@pytest.mark.parametrize(
    "body",
    [
        {}, [], None, {"user": "a"}, {"user": "", "password": "x"}, {"user": 5, "password": "x"},
        {"user": "a\0alice", "password": "x"}, {"user": "a", "password": "\ud800"},
        {"user": "a" * 250, "password": "x"}, {"user": "a", "password": "x" * 5_000},
        {"user": "a", "password": "x", "mechanism": "PLAIN"},
        {"user": "a", "password": "x", "mechanism": ["x"]}, {"user": "a", "password": "x", "b": 1},
    ],
)  # fmt: skip
def test_login_that_is_not_valid_is_refused(secure_port: int, body: object) -> None:
    answer = Browser(secure_port).post("login", body)
    assert (answer.status, answer.kind) == (400, "bad_request")


def test_login_gets_a_session_of_its_own(alice: Browser) -> None:
    """A session that a stranger has set before the login is not used (session fixation)."""
    before = dict(alice.cookies)
    assert alice.log_in(ALICE, ALICE_PASSWORD).status == 200
    assert alice.cookies != before
    assert Browser(alice.port, before).get("topics").kind == "login_required"


@pytest.mark.parametrize("page", ["topics", "series"])
@pytest.mark.parametrize("change", ["password", "deleted"])
def test_session_ends_with_its_login(
    secure_port: int, admin_of_secure_set: AdminClient, page: str, change: str
) -> None:
    """A page asks no longer than one connection with the login of before."""
    user = f"leaving-{uuid.uuid4().hex[:8]}"
    add_user(admin_of_secure_set, user, "first")
    found = Browser(secure_port)
    until_ok(lambda: found.log_in(user, "first"))
    assert found.get(page).status == 200
    if change == "password":
        add_user(admin_of_secure_set, user, "second")
    else:
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        for future in admin_of_secure_set.alter_user_scram_credentials([deletion]).values():
            future.result(HANG_SECONDS)
    deadline = time.monotonic() + CONNECTION_SECONDS + HANG_SECONDS
    while (answer := found.get(page)).status == 200:
        assert time.monotonic() < deadline, "the session outlives its login"
        time.sleep(1.0)
    assert answer.kind == "login_required"
    assert found.get("overview").kind == "login_required"


def test_no_secret_is_in_answers_or_logs(secure_set: ConsoleSet, alice: Browser) -> None:
    session = alice.page("session")
    assert ALICE_PASSWORD not in str(session)
    texts = [path.read_text(errors="replace") for path in secure_set.directory.rglob("*log*")
             if path.is_file() and path.stat().st_size < 10_000_000]  # fmt: skip
    lines = "\n".join(texts)
    assert re.search(rf"console_login .*user={ALICE} address=127\.0\.0\.1", lines)
    key = next(iter(alice.cookies.values()))
    for text in texts:
        assert ALICE_PASSWORD not in text
        assert key not in text
