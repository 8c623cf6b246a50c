"""Results of a handler that are not the response itself.

* `Later`: the answer is not known yet; the code that learns it calls `complete`. `Gathering` is one
  for a response whose parts become known separately.
* `Encoded`: the same bytes answer several requests.
* `Assembled`: a long answer, encoded piece by piece.
* `Unbuilt`: the answer may be large, and takes no memory before there is room for it.
* `InParts`: an answer with many elements, made some at a time.
* `Paused`: the handler has more to do, and gives the loop back until it is the connection's turn.
* `Reply.NONE` and `Reply.CLOSE`: the protocol has no answer here.

Does not depend on connections or APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from rpc.traces import TracedRequest

Arguments = ParamSpec("Arguments")

Place = tuple[Hashable, ...]
"""Position of the elements of which a part of a request or of an answer is a slice: one for each
list, outermost first. Empty for a part of whole elements."""


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


class Assembled:
    """A response whose elements are encoded already.

    `response` has the rest, and may be changed until `encode`, which returns the body, is called.
    """

    __slots__ = ("encode", "response")

    def __init__(self, response: Any, encode: Callable[[], list[Any]]) -> None:
        self.response = response
        self.encode = encode


class Unbuilt:
    """A large answer that is built when its turn comes and there is memory.

    `build` may raise, and may return an `InParts`.
    """

    __slots__ = ("build",)

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build


class InParts:
    """An answer with many elements, made in the turns of the connection.

    `responses` takes the number of elements of the next response, as it is at that time, and yields
    (place, response): a response with no elements is a pause. The place is empty for whole elements
    of the list `answered`. For some elements of a list in it (`answered` has the names of both,
    with a dot between), it identifies the element that they belong to, which the response has
    without the others. The first response has whole elements, or none. Each passes the filters of
    the request's permission rules. `ctx`: of the request. `bytes_expected`: approximate size of
    the answer, for which room is reserved before the rest of it is made.
    """

    __slots__ = ("answered", "bytes_expected", "ctx", "responses")

    def __init__(
        self,
        ctx: object,
        answered: str,
        responses: Callable[[Callable[[], int]], Iterator[tuple[Place, Any]]],
        bytes_expected: int = 0,
    ) -> None:
        self.bytes_expected = bytes_expected
        self.ctx = ctx
        self.answered = answered
        self.responses = responses


def pages(
    page: Any, name: str, items: Iterable[Any], size: Callable[[], int]
) -> Iterator[tuple[Place, Any]]:
    """Yield the responses of an `InParts` that has `items` in its list `name`.

    `page`: the first response. `items` has None for each thing that was looked at and is left out.
    """
    left = size()
    for item in items:
        if left <= 0:
            yield (), page
            page, left = replace(page, **{name: []}), size()
        left -= 1
        if item is not None:
            getattr(page, name).append(item)
    yield (), page


def pages_of_lists(
    page: Callable[[list[Any]], Any],
    name: str,
    items: Iterable[tuple[Any, Iterable[Any]]],
    size: Callable[[], int],
    place: Place = (),
) -> Iterator[tuple[Place, Any]]:
    """Yield responses of an `InParts` whose elements have lists of their own, which may be long.

    `page` returns a response with some elements. `items` has elements with an empty list `name`,
    and what belongs into it, as in `pages`. `place`: of the list of elements, if it is in another.
    """
    some: list[Any] = []
    left = size()
    for number, (item, content) in enumerate(items):
        own = (*place, number)
        is_cut = False
        for one in content:
            if left <= 0:
                if some:
                    yield place, page(some)
                    some = []
                yield own, page([item])
                item, is_cut, left = replace(item, **{name: []}), True, size()
            left -= 1
            if one is not None:
                getattr(item, name).append(one)
        left -= 1
        if is_cut:
            yield own, page([item])
        else:
            some.append(item)
        if left <= 0:
            if some:
                yield place, page(some)
                some = []
            left = size()
    if some:
        yield place, page(some)


class Paused:
    """Further work on a request, done when its turn comes.

    `step` returns the next answer, perhaps another `Later`. It may raise. `cancel`: the client is
    gone, and `step` will not be called.
    """

    __slots__ = ("cancel", "step")

    def __init__(self, step: Callable[[], Any], cancel: Callable[[], None]) -> None:
        self.step = step
        self.cancel = cancel


class Traceable(Protocol):
    """A request under way, that knows what its answer waited for."""

    def trace(
        self, into: TracedRequest, since_ns: int, until_ns: int
    ) -> list[tuple[str, int, int]]:
        """Return the stages of the wait as (name, begin, end), in order and without gaps, and set
        what else is known of the request. Called for slow requests only."""


class Later:
    """An answer that is not known yet.

    The handler returns it and keeps a reference where the answer will come from. `complete` must be
    called exactly once; it may be called before the handler returns. If the client disconnects
    first, `cancelled` becomes true, `on_cancel` runs if it is set, and `complete` does nothing.

    `answer_early`: set by handlers that can answer with partial results before their deadline.

    `holding`: the request has not taken its place in the log yet. No later request of its
    connection may start until `release` is called.
    """

    __slots__ = (
        "_notify", "about", "answer_early", "busy_ns", "cancelled", "done", "holding", "known_ns",
        "on_cancel", "response",
    )  # fmt: skip

    def __init__(self) -> None:
        self.response: Any = None
        self.known_ns = 0
        """Time of the turn in which the connection learned the answer; 0 before."""
        self.about: Traceable | None = None
        """Knows what the answer waits for; None: nothing more than the times of the wait."""
        self.busy_ns = 0
        """Time that a long poll waited for other things than records."""
        self.done = False
        self.cancelled = False
        self.holding = False
        self.answer_early: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self._notify: Callable[[Later], None] | None = None

    def complete(self, response: Any) -> None:
        """Set the answer: a response, `Encoded`, `Unbuilt`, a `Reply`, or the exception that
        prevented it. The connection sends its answers in order."""
        if self.cancelled:
            return
        assert not self.done, "the answer was given twice"
        self.response = response
        self.done = True
        self.on_cancel = self.answer_early = None
        notify = self._notify
        if notify is not None:
            self._notify = None
            notify(self)

    def follow(self, answer: Any) -> None:
        """Answer with `answer`, which may itself not be known yet."""
        if not isinstance(answer, Later):
            self.complete(answer)
        elif answer.done:
            self.complete(answer.response)
        else:
            self.on_cancel = answer.cancel
            answer.when_done(lambda other: self.complete(other.response))

    def release(self) -> None:
        """Let the connection's later requests start."""
        self.holding = False
        if self._notify is not None:
            self._notify(self)

    def run(self, step: Callable[[], None], *, without_client: bool = False) -> None:
        """Run one step towards the answer, outside the handler. An exception becomes the answer,
        and does not reach the caller. Nothing runs once there is an answer, or no client.
        `without_client`: also run if the client is gone, because the step does more than answer."""
        if self.done or (self.cancelled and not without_client):
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the connection edge: a request never ends a server
            if not self.done:
                self.complete(error)

    def step(self, of: Callable[Arguments, None]) -> Callable[Arguments, None]:
        """Return `of` as a callback for a caller that must not see its exceptions: it is `run`."""

        def called(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
            self.run(lambda: of(*arguments, **named))

        return called

    def cancel(self) -> None:
        """Cancel the request because the client is gone."""
        if self.done or self.cancelled:
            return
        self.cancelled = True
        self._notify = self.answer_early = self.about = None
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()

    def detach(self, ended: Callable[[], None]) -> None:
        """Call `ended` when the work is complete: the client is gone, but the work cannot be
        undone. Use: in place of `cancel`, only while not done."""
        assert not self.done, "ask `done` first"
        self.about = None
        self._notify = lambda later: ended() if later.done else None

    def when_done(self, notify: Callable[[Later], None]) -> None:
        """Call `notify` at `complete`. For the front end. Use: only while not done."""
        assert not self.done, "ask `done` first"
        assert self._notify is None, "a Later belongs to one connection"
        self._notify = notify


Response = TypeVar("Response")


class Gathering(Generic[Response]):
    """A response whose parts become known separately, at once or later. The handler calls `expect`
    for each part and returns `result()`; code that fills in a part calls `arrived`.
    """

    __slots__ = ("_missing", "later", "response")

    def __init__(self, response: Response) -> None:
        self.response = response
        self.later = Later()
        self._missing = 1
        """Missing parts, plus one until the handler returns: nothing is complete before."""

    def expect(self) -> None:
        """Count one more missing part."""
        self._missing += 1

    def arrived(self) -> None:
        """Count one part as filled in. With the last, the response is complete."""
        self._missing -= 1
        if not self._missing:
            self.later.complete(self.response)

    def result(self) -> Response | Later:
        """Return the handler's result: the response if it is complete, otherwise the `Later`."""
        self._missing -= 1
        return self.later if self._missing else self.response
