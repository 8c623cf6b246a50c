"""Splitting of a request with many elements into parts, and the joining of their answers.

`arranged` and `parts_of` split: each part is a request of its own, with at most `PART_ELEMENTS` of
the elements. An element that has more in a list of its own is split as well; its slices are parts
that contain nothing else. Elements of different APIs differ in their cost a hundredfold, so a part
has as many as took `PART_NS` before (`PartSize`).

`refusals_of` splits a request of an API that is done at once or not at all, in order to refuse it.

`JoinedAnswer` joins. The answer of a part is encoded at once and kept as bytes: the elements of an
answer would be many times as large, and encoding 200,000 of them takes a tenth of a second. To find
the bytes of a list in an encoded answer, the answer is encoded again with that list empty. The two
first differ at the list's length, because the length is never that of the empty list.

    with elements:  head | length | elements | tail
    without:        head | 0      |            tail

So the codecs need no support for it. A list within a list is found in the same way.

Does not depend on connections or handlers. `vdl/kafka/parts.py` defines how each API is split.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from vdl.errors import ErrorCode
from vdl.kafka.answer import InParts, Place, Reply
from vdl.kafka.limits.memory import partitions_bytes
from vdl.kafka.parts import (
    FIRST_ELEMENTS,
    PART_ELEMENTS,
    PART_NS,
    PARTS,
    REPLICAS_MAX,
    REPLICAS_TIMES,
    WHOLE_ELEMENTS,
    Page,
    Parts,
    PartSize,
    Whole,
)
from vdl.kafka.wire.runtime import Buffer, WireError, write_uvarint

if TYPE_CHECKING:
    from vdl.kafka.api import Api, Handler
    from vdl.kafka.context import RequestContext

_LENGTH = Struct(">i").pack

NARROW_BYTES = 1_000
"""A request of at most this size has hardly more elements than are done at once: most elements have
four bytes."""


def row_of(
    rows: Sequence[Parts | Whole] | Page | Whole | None, request: Any
) -> Parts | Whole | None:
    """Return the row by which a request is split or refused; None if it has no such list."""
    if isinstance(rows, Whole):
        return rows
    found: Sequence[Parts | Whole] = rows if isinstance(rows, tuple) else ()
    for row in found:
        lists = row.lists if isinstance(row, Whole) else (row,)
        if any(getattr(request, one.asked.partition(".")[0]) for one in lists):
            return row
    return None


def has_more(rows: Iterable[Parts], request: Any, most: int) -> bool:
    """Return True if the lists of a request together have more than `most` elements."""
    count = 0
    for row in rows:
        first, *inner = row.asked.split(".")
        items = getattr(request, first) or ()
        count += _weight(items, inner, most - count) + _held(row, items, most - count)
        if count > most:
            return True
    return False


def _held(row: Parts, items: Sequence[Any], enough: int) -> int:
    """Return the number of elements in the lists of `items` that are not split; as `_weight`."""
    count = 0
    for path in row.held:
        names = path.split(".")
        for item in items:
            if count > enough:
                return count
            count += _weight((item,), names, enough - count + 1) - 1
    return count


def _weight(items: Sequence[Any], inner: Sequence[str], enough: int) -> int:
    """Return the number of elements of a list and of the lists in it.

    If there are more than `enough`, the result may be less, but is also more than `enough`.
    """
    count = len(items)
    if inner:
        name, *deeper = inner
        for item in items:
            if count > enough:
                break
            some = getattr(item, name)
            if some:
                count += _weight(some, deeper, enough - count)
    return count


def arranged(row: Parts, items: Sequence[Any]) -> Iterable[list[Any]]:
    """Return the elements in groups that should stay in one part if they are not too large.

    Elements of the same subject form one group, in the place of the first of them. There may be as
    many elements as a message holds, so no list is made for each of them without need.
    """
    if row.named is None:
        return ([item] for item in items)
    groups: OrderedDict[Hashable, list[Any]] = OrderedDict()
    for item in items:
        name = row.named(item)
        group = groups.get(name)
        if group is None:
            groups[name] = [item]  # smaller than a list that grew
        elif not row.kept or len(group) < row.kept:
            group.append(item)
    return _taken(groups)


def _taken(groups: OrderedDict[Hashable, list[Any]]) -> Iterator[list[Any]]:
    """Yield the groups, and keep none of them: to free 200,000 at the end takes 10 ms of a turn."""
    while groups:
        _, group = groups.popitem(last=False)
        yield group


def parts_of(
    row: Parts, request: Any, groups: Iterable[Sequence[Any]], size: PartSize
) -> Iterator[tuple[Place, Any]]:
    """Yield the parts of a request whose elements are `arranged`, each with its place.

    `size` is read when a part begins.
    """
    first, *inner = row.asked.split(".")
    for place, items in _slices(row, groups, inner, size):
        yield place, replace(request, **{first: items})


def _slices(
    row: Parts, groups: Iterable[Sequence[Any]], inner: Sequence[str], size: PartSize
) -> Iterator[tuple[Place, list[Any]]]:
    part: list[Any] = []
    left = size.elements
    position = 0
    for group in _divided(row, groups, inner):
        weight = _weight(group, inner, PART_ELEMENTS) + _held(row, group, PART_ELEMENTS)
        if weight > left and part:
            yield (), part
            part, left = [], size.elements
        # Elements that may be compared with each other stay together up to the largest part. So do
        # those of one large element, of which a client expects one state.
        is_one = row.named is not None or row.is_large
        if weight <= left or not inner or (is_one and weight <= PART_ELEMENTS):
            part += group
            left -= weight
        else:
            (item,) = group
            name, *deeper = inner
            ones = [[one] for one in getattr(item, name)]
            for place, some in _slices(row, ones, deeper, size):
                yield (position, *place), [replace(item, **{name: some})]
        position += len(group)
    if part:
        yield (), part


def _divided(
    row: Parts, groups: Iterable[Sequence[Any]], inner: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """Yield the groups; split those that are too large for a part into single elements."""
    for group in groups:
        weight = _weight(group, inner, PART_ELEMENTS) + _held(row, group, PART_ELEMENTS)
        if len(group) > 1 and weight > PART_ELEMENTS:
            for item in group:
                yield [item]
        else:
            yield group


def refusals_of(
    row: Whole, request: Any, size: PartSize
) -> tuple[Parts, Iterator[tuple[Place, Any]]]:
    """Split a request that is refused: return the row by which answers are joined, and the parts.

    A request that is answered by one error has one part, without its elements.
    """
    firsts = [one.asked.partition(".")[0] for one in row.lists]
    empty = replace(request, **{first: [] for first in firsts if getattr(request, first)})

    def parts() -> Iterator[tuple[Place, Any]]:
        for one, first in zip(row.lists, firsts, strict=True):
            if one.answered and (items := getattr(request, first)):
                other = replace(empty, **{first: items})
                for place, part in parts_of(one, other, arranged(one, items), size):
                    yield _answered(one, place), part

    found = parts()
    head = next(found, ((), empty))
    return row.lists[0], chain([head], found)


def _answered(row: Parts, place: Place) -> Place:
    """Return the place of a part in the answer, which may have fewer nested lists than the request.

    Lists of the request that share one list of the answer have the same place.
    """
    more = row.asked.count(".") - row.answered.count(".")
    if more <= 0:
        return place
    return (place[: more + 1], *place[more + 1 :]) if len(place) > more else ()


class Decoded(NamedTuple):
    """A decoded request.

    `wide` is its state if it is done in parts; None if it is done at once. `partitions_bytes` is
    the memory that a Produce takes for its partitions.
    """

    message: Any
    wide: WideRequest | None
    partitions_bytes: int = 0


def decoded(
    api: Api, version: int, body: memoryview, replicas_max: int = REPLICAS_MAX
) -> Decoded | WireError:
    """Decode a request, and arrange its elements if they are many. May run in any thread.

    `replicas_max`: maximum number of replicas that this server may have.
    """
    try:
        message = api.wire.decode_request(body, version)
    except WireError as error:
        return error
    found = in_parts(api, version, message, replicas_max)
    return found._replace(partitions_bytes=partitions_bytes(message)) if api.pipelined else found


def in_parts(api: Api, version: int, message: Any, replicas_max: int = REPLICAS_MAX) -> Decoded:
    """Return a request with its parts, if it must be split or refused. May run in any thread."""
    rows = PARTS.get(api.key)
    if isinstance(rows, Page):
        rows.arrange(message)
    row = row_of(rows, message)
    if isinstance(row, Whole):
        if not (
            has_more(row.lists, message, row.most(replicas_max))
            or has_more(row.numbers, message, REPLICAS_TIMES * replicas_max)
        ):
            return Decoded(message, None)
        size = PartSize(FIRST_ELEMENTS)
        by, parts = refusals_of(row, message, size)
        wide = WideRequest(api, by, version, message, parts, size, is_refused=True)
        return Decoded(message, wide)
    if row is None or not (
        has_more((row,), message, PART_ELEMENTS) or (row.is_large and _has_several(row, message))
    ):
        return Decoded(message, None)
    # A Produce waits for a commit after each part, and each of its elements has records.
    first_elements = 1 if row.is_large else FIRST_ELEMENTS
    size = PartSize(PART_ELEMENTS if api.pipelined else first_elements)
    first = row.asked.partition(".")[0]
    items = getattr(message, first)
    bare = [_bare(row, item) for item in items] if row.held else items
    if any(one is not item for one, item in zip(bare, items, strict=True)):
        _, parts = refusals_of(Whole("", (row,)), replace(message, **{first: bare}), size)
        wide = WideRequest(api, row, version, message, parts, size, is_refused=True)
    else:
        parts = parts_of(row, message, arranged(row, items), size)
        wide = WideRequest(api, row, version, message, parts, size)
    return Decoded(message, wide)


def wide_answer(api: Api, version: int, message: Any, answer: InParts) -> WideRequest:
    """Return the state of a request whose answer is made in parts. Use: `begin_pages`."""
    size = PartSize(FIRST_ELEMENTS)
    rows = PARTS.get(api.key)
    found = rows if isinstance(rows, tuple) else ()
    joins = (row.join for row in found if isinstance(row, Parts) and row.join is not None)
    row = Parts("", answer.answered, join=next(joins, None))
    wide = WideRequest(api, row, version, message, iter(()), size)
    wide.context = answer.ctx
    return wide


def _has_several(row: Parts, message: Any) -> bool:
    return len(getattr(message, row.asked.partition(".")[0])) > 1


def _bare(row: Parts, item: Any) -> Any:
    """Return an element, without its lists if they are too long to be done at once.

    A refusal may name the elements of those lists.
    """
    if _held(row, (item,), WHOLE_ELEMENTS) <= WHOLE_ELEMENTS:
        return item
    return replace(item, **{path.partition(".")[0]: [] for path in row.held})


class WideRequest:
    """State of a request that is done in parts."""

    __slots__ = (
        "_api",
        "_bytes_expected",
        "_is_refused",
        "_joined",
        "_next",
        "_next_page",
        "_page_parts",
        "_pages",
        "_parts",
        "_place",
        "_reply",
        "_row",
        "_size",
        "_used_ns",
        "context",
        "handler",
        "message",
    )

    def __init__(
        self,
        api: Api,
        row: Parts,
        version: int,
        message: Any,
        parts: Iterator[tuple[Place, Any]],
        size: PartSize,
        *,
        is_refused: bool = False,
    ) -> None:
        """`parts` follows `size`. `is_refused`: the request has too many elements for an API that
        cannot split it."""
        self._api = api
        self._row = row
        self._is_refused = is_refused
        self.message = message
        """The whole request; without its elements once it is judged and the parts own them."""
        self._parts = parts
        self._size = size
        self._used_ns = 0
        """Time of the loop that the present part has taken."""
        self._next: tuple[Place, Any] | None = next(self._parts, None)
        self._pages: Iterator[tuple[Place, Any]] = iter(())
        """The rest of the answer of the present part, if it is made in parts."""
        self._next_page: tuple[Place, Any] | None = None
        self._bytes_expected = 0
        """Approximate size of the answer when that is complete."""
        self._page_parts = 0
        """Number of the parts whose answers were made in parts."""
        self._place: Place = ()
        self._joined = JoinedAnswer(row, api.wire, version)
        self._reply: Reply | None = None
        self.context: Any = None
        """Context of all parts."""
        self.handler: Handler = api.handler
        """Handler of the parts."""

    def judge(self, ctx: RequestContext) -> None:
        """Refuse the request before its first part if it is too large as a whole.

        The parts of a refused request still pass through the permission checks.
        """
        self.context = ctx
        refusal = self._row.refusal
        code = ErrorCode.NONE
        if self._is_refused:
            code = ErrorCode.INVALID_REQUEST
        elif refusal is not None:
            code = refusal(ctx, self.message)
        if code is not ErrorCode.NONE:
            failure = self._api.failure  # without `self`: only a full collection would free a cycle
            self.handler = lambda ctx, part: failure(part, ctx.api_version, code)
        if self._row.named is not None and not self._is_refused:
            # The parts have the elements. Kept here as well, all would be freed in one turn.
            getattr(self.message, self._row.asked.partition(".")[0]).clear()

    def next_part(self) -> Any:
        """Return the next part; there must be one."""
        assert self._next is not None, "the request is complete"
        self._place, part = self._next
        self._next = next(self._parts, None)
        return part

    @property
    def is_answer(self) -> bool:
        """True if only the answer is made in parts."""
        return not self._row.asked

    def begin_pages(self, answer: InParts) -> None:
        """Go on with the answer of the present part, or of the request, which is made in parts."""
        assert not self._place, "a slice has a bounded answer"
        assert answer.answered == self._row.answered, (answer.answered, self._row)
        self._page_parts += 1
        self._bytes_expected = self._joined.bytes + answer.bytes_expected
        size = self._size  # not `self`, or only a full collection would free the two
        self._pages = answer.responses(lambda: size.elements)
        self._next_page = next(self._pages, None)

    @property
    def has_page(self) -> bool:
        """True if the answer of the present part has more."""
        return self._next_page is not None

    def next_page(self) -> Any:
        """Return more of the answer of the present part; there must be some."""
        assert self._next_page is not None, "the answer is complete"
        place, page = self._next_page
        self._place = ((self._page_parts, place[0]), *place[1:]) if place else ()
        self._next_page = next(self._pages, None)
        return page

    def end_pages(self) -> None:
        """Make no more of the answer of the present part, because that failed."""
        self._pages, self._next_page, self._place = iter(()), None, ()

    def used(self, time_ns: int) -> None:
        """Count time of the loop that the present part has taken."""
        self._used_ns += time_ns

    def take(self, answer: Any) -> None:
        """Join the answer of the last part, if it has one. Raises EncodeError."""
        if isinstance(answer, Reply):
            if self._reply is not Reply.CLOSE:
                self._reply = answer
        else:
            is_for_all = self._is_refused and not self._joined.has_elements(answer)
            self._joined.add(self._place, answer)
            if is_for_all:
                self._next = None  # this error is the whole answer
        if self._next_page is None:
            self._place = ()

    def part_over(self, fits_ns: int = PART_NS) -> None:
        """Adapt the size of the next parts to the time of this one. They may take `fits_ns`."""
        self._size.took(self._used_ns, fits_ns)
        self._used_ns = 0

    @property
    def is_done(self) -> bool:
        """True if there is no further part."""
        return self._next is None and self._next_page is None

    @property
    def bytes(self) -> int:
        """Approximate size of the answer so far, or of what is being made of it."""
        expected = 0 if self._next_page is None else self._bytes_expected
        return max(self._joined.bytes, expected)

    @property
    def answer(self) -> Any:
        """The answer without its elements, or a Reply if a part had no other answer."""
        return self._reply or self._joined.answer

    def encoded(self) -> list[Buffer]:
        """Return the encoded answer. Raises EncodeError."""
        return self._joined.encoded()


class _Open:
    """A list of the answer that is not complete."""

    __slots__ = ("buffers", "count", "sample", "shell")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        """Encoded elements of the list."""
        self.count = 0
        self.shell: Any = None
        """An answer in which the list is empty, with everything around it."""
        self.sample: Any = None
        """One element. Encoding the shell with it shows the list's position."""


class JoinedAnswer:
    """The growing answer of one request."""

    __slots__ = (
        "_encode",
        "_is_flexible",
        "_names",
        "_open",
        "_place",
        "_row",
        "_version",
        "bytes",
    )

    def __init__(self, row: Parts, wire: Any, version: int) -> None:
        self._row = row
        self._names = row.answered.split(".") if row.answered else []
        self._encode: Callable[[Any, int], list[Buffer]] = wire.encode_response
        self._is_flexible = version >= wire.FLEXIBLE_FROM
        self._version = version
        self._open = [_Open()]
        """The list of the response, and the lists within it of which parts are slices."""
        self._place: Place = ()
        self.bytes = 0
        """Approximate size of the answer so far."""

    @property
    def answer(self) -> Any:
        """The answer without its elements. May be changed before it is encoded."""
        return self._open[0].shell

    def has_elements(self, answer: Any) -> bool:
        """Return True if an answer has an entry for any element."""
        return bool(self._names and getattr(answer, self._names[0]))

    def add(self, place: Place, answer: Any) -> None:
        """Add the answer of a part. Raises EncodeError; then nothing was added."""
        full = self._bytes(answer)
        depth = min(len(place), _depth_of(answer, self._names))
        place = place[:depth]  # less deep for an error of the element around the list
        self._close_to(place)
        while len(self._open) <= depth:
            self._open.append(_Open())
        self._place = place
        self._append(depth, answer, full)
        self.bytes += len(full)

    def encoded(self) -> list[Buffer]:
        """Return the whole answer, encoded. Raises EncodeError."""
        self._close_to(())
        return self._filled(0)

    def _append(self, depth: int, answer: Any, full: bytes) -> None:
        """Add the elements of an answer to the list at a depth. `full`: the answer, encoded."""
        target = self._open[depth]
        if not self._names:
            target.shell = answer
            return
        holder, name = _holder(answer, self._names, depth), self._names[depth]
        items = getattr(holder, name)
        setattr(holder, name, [])
        code = getattr(holder, "error_code", 0)
        if depth and target.shell is not None:
            before = getattr(_holder(target.shell, self._names, depth), "error_code", 0)
            if code != before:
                # An error of one slice is that of the whole element, which then has nothing else.
                target.buffers, target.count = [], 0
                target.shell = answer if code else target.shell
                return
        if items:
            count = len(items)
            head, tail = self._ends(full, self._bytes(answer), count)
            target.buffers.append(full[head + len(self._length(count)) : len(full) - tail])
            target.count += count
            target.sample = items[0]
        if target.shell is None:
            target.shell = answer
            return
        if code:
            _holder(target.shell, self._names, depth).error_code = code
        if not depth and self._row.join is not None:
            self._row.join(target.shell, answer)

    def _filled(self, depth: int) -> list[Buffer]:
        """Return the shell of the list at a depth, encoded with all elements."""
        whole = self._open[depth]
        empty = self._bytes(whole.shell)
        if not whole.count:
            return [empty]
        holder, name = _holder(whole.shell, self._names, depth), self._names[depth]
        setattr(holder, name, [whole.sample])
        head, tail = self._ends(self._bytes(whole.shell), empty, 1)
        setattr(holder, name, [])
        end = len(empty) - tail
        return [empty[:head], self._length(whole.count), *whole.buffers, empty[end:]]

    def _close_to(self, place: Place) -> None:
        """Complete the open lists that do not contain a part at `place`."""
        shared = 0
        while (
            shared < len(place) and self._place[shared : shared + 1] == place[shared : shared + 1]
        ):
            shared += 1
        while len(self._open) > 1 + shared:
            element = b"".join(self._filled(len(self._open) - 1))
            inner = self._open.pop()
            # Add it to the list around it like the answer of a part.
            self._append(len(self._open) - 1, inner.shell, element)
        self._place = self._place[:shared]

    def _bytes(self, answer: Any) -> bytes:
        return b"".join(self._encode(answer, self._version))

    def _length(self, count: int) -> bytes:
        return write_uvarint(count + 1) if self._is_flexible else _LENGTH(count)

    def _ends(self, full: bytes, empty: bytes, count: int) -> tuple[int, int]:
        """Return (bytes before the list's length, bytes after its elements)."""
        length, none = self._length(count), self._length(0)
        head = _first_difference(full, empty) - _first_difference(length, none)
        assert full[head : head + len(length)] == length, (self._row, self._version)
        return head, len(empty) - head - len(none)


def _holder(answer: Any, names: Sequence[str], depth: int) -> Any:
    """Return the object that has the list at a depth. The lists around it have one element."""
    for name in names[:depth]:
        answer = getattr(answer, name)[0]
    return answer


def _depth_of(answer: Any, names: Sequence[str]) -> int:
    """Return the number of nested lists, from the outermost, that have exactly one element."""
    depth = 0
    while depth < len(names) - 1 and len(items := getattr(answer, names[depth]) or []) == 1:
        answer = items[0]
        depth += 1
    return depth


def _first_difference(one: bytes, other: bytes) -> int:
    """Return the position of the first byte that differs; there must be one."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
