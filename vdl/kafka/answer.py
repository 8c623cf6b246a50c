"""What a handler returns when it is not the response itself.

* `Later`: the answer is not known yet; whoever learns it calls `complete`. `Gathering` is one for
  a response with parts, each of which becomes known by itself.
* `Encoded`: the same bytes answer several requests.
* `Unbuilt`: the answer may be large, and takes no memory before there is room for it.
* `Reply.NONE` and `Reply.CLOSE`: the protocol has no answer here.

Must not know: connections, APIs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")


class Reply(Enum):
    """Answers that send nothing."""

    NONE = "none"
    """The request has no answer: Produce with acks=0."""
    CLOSE = "close"
    """The request has no answer that could carry its error: close the connection."""


class Encoded:
    """A response body that is encoded already, without its header."""

    __slots__ = ("buffers",)

    def __init__(self, buffers: list[Any]) -> None:
        self.buffers = buffers


class Unbuilt:
    """A large answer that is built when its turn comes and there is memory. `build` may raise."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build


class Later:
    """An answer that is not known yet.

    The handler returns it and keeps a reference where the answer will come from. `complete` must be
    called exactly once; it may be called before the handler returns. If the client disconnects
    first, `cancelled` becomes true, `on_cancel` runs if it is set, and `complete` does nothing.

    `answer_early`: set by handlers that can answer with what they have before their deadline.

    `holding`: the request has not taken its place in the log yet. No request of its connection may
    start behind it until `release` is called.
    """

    __slots__ = ("_notify", "answer_early", "cancelled", "done", "holding", "on_cancel", "response")

    def __init__(self) -> None:
        self.response: Any = None
        self.done = False
        self.cancelled = False
        self.holding = False
        self.answer_early: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self._notify: Callable[[Later], None] | None = None

    def complete(self, response: Any) -> None:
        """Set the answer: a response, `Encoded`, `Unbuilt`, a `Reply`, or the exception that
        prevented it. The connection sends it in its order."""
        if self.cancelled:
            return
        assert not self.done, "an answer was given twice"
        self.response = response
        self.done = True
        self.on_cancel = self.answer_early = None
        notify = self._notify
        if notify is not None:
            self._notify = None
            notify(self)

    def follow(self, answer: Any) -> None:
        """Answer as `answer`, which may be another one that is not known yet."""
        if not isinstance(answer, Later):
            self.complete(answer)
        elif answer.done:
            self.complete(answer.response)
        else:
            self.on_cancel = answer.cancel
            answer.when_done(lambda other: self.complete(other.response))

    def release(self) -> None:
        """The requests behind it may start."""
        self.holding = False
        if self._notify is not None:
            self._notify(self)

    def run(self, step: Callable[[], None], *, without_client: bool = False) -> None:
        """Run one step towards the answer, outside the handler. An exception becomes the answer,
        and does not reach the caller. Nothing runs once there is an answer, or no client.
        `without_client`: also when the client is gone, because the step does more than answer."""
        if self.done or (self.cancelled and not without_client):
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the connection edge: a request never ends a server
            if not self.done:
                self.complete(error)

    def step(self, of: Callable[Arguments, None]) -> Callable[Arguments, None]:
        """`of` as the callback of somebody who must not see its exceptions: called, it is `run`."""

        def called(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
            self.run(lambda: of(*arguments, **named))

        return called

    def cancel(self) -> None:
        """The client is gone."""
        if self.done or self.cancelled:
            return
        self.cancelled = True
        self._notify = self.answer_early = None
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()

    def detach(self, ended: Callable[[], None]) -> None:
        """The client is gone, but the work cannot be undone: call `ended` when it is complete. In
        place of `cancel`, only while not done."""
        assert not self.done, "ask `done` first"
        self._notify = lambda later: ended() if later.done else None

    def when_done(self, notify: Callable[[Later], None]) -> None:
        """For the front end: call `notify` at `complete`. Only while not done."""
        assert not self.done, "ask `done` first"
        assert self._notify is None, "one connection waits for one answer"
        self._notify = notify


Response = TypeVar("Response")


class Gathering(Generic[Response]):
    """A response with parts that become known one by one, at once or later. A handler says of each
    that it is to come (`expect`), and returns `result()`; whoever fills in a part calls `arrived`.
    """

    __slots__ = ("_missing", "later", "response")

    def __init__(self, response: Response) -> None:
        self.response = response
        self.later = Later()
        self._missing = 1
        """Parts to come, and the handler until it returns: nothing is complete before."""

    def expect(self) -> None:
        """One more part is to come."""
        self._missing += 1

    def arrived(self) -> None:
        """One part is filled in. With the last, the response is complete."""
        self._missing -= 1
        if not self._missing:
            self.later.complete(self.response)

    def result(self) -> Response | Later:
        """What the handler returns: the response, if all of it is known."""
        self._missing -= 1
        return self.later if self._missing else self.response
