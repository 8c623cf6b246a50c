"""Kinds of rules that a request passes before its handler.

A rule may

* refuse the whole request: the answer has the error in every place where clients look for it;
* remove from the request what the client may not have, and add the refusals to the handler's
  answer. A list that becomes empty never reaches the handler, for which an empty list may mean all
  there is;
* remove from the answer what the client may not see.

Does not depend on the rules of each API (`table.py`), on how a decision is made (`authorizer.py`),
or on connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""Filter of the handler's answer; returns the answer that is sent."""


@cache
def _places(of: Any) -> tuple[bool, tuple[str, ...]]:
    """Return (True if a struct of an answer has an error message, lists that may have some)."""
    if not is_dataclass(of):
        return False, ()
    names = {field.name for field in fields(of)}
    lists = tuple(field.name for field in fields(of) if _has_words(field.type))
    return {"error_code", "error_message"} <= names, lists


def _has_words(annotation: Any) -> bool:
    """Return True if the content of a field has an error message."""
    of: Any
    for of in getattr(annotation, "__args__", ()):
        if is_dataclass(of):
            says, lists = _places(of)  # type: ignore[arg-type]  # classes are hashable
            return says or bool(lists)
        if _has_words(of):
            return True
    return False


def _say(answer: Any, code: ErrorCode, text: str | None) -> bool:
    """Set the message at each place where an answer has the code. Return True if there is one."""
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
    """A refused request: it does not reach its handler, and this is the answer."""

    answer: Any


class _Noted:
    """Things of one kind that a request named, with the same decision."""

    __slots__ = ("count", "names")

    def __init__(self) -> None:
        self.names: list[str] = []
        """The first `NAMES_MAX` names."""
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
        """`is_change`: the API changes something, so each use of it is noted in the audit log."""
        self.authorizer = authorizer
        self.api = api
        self.ctx = ctx
        self.request = request
        self.is_change = is_change
        self._noted: dict[tuple[bool, AclOperation, AclResource], _Noted] = {}

    def may(
        self, operation: AclOperation, resource: AclResource, name: str, *, quietly: bool = False
    ) -> bool:
        """Return True if the client may do the operation on the resource.

        `quietly`: the client did not request just this, so a denial is not noted.
        """
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
        """Write the decisions since the last call to the audit log, a line for all of one kind.

        Allowed operations are included if they are new to this connection or change something.
        """
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
        """As `may`, for the cluster."""
        return self.may(operation, AclResource.CLUSTER, CLUSTER_NAME, quietly=quietly)

    def topic_name(self, name: str | None, topic_id: bytes) -> str | None:
        """Return the name of a topic that is given by name or id; None if there is neither.

        An unknown id remains unknown until the request is answered.
        """
        if topic_id == NO_ID:
            return name or None
        ctx, topic_id = self.ctx, bytes(topic_id)
        topic = find_topic(ctx, topic_id)
        if topic is not None:
            return topic.name
        if ctx.unknown_ids is None:
            ctx.unknown_ids = set()
        ctx.unknown_ids.add(topic_id)
        return None

    def refuse(self, code: ErrorCode) -> Refused:
        """Refuse the whole request."""
        return Refused(self.failure(self.request, code))

    def failure(self, request: Any, code: ErrorCode) -> Any:
        """Return an answer with `code` for everything in a request, and if possible a message."""
        version = self.ctx.api_version
        answer = self.api.failure(request, version, code)
        if not isinstance(answer, Reply) and _say(
            answer, code, f"{code.name.replace('_', ' ').capitalize()}."
        ):
            try:
                self.api.wire.encode_response(answer, version)
            except EncodeError:  # a version without error messages
                _say(answer, code, None)
        return answer


Rule = Callable[[Check], "Finish | Refused | None"]
"""A rule. `text_of` describes what it requires."""

Need = tuple[AclOperation, AclResource, str]


@dataclass(frozen=True, slots=True)
class Needs:
    """The request as a whole needs an operation on the resource that one of its fields names."""

    operation: AclOperation
    resource: AclResource = AclResource.CLUSTER
    field: str = ""
    """Field of the request with the resource's name; empty for the cluster."""

    def __str__(self) -> str:
        return f"{self.operation.name} on {_text(self.resource)}"

    def __call__(self, check: Check) -> Refused | None:
        # An empty name is a name, too: offsets may be committed for group "".
        name = getattr(check.request, self.field) or "" if self.field else CLUSTER_NAME
        if check.may(self.operation, self.resource, name):
            return None
        return check.refuse(REFUSAL[self.resource])


NeedOf = Callable[[Check, Any], "Need | None"]
"""Return what an element of a request needs; None if nothing."""


@dataclass(frozen=True, slots=True)
class Each:
    """Each element of a list in the request needs a permission of its own."""

    text: str
    """Description of what each element needs."""
    asked: str
    """Name of the list in the request."""
    answered: str
    """Name of the list in the response."""
    need: NeedOf
    refusals: Callable[[Check, list[Any], ErrorCode], list[Any]] | None = None
    """Make elements of the response for refused ones; None to use those of `api.failure`."""
    unless: AclOperation | None = None
    """Operation that, if allowed on the cluster, replaces all other permissions."""

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
            # A request without an answer: its client learns of an error only by the end of the
            # connection, after the allowed part was done.
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

    def _join(self, response: Any, parts: list[Any]) -> Any:
        """Add the refusals to an answer, or to the first response of an answer in parts."""
        for part in parts:
            getattr(response, self.answered).extend(part)
        parts.clear()
        return response


def _close(answer: Any) -> Reply:
    del answer
    return Reply.CLOSE


def text_of(rule: Rule) -> str:
    """Return the description of what a rule requires."""
    if isinstance(rule, Needs | Each):
        return str(rule)
    text, _, _ = (rule.__doc__ or "").partition("\n\n")
    return " ".join(text.split()).rstrip(".")


def _text(resource: AclResource) -> str:
    return "the " + resource.name.lower().replace("_", " ")


def of_topics(operation: AclOperation, field: str = "name") -> NeedOf:
    """Return a `NeedOf` for elements that name a topic or have its id.

    An unknown id needs nothing: the handler answers that there is no such topic.
    """

    def need(check: Check, item: Any) -> Need | None:
        name = getattr(item, field, None)
        if hasattr(item, "topic_id"):
            name = check.topic_name(name, item.topic_id)
        return None if name is None else (operation, AclResource.TOPIC, name)

    return need


def of_names(operation: AclOperation, resource: AclResource) -> NeedOf:
    """Return a `NeedOf` for elements that are names."""

    def need(check: Check, item: str) -> Need | None:
        del check
        return operation, resource, item

    return need


def each_topic(operation: AclOperation, answered: str = "topics", **more: Any) -> Each:
    """Return a rule: each of `topics` needs an operation on that topic."""
    text = f"{operation.name} on each topic"
    return Each(text, "topics", answered, of_topics(operation), **more)


def each_group(operation: AclOperation, asked: str, answered: str) -> Each:
    """Return a rule: each group of a list needs an operation on it."""
    text = f"{operation.name} on each group"
    return Each(text, asked, answered, of_names(operation, AclResource.GROUP))


def each_transactional_id(operation: AclOperation, asked: str, answered: str) -> Each:
    """Return a rule: each transactional id of a list needs an operation on it."""
    text = f"{operation.name} on each transactional id"
    return Each(text, asked, answered, of_names(operation, AclResource.TRANSACTIONAL_ID))


def needs_group(operation: AclOperation) -> Needs:
    """Return a rule: the group of the request needs an operation."""
    return Needs(operation, AclResource.GROUP, "group_id")


def needs_transactional_id(operation: AclOperation = AclOperation.WRITE) -> Needs:
    """Return a rule: the transactional id of the request needs an operation."""
    return Needs(operation, AclResource.TRANSACTIONAL_ID, "transactional_id")
