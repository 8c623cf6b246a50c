"""Assignors of KIP-848: they distribute partitions among the members of a group.

`uniform` gives all members the same number of partitions, prefers members in the partition's rack,
and moves as few partitions as that allows. `range` gives members that subscribe to the same topics
the partitions of the same numbers, so that topics can be joined.

An assignor is a pure function: the same members and topics have the same result.

Does not depend on groups or epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby

from vdl.state.modern.partitions import Partitions, Place, places_of

Targets = dict[str, set[Place]]
"""Member id → partitions it is to read."""

_ROUNDS_MAX = 16
"""Most passes over the topics to even out members that subscribe to different ones."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member, as an assignor sees it."""

    member_id: str
    instance_id: str | None
    rack: str | None
    topics: frozenset[bytes]
    """Ids of its subscribed topics; all exist."""
    present: Partitions
    """Its present target."""


@dataclass(frozen=True, slots=True)
class AssignableTopic:
    """A topic that at least one member subscribes to."""

    topic_id: bytes
    partitions: int
    racks: Sequence[frozenset[str]] = ()
    """Racks of each partition's replicas; empty: racks do not matter."""


Assignor = Callable[[Sequence[Candidate], Mapping[bytes, AssignableTopic]], Targets]


def in_order(members: Iterable[Candidate]) -> list[Candidate]:
    """Return static members by their instance, then the others by their ids: an instance that comes
    back gets its old place."""
    return sorted(
        members, key=lambda one: (one.instance_id is None, one.instance_id, one.member_id)
    )


# --- range ---------------------------------------------------------------------------------------


def assign_ranges(members: Sequence[Candidate], topics: Mapping[bytes, AssignableTopic]) -> Targets:
    """Give each subscriber of a topic a run of its partitions."""
    targets: Targets = {member.member_id: set() for member in members}
    ordered = in_order(members)
    for topic_id in sorted(topics):
        subscribers = [member for member in ordered if topic_id in member.topics]
        if not subscribers:
            continue
        share, extra = divmod(topics[topic_id].partitions, len(subscribers))
        start = 0
        for number, member in enumerate(subscribers):
            end = start + share + (number < extra)
            targets[member.member_id].update((topic_id, index) for index in range(start, end))
            start = end
    return targets


# --- uniform -------------------------------------------------------------------------------------


def assign_uniformly(
    members: Sequence[Candidate], topics: Mapping[bytes, AssignableTopic]
) -> Targets:
    """Give all members the same number of partitions, as far as subscriptions allow."""
    if not members:
        return {}
    ordered = in_order(members)
    targets, free = _kept(ordered, topics)
    if all(member.topics == ordered[0].topics for member in ordered):
        _share_alike(ordered, topics, targets, free)
    else:
        _share_by_load(ordered, topics, targets, free)
        _even_out(ordered, topics, targets)
    return targets


def _kept(
    members: Sequence[Candidate], topics: Mapping[bytes, AssignableTopic]
) -> tuple[Targets, list[Place]]:
    """Return the partitions that members may keep, and those without a member."""
    targets: Targets = {member.member_id: set() for member in members}
    taken: set[Place] = set()
    for member in members:
        for place in places_of(member.present):
            topic = topics.get(place[0])
            if topic is None or place[0] not in member.topics or place[1] >= topic.partitions:
                continue
            if place not in taken:
                taken.add(place)
                targets[member.member_id].add(place)
    wanted = set().union(*(member.topics for member in members))
    free = [
        (topic_id, index)
        for topic_id in sorted(wanted)
        for index in range(topics[topic_id].partitions)
        if (topic_id, index) not in taken
    ]
    return targets, free


def _share_alike(
    members: Sequence[Candidate],
    topics: Mapping[bytes, AssignableTopic],
    targets: Targets,
    free: list[Place],
) -> None:
    """Share out among members with the same subscription: each gets the quotient, and those that
    have most get one more."""
    total = len(free) + sum(map(len, targets.values()))
    share, extra = divmod(total, len(members))
    by_size = sorted(members, key=lambda one: -len(targets[one.member_id]))
    room: dict[str, int] = {}
    for number, member in enumerate(by_size):
        quota = share + (number < extra)
        has = targets[member.member_id]
        if len(has) > quota:
            for place in _least_fitting(member, has, topics)[: len(has) - quota]:
                has.remove(place)
                free.append(place)
        room[member.member_id] = quota - len(has)
    free.sort()
    rest = _share_by_rack(members, topics, targets, free, room)
    places = iter(rest)
    for member in members:
        for _ in range(room[member.member_id]):
            targets[member.member_id].add(next(places))
    assert next(places, None) is None, "quotas add up to all partitions"


def _least_fitting(
    member: Candidate, has: set[Place], topics: Mapping[bytes, AssignableTopic]
) -> list[Place]:
    """Return a member's partitions, those to take away first: not in its rack, then the highest
    numbers."""
    return sorted(has, key=lambda place: (_is_near(member, place, topics), -place[1], place[0]))


def _is_near(member: Candidate, place: Place, topics: Mapping[bytes, AssignableTopic]) -> bool:
    """Return True if a replica is in the member's rack."""
    racks = topics[place[0]].racks
    return member.rack is not None and bool(racks) and member.rack in racks[place[1]]


def _share_by_rack(
    members: Sequence[Candidate],
    topics: Mapping[bytes, AssignableTopic],
    targets: Targets,
    free: list[Place],
    room: dict[str, int],
) -> list[Place]:
    """Give partitions to members in one of their racks while these have room. Return the rest."""
    by_rack: dict[str, list[tuple[int, int]]] = {}
    for number, member in enumerate(members):
        if member.rack is not None:
            by_rack.setdefault(member.rack, []).append((-room[member.member_id], number))
    if not by_rack:
        return free
    for heap in by_rack.values():
        heapify(heap)
    left = []
    for place in free:
        racks = topics[place[0]].racks
        # In each rack, the member with most room; of equals the first one.
        near = (
            [by_rack[rack] for rack in sorted(racks[place[1]]) if rack in by_rack] if racks else []
        )
        heap = min(near, key=lambda one: one[0][0], default=[(0, 0)])
        minus_room, number = heap[0]
        if not minus_room:
            left.append(place)
            continue
        taker = members[number].member_id
        targets[taker].add(place)
        room[taker] -= 1
        heapreplace(heap, (minus_room + 1, number))
    return left


def _share_by_load(
    members: Sequence[Candidate],
    topics: Mapping[bytes, AssignableTopic],
    targets: Targets,
    free: list[Place],
) -> None:
    """Give each partition to the subscriber that has least, those of topics with few subscribers
    first."""
    subscribers = _subscribers(members)
    free.sort(key=lambda place: (len(subscribers[place[0]]), place))
    for topic_id, places in groupby(free, key=lambda place: place[0]):
        loads = _Loads(subscribers[topic_id], targets)
        racks = topics[topic_id].racks
        for place in places:
            taker = loads.least_near(racks[place[1]]) if racks else loads.least
            targets[taker.member_id].add(place)
            loads.changed(taker)


def _even_out(
    members: Sequence[Candidate], topics: Mapping[bytes, AssignableTopic], targets: Targets
) -> None:
    """Move partitions from the subscriber of a topic that has most to the one that has least, while
    that makes them more alike."""
    subscribers = {
        topic_id: some for topic_id, some in _subscribers(members).items() if len(some) > 1
    }
    for _ in range(_ROUNDS_MAX):
        moved = False
        owned: dict[bytes, dict[str, list[Place]]] = {topic_id: {} for topic_id in subscribers}
        for member_id, has in targets.items():
            for place in sorted(has):
                if place[0] in owned:
                    owned[place[0]].setdefault(member_id, []).append(place)
        for topic_id in sorted(subscribers):
            some = owned[topic_id]
            loads = _Loads(subscribers[topic_id], targets)
            while (giver := loads.most(some)) is not None:
                taker = loads.least
                if len(targets[giver.member_id]) - len(targets[taker.member_id]) <= 1:
                    break
                place = some[giver.member_id].pop()
                targets[giver.member_id].remove(place)
                targets[taker.member_id].add(place)
                some.setdefault(taker.member_id, []).append(place)
                loads.changed(giver)
                loads.changed(taker)
                moved = True
        if not moved:
            return


class _Loads:
    """Subscribers of a topic ordered by their load, so that not all of ten thousand are looked at
    for every partition. Ties go to the first one."""

    def __init__(self, subscribers: Sequence[Candidate], targets: Targets) -> None:
        self._members = subscribers
        self._targets = targets
        self._numbers = {one.member_id: number for number, one in enumerate(subscribers)}
        self._racks: dict[str, list[tuple[int, int]]] = {}
        """Rack → its subscribers, as in `_least`."""
        rows = [(self._load(number), number) for number in range(len(subscribers))]
        for row in rows:
            rack = subscribers[row[1]].rack
            if rack is not None:
                self._racks.setdefault(rack, []).append(row)
        self._least = rows
        """(load, number in `subscribers`). A row may be outdated; then the present load has a row
        of its own."""
        self._most = [(-load, number) for load, number in rows]
        for heap in (self._least, self._most, *self._racks.values()):
            heapify(heap)

    def _load(self, number: int) -> int:
        return len(self._targets[self._members[number].member_id])

    def changed(self, member: Candidate) -> None:
        """Note that the member's load changed."""
        number = self._numbers[member.member_id]
        load = self._load(number)
        heappush(self._least, (load, number))
        heappush(self._most, (-load, number))
        if member.rack is not None:
            heappush(self._racks[member.rack], (load, number))

    def _first(self, heap: list[tuple[int, int]]) -> tuple[int, int]:
        while heap[0][0] != self._load(heap[0][1]):
            heappop(heap)
        return heap[0]

    @property
    def least(self) -> Candidate:
        """Subscriber with the least load."""
        return self._members[self._first(self._least)[1]]

    def least_near(self, racks: Iterable[str]) -> Candidate:
        """Return the subscriber with the least load; of equals one in these racks."""
        load, number = self._first(self._least)
        near = [self._first(self._racks[rack]) for rack in racks if rack in self._racks]
        near = [row for row in near if row[0] == load]
        return self._members[min(near)[1] if near else number]

    def most(self, owned: Mapping[str, list[Place]]) -> Candidate | None:
        """Return the one with the highest load, of those that own something; None: there is
        none."""
        while self._most:
            load, number = self._most[0]
            member = self._members[number]
            if -load == self._load(number) and owned.get(member.member_id):
                return member
            heappop(self._most)
        return None


def _subscribers(members: Sequence[Candidate]) -> dict[bytes, list[Candidate]]:
    found: dict[bytes, list[Candidate]] = {}
    for member in members:
        for topic_id in member.topics:
            found.setdefault(topic_id, []).append(member)
    return found


UNIFORM = "uniform"
RANGE = "range"
ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: assign_uniformly, RANGE: assign_ranges}
"""By Kafka's names; the first one is the default."""
