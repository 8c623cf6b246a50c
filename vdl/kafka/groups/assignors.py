"""How partitions are shared out among the members of a group: the assignors of KIP-848.

`uniform` gives each member as many partitions as any other, gives to one in the partition's rack
first, and moves as little as that allows. `range` gives members that subscribe to the same topics
the partitions of the same numbers, so that topics can be joined.

An assignor is a function of its arguments alone: the same members and topics have the same result.

Must not know: groups, epochs, who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby

from vdl.state.modern.partitions import Partitions, Place, places_of

Targets = dict[str, set[Place]]
"""Member id → what it is to read."""

_ROUNDS_MAX = 16
"""How often the topics are gone through to even out members that subscribe to different ones."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member, as an assignor sees it."""

    member_id: str
    instance_id: str | None
    rack: str | None
    topics: frozenset[bytes]
    """The ids of what it subscribes to; all exist."""
    present: Partitions
    """What it was to read until now."""


@dataclass(frozen=True, slots=True)
class AssignableTopic:
    """A topic that somebody subscribes to."""

    topic_id: bytes
    partitions: int
    racks: Sequence[frozenset[str]] = ()
    """Of each partition, where its replicas are; empty: that is of no interest."""


Assignor = Callable[[Sequence[Candidate], Mapping[bytes, AssignableTopic]], Targets]


def in_order(members: Iterable[Candidate]) -> list[Candidate]:
    """Static members by their instance, then the others by their ids: an instance that comes back
    has its old place."""
    return sorted(
        members, key=lambda one: (one.instance_id is None, one.instance_id, one.member_id)
    )


# --- range ---------------------------------------------------------------------------------------


def assign_ranges(members: Sequence[Candidate], topics: Mapping[bytes, AssignableTopic]) -> Targets:
    """Of each topic, to each of its subscribers a run of partitions."""
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
    """As many partitions to each member as to any other, as far as subscriptions allow."""
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
    """What members may keep, and what nobody has."""
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
    """All subscribe to the same: each gets the quotient, and one more those that have most."""
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
    """What a member has, what it would best give up first: what is not in its rack, then the
    highest numbers."""
    return sorted(has, key=lambda place: (_is_near(member, place, topics), -place[1], place[0]))


def _is_near(member: Candidate, place: Place, topics: Mapping[bytes, AssignableTopic]) -> bool:
    """Whether a replica is in the member's rack."""
    racks = topics[place[0]].racks
    return member.rack is not None and bool(racks) and member.rack in racks[place[1]]


def _share_by_rack(
    members: Sequence[Candidate],
    topics: Mapping[bytes, AssignableTopic],
    targets: Targets,
    free: list[Place],
    room: dict[str, int],
) -> list[Place]:
    """Give partitions to members in a rack of theirs while these have room; what is left."""
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
        # Of each rack who has most room; of equals the first one.
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
    """Each partition to the subscriber that has least; topics that few subscribe to come first."""
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
    """Move partitions from who has most to who has least of a topic's subscribers, while that makes
    them more alike."""
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
    """The subscribers of a topic by how much they have: with ten thousand of them nobody looks at
    each for every partition. Of equals the first one counts."""

    def __init__(self, subscribers: Sequence[Candidate], targets: Targets) -> None:
        self._members = subscribers
        self._targets = targets
        self._numbers = {one.member_id: number for number, one in enumerate(subscribers)}
        self._racks: dict[str, list[tuple[int, int]]] = {}
        """Rack → as `_least`, those in it."""
        rows = [(self._load(number), number) for number in range(len(subscribers))]
        for row in rows:
            rack = subscribers[row[1]].rack
            if rack is not None:
                self._racks.setdefault(rack, []).append(row)
        self._least = rows
        """(load, number in `subscribers`). Loads may be others by now: then the present one has a
        row of its own."""
        self._most = [(-load, number) for load, number in rows]
        for heap in (self._least, self._most, *self._racks.values()):
            heapify(heap)

    def _load(self, number: int) -> int:
        return len(self._targets[self._members[number].member_id])

    def changed(self, member: Candidate) -> None:
        """It has more or less than before."""
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
        """Who has least."""
        return self._members[self._first(self._least)[1]]

    def least_near(self, racks: Iterable[str]) -> Candidate:
        """Who has least; of equals one in these racks."""
        load, number = self._first(self._least)
        near = [self._first(self._racks[rack]) for rack in racks if rack in self._racks]
        near = [row for row in near if row[0] == load]
        return self._members[min(near)[1] if near else number]

    def most(self, owned: Mapping[str, list[Place]]) -> Candidate | None:
        """Who has most, of those that own something."""
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
