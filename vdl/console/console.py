"""The console as a whole: routes, logins, and the questions behind them.

Does not depend on sockets or threads: `answer` says what is left to be done in a thread, if
anything, and the caller does it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vdl import __version__
from vdl.console import (
    explanations,
    groups,
    new_record,
    overview,
    record_pages,
    rights,
    topics,
)
from vdl.console.cluster_watch import ClusterWatch
from vdl.console.parameters import Parameters
from vdl.console.points import POINTS_MAX, Point
from vdl.console.problems import ConsoleError, LoginEnded
from vdl.console.question import Dead, Question
from vdl.console.registered_values import RegisteredValues
from vdl.console.sessions import IDLE_SECONDS, LoginThrottle, Session, Sessions
from vdl.console.settings import ConsoleSettings
from vdl.console.static_files import INDEX, read_static_files
from vdl.console.web import (
    BODY_BYTES_MAX,
    BODY_BYTES_MAX_WITHOUT_SESSION,
    Answer,
    Head,
    browser_address,
    check_origin,
    check_place,
)
from vdl.kafka.client import Unreachable
from vdl.log import Log

PAGES: Final = "/console/"
API: Final = "/console/api/"
QUESTION_SECONDS: Final = 15.0
JSON: Final = "application/json"
_USER_CHARS_MAX: Final = 249
_PASSWORD_CHARS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class Work:
    """Work for a thread. `asker`: the session or login for which it counts."""

    asker: str
    question: Question
    run: Callable[[], Any]
    finish: Callable[[Any], Answer]
    """Called on the loop with the result, or with the exception."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question to one page of the API."""

    console: Console
    question: Question
    given: Parameters
    local: tuple[str, int]
    """Address and port that the browser connected to."""
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class _Route:
    """A page of the API, and its parameters."""

    page: Callable[[_Asked], Any]
    known: Sequence[str] = ()


class Console:
    """All state of the console, used by the loop; `Session` and the last three are shared with
    threads."""

    def __init__(
        self, settings: ConsoleSettings, log: Log, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._log = log
        self._now_s = now_s
        self.sessions = Sessions(now_s)
        self._throttle = LoginThrottle(now_s)
        self._files = read_static_files()
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)
        self.watch = ClusterWatch(settings.admin)
        self.series = groups.LagSeries()
        self._dead = Dead()
        self._schemas = (
            RegisteredValues(settings.registry, settings.registry_login)
            if settings.registry
            else None
        )

    # --- routes ----------------------------------------------------------------------------------
    def answer(self, head: Head, body: bytes) -> Answer | Work:
        """Return the answer to a request, or what is to be done for it. Raises ConsoleError."""
        if head.path in ("/", PAGES.rstrip("/")):
            _check_method(head, "GET", "HEAD")
            return Answer(302, "text/plain", b"", {"Location": PAGES})
        if head.path.startswith(API):
            return self._answer_api(head, body)
        _check_method(head, "GET", "HEAD")
        name = head.path.removeprefix(PAGES) or INDEX
        file = self._files.get(name)
        if file is None:
            raise ConsoleError("not_found", "not found")
        return file.answer(
            head.headers.get("if-none-match", ""), head.headers.get("accept-encoding", "")
        )

    def check(self, head: Head) -> None:
        """Raise ConsoleError for a request that must not be answered, before its body is read."""
        check_place(head, self.settings)
        if head.path.startswith(API):
            check_origin(head, self.settings)
            if head.method == "POST":
                kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != JSON:
                    raise ConsoleError("bad_request", f"Content-Type: expected {JSON}")
                may_write = self._find_session(head) is not None
                head.check_length(BODY_BYTES_MAX if may_write else BODY_BYTES_MAX_WITHOUT_SESSION)
                return
        if head.length:
            raise ConsoleError("bad_request", "expected no body")

    def _answer_api(self, head: Head, body: bytes) -> Answer | Work:
        name = head.path.removeprefix(API)
        if name in ("login", "logout"):
            _check_method(head, "POST")
            fields = _object(body)
            return self._login(head, fields) if name == "login" else self._logout(head)
        if name == "session":
            _check_method(head, "GET", "HEAD")
            Parameters(head.query, ())
            return self._session(head)
        route = ROUTES.get(name)
        is_post = head.method == "POST" and name == "records"
        if route is None:
            raise ConsoleError("not_found", "no such page of the API")
        if not is_post:
            _check_method(head, "GET", "HEAD")
        session = self._find_session(head)
        if session is None:
            raise ConsoleError("login_required", "log in first")
        question = self._question(session)
        if is_post:
            fields = _object(body)
            return self._work(session, question, lambda: self._produce(head, question, fields))
        given = Parameters(head.query, route.known)
        asked = _Asked(self, question, given, head.local, tuple(self.points))
        return self._work(session, question, lambda: route.page(asked))

    def _produce(self, head: Head, question: Question, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Write a record, in a thread."""
        found = new_record.produce(question, fields)
        self._log.info(
            "console_produced",
            user=question.session.user,
            address=browser_address(head, self.settings),
            topic=found["topic"],
            partition=found["partition"],
            offset=found["offset"],
        )
        return found

    def _work(self, session: Session, question: Question, run: Callable[[], Any]) -> Work:
        def finish(result: Any) -> Answer:
            if question.was_refused:
                self._throttle.also_failed(session.user)
                self.sessions.end_alike(session)
            if isinstance(result, LoginEnded):
                self.sessions.end(session)
                raise ConsoleError("login_required", "the login has ended; log in again")
            if isinstance(result, Unreachable):
                raise ConsoleError("unreachable", str(result))
            if isinstance(result, BaseException):
                raise result
            if not isinstance(result, bytes):
                raise TypeError(result)
            return Answer(200, JSON, result)

        def checked() -> bytes:
            question.check_login()
            return encoded(run())

        return Work(session.key, question, checked, finish)

    def _question(self, session: Session) -> Question:
        ends_s = self._now_s() + QUESTION_SECONDS
        return Question(self.settings, session, self._dead, ends_s, self._schemas)

    # --- sessions --------------------------------------------------------------------------------
    def _find_session(self, head: Head) -> Session | None:
        key = head.cookie(cookie_name(head, self.settings))
        return self.sessions.find(key) if key else None

    def _session(self, head: Head) -> Answer:
        session = self._find_session(head)
        headers = {}
        if session is None and not self.settings.has_login:
            session = self.sessions.open("", "", "", browser_address(head, self.settings))
            headers = self._cookie(head, session.key)
        return Answer(200, JSON, encoded(self._described(session)), headers)

    def _described(self, session: Session | None) -> dict[str, Any]:
        settings = self.settings
        return {
            "state": "login_required" if session is None else "in",
            "user": session.user or None if session is not None else None,
            "mechanisms": list(settings.mechanisms),
            "can_change": settings.changes,
            "server": settings.server,
            "version": None if session is None else __version__,
            "cluster": None,
            "idle_seconds": IDLE_SECONDS,
            "now_ms": time.time_ns() // 1_000_000,
        }

    def _cookie(self, head: Head, value: str) -> dict[str, str]:
        secure = "; Secure" if self.settings.origin else ""
        end = "" if value else "; Max-Age=0"
        name = cookie_name(head, self.settings)
        attributes = f"Path={PAGES}; HttpOnly; SameSite=Strict{secure}{end}"
        return {"Set-Cookie": f"{name}={value}; {attributes}"}

    def _logout(self, head: Head) -> Answer:
        session = self._find_session(head)
        if session is not None:
            self.sessions.end(session)
        return Answer(200, JSON, encoded(self._described(None)), self._cookie(head, ""))

    def _login(self, head: Head, fields: Mapping[str, Any]) -> Work:
        if not self.settings.has_login:
            raise ConsoleError("bad_request", "there are no logins on this set")
        user = _text(fields, "user", _USER_CHARS_MAX)
        password = _text(fields, "password", _PASSWORD_CHARS_MAX)
        mechanism = fields.get("mechanism") or self.settings.mechanisms[0]
        if fields.keys() - {"user", "password", "mechanism"}:
            raise ConsoleError("bad_request", "expected user, password and mechanism")
        if mechanism not in self.settings.mechanisms:
            raise ConsoleError("bad_request", "mechanism: not offered")
        address = browser_address(head, self.settings)
        try:
            self._throttle.check(user, address)
        except ConsoleError:
            self._log.info("console_login_slowed", user=user, address=address)
            raise
        attempt = self._throttle.begin(user, address)
        now_s = self._now_s()
        # Not among the sessions until a server has accepted it.
        trial = Session("", user, password, mechanism, "", now_s, now_s)
        question = self._question(trial)

        def run() -> None:
            with question.client(question.own_address):
                pass

        def finish(result: Any) -> Answer:
            trial.end()
            if isinstance(result, BaseException):
                if question.login_began.is_set() or _is_late(result):
                    self._throttle.failed(attempt)  # a server may have counted it
                else:
                    self._throttle.not_asked(attempt)
            if isinstance(result, LoginEnded):
                self._log.info("console_login_refused", user=user, address=address)
                raise ConsoleError("login_failed", "user or password is wrong")
            if isinstance(result, Unreachable):
                raise ConsoleError("unreachable", "the server does not take logins now")
            if isinstance(result, BaseException):
                raise result
            self._throttle.succeeded(attempt)
            before = self._find_session(head)
            if before is not None:
                self.sessions.end(before)
            session = self.sessions.open(user, password, mechanism, address)
            self._log.info("console_login", user=user, address=address, mechanism=mechanism)
            body = encoded(self._described(session))
            return Answer(200, JSON, body, self._cookie(head, session.key))

        return Work(f"login {secrets.token_hex(8)}", question, run, finish)

    def sweep(self) -> None:
        """End sessions and forget failures whose time is over. To be called each second."""
        self.sessions.sweep()
        self._throttle.sweep()

    @property
    def is_needed(self) -> bool:
        """True while something is remembered that a new process would not know."""
        return bool(len(self.sessions) or len(self._throttle))


ROUTES: Final[Mapping[str, _Route]] = {
    "acls": _Route(lambda one: rights.acls(one.question, one.given), rights.RIGHTS),
    "explain": _Route(
        lambda one: overview.explain(one.question, one.console.watch, one.local, one.given),
        overview.EXPLAIN,
    ),
    "explanation": _Route(
        lambda one: explanations.explanation(one.question, one.console.watch, one.given),
        explanations.EXPLANATION,
    ),
    "group": _Route(
        lambda one: groups.group(one.question, one.given, one.console.series), ("group",)
    ),
    "groups": _Route(lambda one: groups.groups(one.question, one.given), groups.GROUPS),
    "overview": _Route(
        lambda one: overview.overview(one.question, one.console.watch, one.local, one.points)
    ),
    "partitions": _Route(lambda one: topics.partitions(one.question, one.given), topics.PARTITIONS),
    "quotas": _Route(lambda one: rights.quotas(one.question, one.given), rights.RIGHTS),
    "records": _Route(
        lambda one: record_pages.records(one.question, one.given), record_pages.RECORDS
    ),
    "series": _Route(lambda one: overview.series(one.given, one.points), overview.SERIES),
    "server": _Route(
        lambda one: overview.server(one.question, one.console.watch, one.given), overview.SERVER
    ),
    "servers": _Route(lambda one: overview.servers(one.question, one.console.watch)),
    "topic": _Route(lambda one: topics.topic(one.question, one.given), ("topic",)),
    "topic_groups": _Route(lambda one: groups.topic_groups(one.question, one.given), ("topic",)),
    "topics": _Route(lambda one: topics.topics(one.question, one.given), topics.TOPICS),
    "users": _Route(lambda one: rights.users(one.question, one.given), rights.RIGHTS),
}


def cookie_name(head: Head, settings: ConsoleSettings) -> str:
    """Return the name of the cookie: by port, because browsers send the cookies of a host to all of
    its ports. Behind a proxy with TLS, pages without it cannot set it (`__Secure-`)."""
    return f"{'__Secure-' if settings.origin else ''}vdl-console-{head.local[1]}"


def error_answer(error: ConsoleError, headers: Mapping[str, str] | None = None) -> Answer:
    """Return the answer for an error."""
    said = dict(headers or {})
    if error.retry_after:
        said["Retry-After"] = str(error.retry_after)
    if error.kind == "bad_method":
        said["Allow"] = error.message.removeprefix("expected ")
    return Answer(error.status, JSON, encoded(error.as_json()), said)


def encoded(found: Any) -> bytes:
    """Return JSON."""
    return json.dumps(found, separators=(",", ":"), allow_nan=False).encode()


def _is_late(error: BaseException) -> bool:
    """Return True if a question was given up, which a thread may still ask."""
    return isinstance(error, ConsoleError) and error.kind == "deadline"


def _check_method(head: Head, *allowed: str) -> None:
    if head.method not in allowed:
        raise ConsoleError("bad_method", f"expected {', '.join(allowed)}")


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise ConsoleError("bad_request", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise ConsoleError("bad_request", "the body is not a JSON object")
    return found


def _text(fields: Mapping[str, Any], name: str, most: int) -> str:
    found = fields.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= most:
        raise ConsoleError("bad_request", f"{name}: expected a text of 1 to {most} characters")
    if "\0" in found or not _is_encodable(found):
        raise ConsoleError("bad_request", f"{name}: contains a character that is not allowed")
    return found


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
