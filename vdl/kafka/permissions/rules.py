"""The kinds of rule that a request passes before its handler sees it.

A rule may

* refuse the whole request: its answer says so wherever the client looks for an error;
* take out of the request what the client may not have, and put the refusals into the answer
  beside what the handler says of the rest. What is left empty never reaches the handler, for which
  an empty list may mean all there is;
* take out of the answer what the client may not see.

Must not know: which API has which rules (`table.py`), how a decision is made
(`authorizer.py`), connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from vdl.errors import ErrorCode
from vdl.kafka.answer import Reply
from vdl.kafka.lookup import find_topic
from vdl.kafka.security.audit import NAME_CHARS_MAX, NAMES_MAX
from vdl.kafka.wire.runtime import EncodeError
from vdl.state.acls import CLUSTER_NAME, AclOperation, AclResource

if TYPE_CHECKING:
    from vdl.kafka.api import Api
    from vdl.kafka.context import RequestContext
    from vdl.kafka.security.authorizer import Authorizer

Finish = Callable[[Any], Any]
"""What becomes of the handler's answer: the answer that is sent."""


@cache
def _places(of: Any) -> tuple[bool, tuple[str, ...]]:
    """(whether a struct of an answer has a place for words, its lists that may have some)."""
    if not is_dataclass(of):
        return False, ()
    names = {field.name for field in fields(of)}
    lists = tuple(field.name for field in fields(of) if _has_words(field.type))
    return {"error_code", "error_message"} <= names, lists


def _has_words(annotation: Any) -> bool:
    """Whether there is a place for words in what a field holds."""
    of: Any
    for of in getattr(annotation, "__args__", ()):
        if is_dataclass(of):
            says, lists = _places(of)  # type: ignore[arg-type]  # classes are hashable
            return says or bool(lists)
        if _has_words(of):
            return True
    return False


def _say(answer: Any, code: ErrorCode, text: str | None) -> bool:
    """Set the text beside each place where an answer has the code. Return whether there is one."""
    kind: Any = type(answer)
    has_place, lists = _places(kind)
    is_said = has_place and answer.error_code == code
    if is_said:
        answer.error_message = text
    for name in lists:
        for part in getattr(answer, name) or ():
            is_said |= _say(part, code, text)
    return is_said


REFUSAL: Mapping[AclResource, ErrorCode] = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AclResource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    AclResource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
NO_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class Refused:
    """The request does not reach its handler; this is the answer."""

    answer: Any


class _Noted:
    """What of one kind a request named, and was decided alike."""

    __slots__ = ("count", "names")

    def __init__(self) -> None:
        self.names: list[str] = []
        """The first `NAMES_MAX`."""
        self.count = 0


class Check:
    """One request on its way through the rules."""

    __slots__ = ("_noted", "api", "authorizer", "ctx", "is_change", "request")

    def __init__(
        self,
        authorizer: Authorizer,
        api: Api,
        ctx: RequestContext,
        request: Any,
        *,
        is_change: bool = False,
    ) -> None:
        """`is_change`: the API changes something, so that each use of it is noted."""
        self.authorizer = authorizer
        self.api = api
        self.ctx = ctx
        self.request = request
        self.is_change = is_change
        self._noted: dict[tuple[bool, AclOperation, AclResource], _Noted] = {}

    def may(
        self, operation: AclOperation, resource: AclResource, name: str, *, quietly: bool = False
    ) -> bool:
        """Whether the client may. `quietly`: it did not ask for just this, so that a refusal is
        nothing to note."""
        authorizer = self.authorizer
        before = authorizer.decisions
        is_allowed = authorizer.allows(self.ctx.connection, operation, resource, name)
        if self.ctx.server.audit is not None:
            is_new = authorizer.decisions != before
            if (is_new or self.is_change) if is_allowed else not quietly:
                key = is_allowed, operation, resource
                noted = self._noted.get(key)
                if noted is None:
                    noted = self._noted[key] = _Noted()
                noted.count += 1
                if noted.count <= NAMES_MAX:
                    noted.names.append(name[:NAME_CHARS_MAX])
        return is_allowed

    def note(self) -> None:
        """Note what was decided since the last time, a line for all that was decided alike. What
        is allowed is new to this connection, or changes something."""
        audit = self.ctx.server.audit
        if audit is None or not self._noted:
            return
        decided, self._noted = self._noted, {}
        connection = self.ctx.connection
        for (is_allowed, operation, resource), noted in decided.items():
            named: dict[str, str | int | list[str]] = {"name": noted.names[0]}
            if noted.count > 1:
                named = {"names": noted.names, "count": noted.count}
            audit.note(
                "allowed" if is_allowed else "denied",
                str(connection.principal),
                connection.peer_host,
                is_act=is_allowed and self.is_change,
                api=self.api.name,
                operation=operation.name,
                resource=resource.name,
                **named,
                client=self.ctx.client_id[:NAME_CHARS_MAX],
                listener=connection.listener,
                connection=connection.id,
            )

    def may_to_cluster(self, operation: AclOperation, *, quietly: bool = False) -> bool:
        """The same of the cluster."""
        return self.may(operation, AclResource.CLUSTER, CLUSTER_NAME, quietly=quietly)

    def topic_name(self, name: str | None, topic_id: bytes) -> str | None:
        """The name of a topic that is named, or has this id; None: there is no name, and none of
        that id."""
        if topic_id == NO_ID:
            return name or None
        topic = find_topic(self.ctx, bytes(topic_id))
        return None if topic is None else topic.name

    def refuse(self, code: ErrorCode) -> Refused:
        """Refuse the whole request."""
        return Refused(self.failure(self.request, code))

    def failure(self, request: Any, code: ErrorCode) -> Any:
        """The answer that says `code` of all that is in a request, also in words."""
        version = self.ctx.api_version
        answer = self.api.failure(request, version, code)
        if not isinstance(answer, Reply) and _say(
            answer, code, f"{code.name.replace('_', ' ').capitalize()}."
        ):
            try:
                self.api.wire.encode_response(answer, version)
            except EncodeError:  # a version without a place for words
                _say(answer, code, None)
        return answer


Rule = Callable[[Check], "Finish | Refused | None"]
"""`text_of` says what it asks for."""

Need = tuple[AclOperation, AclResource, str]


@dataclass(frozen=True, slots=True)
class Needs:
    """The request as a whole needs this, of the resource that one of its fields names."""

    operation: AclOperation
    resource: AclResource = AclResource.CLUSTER
    field: str = ""
    """Of the request, the resource's name; empty: the cluster."""

    def __str__(self) -> str:
        return f"{self.operation.name} on {_text(self.resource)}"

    def __call__(self, check: Check) -> Refused | None:
        # An empty name is a name: offsets may be committed for group "".
        name = getattr(check.request, self.field) or "" if self.field else CLUSTER_NAME
        if check.may(self.operation, self.resource, name):
            return None
        return check.refuse(REFUSAL[self.resource])


NeedOf = Callable[[Check, Any], "Need | None"]
"""What an element of a request needs; None: nothing."""


@dataclass(frozen=True, slots=True)
class Each:
    """Each element of a list in the request needs something for itself."""

    text: str
    """What each needs, in words."""
    asked: str
    """The list in the request."""
    answered: str
    """The list in the response."""
    need: NeedOf
    refusals: Callable[[Check, list[Any], ErrorCode], list[Any]] | None = None
    """Elements of the response for those refused; None: as `api.failure` has them."""
    unless: AclOperation | None = None
    """What, allowed on the cluster, makes up for all of it."""

    def __str__(self) -> str:
        return self.text + (f", or {self.unless.name} on the cluster" if self.unless else "")

    def __call__(self, check: Check) -> Finish | Refused | None:
        items = getattr(check.request, self.asked)
        if not items:
            return None
        if self.unless is not None and check.may_to_cluster(self.unless, quietly=True):
            return None
        allowed: list[Any] = []
        refused: dict[ErrorCode, list[Any]] = {}
        for item in items:
            need = self.need(check, item)
            if need is None or check.may(*need):
                allowed.append(item)
            else:
                refused.setdefault(REFUSAL[need[1]], []).append(item)
        if not refused:
            return None
        parts = [self._refusals(check, code, some) for code, some in refused.items()]
        setattr(check.request, self.asked, allowed)
        if any(part is Reply.CLOSE for part in parts):
            # A request without an answer: its client learns of an error by the end of the
            # connection alone, after what it may do was done.
            return Refused(Reply.CLOSE) if not allowed else _close
        if not allowed:
            response = getattr(check.api.wire, f"{check.api.name}Response")()
            return Refused(self._join(response, parts))
        return lambda answer: answer if isinstance(answer, Reply) else self._join(answer, parts)

    def _refusals(self, check: Check, code: ErrorCode, items: list[Any]) -> Any:
        if self.refusals is not None:
            return self.refusals(check, items, code)
        failure = check.failure(replace(check.request, **{self.asked: items}), code)
        return failure if isinstance(failure, Reply) else getattr(failure, self.answered)

    def _join(self, response: Any, parts: Sequence[Any]) -> Any:
        for part in parts:
            getattr(response, self.answered).extend(part)
        return response


def _close(answer: Any) -> Reply:
    del answer
    return Reply.CLOSE


def text_of(rule: Rule) -> str:
    """What a rule asks for, in words."""
    if isinstance(rule, Needs | Each):
        return str(rule)
    text, _, _ = (rule.__doc__ or "").partition("\n\n")
    return " ".join(text.split()).rstrip(".")


def _text(resource: AclResource) -> str:
    return "the " + resource.name.lower().replace("_", " ")


def of_topics(operation: AclOperation, field: str = "name") -> NeedOf:
    """Elements that name a topic, or have its id. One of an unknown id needs nothing: its handler
    answers that there is no such topic."""

    def need(check: Check, item: Any) -> Need | None:
        name = getattr(item, field, None)
        if hasattr(item, "topic_id"):
            name = check.topic_name(name, item.topic_id)
        return None if name is None else (operation, AclResource.TOPIC, name)

    return need


def of_names(operation: AclOperation, resource: AclResource) -> NeedOf:
    """Elements that are names."""

    def need(check: Check, item: str) -> Need | None:
        del check
        return operation, resource, item

    return need


def each_topic(operation: AclOperation, answered: str = "topics", **more: Any) -> Each:
    """Each of `topics` needs an operation on that topic."""
    text = f"{operation.name} on each topic"
    return Each(text, "topics", answered, of_topics(operation), **more)


def each_group(operation: AclOperation, asked: str, answered: str) -> Each:
    """Each of a list of groups needs an operation on it."""
    text = f"{operation.name} on each group"
    return Each(text, asked, answered, of_names(operation, AclResource.GROUP))


def each_transactional_id(operation: AclOperation, asked: str, answered: str) -> Each:
    """Each of a list of transactional ids needs an operation on it."""
    text = f"{operation.name} on each transactional id"
    return Each(text, asked, answered, of_names(operation, AclResource.TRANSACTIONAL_ID))


def needs_group(operation: AclOperation) -> Needs:
    """The group of the request."""
    return Needs(operation, AclResource.GROUP, "group_id")


def needs_transactional_id(operation: AclOperation = AclOperation.WRITE) -> Needs:
    """The transactional id of the request."""
    return Needs(operation, AclResource.TRANSACTIONAL_ID, "transactional_id")
