"""Assignors of KIP-848: each partition is assigned once, evenly, with few moves."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.kafka.groups.assignors import (
    ASSIGNORS,
    RANGE,
    UNIFORM,
    AssignableTopic,
    Candidate,
    Targets,
    assign_ranges,
    assign_uniformly,
    in_order,
)
from vdl.state.modern.partitions import Place, partitions_of

IDS = [bytes([number]) * 16 for number in range(4)]


def topics_of(*counts: int) -> dict[bytes, AssignableTopic]:
    return {IDS[number]: AssignableTopic(IDS[number], count) for number, count in enumerate(counts)}


def member(name: str, *topics: int, had: set[Place] | None = None, rack: str = "") -> Candidate:
    ids = frozenset(IDS[number] for number in topics)
    return Candidate(name, None, rack or None, ids, partitions_of(had or ()))


@settings(max_examples=200, deadline=None)
@given(
    assignor=st.sampled_from([UNIFORM, RANGE]),
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    wants=st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=6),
    moves=st.lists(st.integers(0, 5), max_size=6),
)
def test_every_partition_goes_to_one_subscriber(
    assignor: str, counts: list[int], wants: list[set[int]], moves: list[int]
) -> None:
    """Holds for any subscriptions and any earlier assignment, even of deleted partitions."""
    topics = topics_of(*counts)
    wants = [{number for number in want if number < len(counts)} for want in wants]
    had: Targets = {}
    for number in [*moves, 9]:
        members = [
            member(f"m{n}", *sorted(want), had=had.get(f"m{n}", {(b"gone" * 4, 0), (IDS[0], 50)}))
            for n, want in enumerate(wants)
            if n != number
        ]
        had = ASSIGNORS[assignor](members, topics)
        given = [place for places in had.values() for place in places]
        assert len(given) == len(set(given))
        wanted = {topic_id for one in members for topic_id in one.topics}
        assert set(given) == {
            (topic_id, index) for topic_id in wanted for index in range(topics[topic_id].partitions)
        }
        for one in members:
            assert {topic_id for topic_id, _ in had[one.member_id]} <= one.topics
        if assignor == UNIFORM and len({one.topics for one in members}) == 1:
            sizes = [len(places) for places in had.values()]
            assert max(sizes) - min(sizes) <= 1
        assert ASSIGNORS[assignor](members, topics).keys() == had.keys()


def test_uniform_moves_no_more_than_it_must() -> None:
    """A new member takes its share from the others; no other partition moves."""
    topics = topics_of(7, 5)
    before = assign_uniformly([member("a", 0, 1), member("b", 0, 1)], topics)
    three = [member("a", 0, 1, had=before["a"]), member("b", 0, 1, had=before["b"])]
    after = assign_uniformly([*three, member("c", 0, 1)], topics)
    assert {name: len(places) for name, places in after.items()} == {"a": 4, "b": 4, "c": 4}
    assert after["a"] < before["a"]
    assert after["b"] < before["b"]


def test_uniform_evens_out_what_subscriptions_allow() -> None:
    """The member that subscribes to one topic alone gets it; the other member gets the rest."""
    topics = topics_of(4, 4)
    both, one = member("both", 0, 1), member("one", 0)
    after = assign_uniformly([both, one], topics)
    assert after == {
        "both": {(IDS[1], index) for index in range(4)},
        "one": {(IDS[0], index) for index in range(4)},
    }


def test_uniform_prefers_the_partition_s_racks() -> None:
    """Applies as long as shares stay equal."""
    racks = [frozenset({"x"}), frozenset({"y"}), frozenset({"x"}), frozenset({"y"})]
    topics = {IDS[0]: AssignableTopic(IDS[0], 4, racks)}
    after = assign_uniformly([member("b", 0, rack="y"), member("a", 0, rack="x")], topics)
    assert after == {"a": {(IDS[0], 0), (IDS[0], 2)}, "b": {(IDS[0], 1), (IDS[0], 3)}}


def test_range_gives_the_same_numbers_of_all_topics() -> None:
    """Allows topics to be joined. Static members come first, ordered by instance id."""
    topics = topics_of(5, 5)
    static = Candidate("z", "i", None, frozenset(IDS[:2]), ())
    after = assign_ranges([member("a", 0, 1), static], topics)
    assert after["z"] == {(topic_id, index) for topic_id in IDS[:2] for index in range(3)}
    assert after["a"] == {(topic_id, index) for topic_id in IDS[:2] for index in (3, 4)}


# --- large groups ------------------------------------------------------------------------------
RACKS = ("a", "b", "c")


def simply_shared(members: list[Candidate], topics: dict[bytes, AssignableTopic]) -> Targets:
    """Reference model of `uniform` for different subscriptions and no earlier assignment.

    Looks at each member for each partition.
    """
    ordered = in_order(members)
    targets: Targets = {one.member_id: set() for one in ordered}
    subscribers = {
        topic_id: some
        for topic_id in topics
        if (some := [one for one in ordered if topic_id in one.topics])
    }

    def load(one: Candidate) -> int:
        return len(targets[one.member_id])

    places = [
        (topic_id, index)
        for topic_id in subscribers
        for index in range(topics[topic_id].partitions)
    ]
    for place in sorted(places, key=lambda place: (len(subscribers[place[0]]), place)):
        racks = topics[place[0]].racks
        taker = min(
            subscribers[place[0]],
            key=lambda one: (load(one), not (racks and one.rack in racks[place[1]])),
        )
        targets[taker.member_id].add(place)
    while True:
        before = {member_id: set(has) for member_id, has in targets.items()}
        for topic_id, some in sorted(subscribers.items()):
            while True:
                givers = [
                    one for one in some if any(p[0] == topic_id for p in targets[one.member_id])
                ]
                giver, taker = max(givers, key=load), min(some, key=load)
                if load(giver) - load(taker) <= 1:
                    break
                place = max(place for place in targets[giver.member_id] if place[0] == topic_id)
                targets[giver.member_id].remove(place)
                targets[taker.member_id].add(place)
        if targets == before:
            return targets


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    wants=st.lists(st.sets(st.integers(0, 3)), min_size=2, max_size=7),
    has_racks=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_uniform_is_as_when_each_member_is_looked_at_for_each_partition(
    counts: list[int], wants: list[set[int]], has_racks: bool, rng: Random
) -> None:
    topics = topics_of(*counts)
    if has_racks:
        topics = {
            topic_id: AssignableTopic(
                topic_id,
                topic.partitions,
                [frozenset(rng.sample(RACKS, rng.randint(0, 3))) for _ in range(topic.partitions)],
            )
            for topic_id, topic in topics.items()
        }
    members = [
        member(
            f"m{number}",
            *(one for one in want if one < len(counts)),
            rack=rng.choice(RACKS) if has_racks else "",
        )
        for number, want in enumerate(wants)
    ]
    if all(one.topics == members[0].topics for one in members):
        return
    assert assign_uniformly(members, topics) == simply_shared(members, topics)


def test_uniform_looks_at_a_large_group_s_members_a_few_times_each() -> None:
    """Ten thousand members with different subscriptions; steps are counted, not timed."""
    looks = 0

    class Counted(frozenset[bytes]):
        def __contains__(self, topic_id: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(topic_id)

    topics = topics_of(1_000, 1_000)
    racks = [frozenset({rack}) for rack in RACKS]
    topics[IDS[0]] = AssignableTopic(
        IDS[0],
        1_000,
        [Counted(racks[index % 3]) for index in range(1_000)],  # type: ignore[arg-type]
    )
    members = [
        member(f"m{n:05}", *([0] if n % 2 else [0, 1]), rack=RACKS[n % 3]) for n in range(10_000)
    ]
    targets = assign_uniformly(members, topics)
    assert sum(map(len, targets.values())) == 2_000
    assert looks <= 1_000
