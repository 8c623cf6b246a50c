"""Detection of differences, and matching with the list of known ones."""

from __future__ import annotations

from tests.differential.compare import Difference, Known, differences, load_known, unlisted
from tests.differential.normal import Symbols, normal
from vdl.kafka.wire.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def _answer(*topics: MetadataResponseTopic, controller: int = 1) -> dict[str, object]:
    response = MetadataResponse(controller_id=controller, topics=list(topics))
    return {"asked v1": normal(response, Symbols())}


def _topic(name: str, code: int = 0, leader: int = 1) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(code, 0, leader, 5, [1, 2, 3], [1, 2, 3], [])
    return MetadataResponseTopic(0, name, partitions=[partition])


def test_what_must_differ_and_the_order_of_a_list_are_no_differences() -> None:
    one = _answer(_topic("a", leader=1), _topic("b"), controller=1)
    other = _answer(_topic("b"), _topic("a", leader=3), controller=2)
    assert differences("s", one, other) == []


def test_a_field_that_differs_is_named_with_its_place() -> None:
    (found,) = differences("s", _answer(_topic("a")), _answer(_topic("a", code=6)))
    assert found == Difference("s: asked v1 / topics [a] partitions [0] error_code", 0, 6)


def test_a_leader_is_not_the_same_as_none() -> None:
    (found,) = differences("s", _answer(_topic("a")), _answer(_topic("a", leader=-1)))
    assert (found.kafka, found.vdl) == ("a server", -1)


def test_a_struct_that_only_one_has_is_one_difference() -> None:
    (found,) = differences("s", _answer(_topic("a"), _topic("b")), _answer(_topic("a")))
    assert found == Difference("s: asked v1 / topics [b]", "a struct", "missing")


def test_structs_with_the_same_key_are_told_apart() -> None:
    twice = _answer(_topic("a"), _topic("a"))
    (found,) = differences("s", twice, _answer(_topic("a")))
    assert found.where == "s: asked v1 / topics [a]+"


def test_an_answer_that_only_one_gave_is_a_difference() -> None:
    (found,) = differences("s", _answer(), {})
    assert found == Difference("s: asked v1 /", "a struct", "missing")


def test_a_row_names_what_its_pattern_and_its_values_fit() -> None:
    found = [Difference("s: asked v1 / a b", 1, 2), Difference("s: asked v2 / a b", 1, 3)]
    row = Known("s: asked * / * b", "why", {"vdl": 2})
    unused = Known("s: asked", "why", {})
    assert unlisted(found, [row, unused]) == found[1:]
    assert (row.used, unused.used) == (1, 0)


def test_every_known_difference_has_a_reason() -> None:
    known = load_known()
    assert known
    for row in known:
        assert row.reason, row.where
        assert set(row.values) <= {"kafka", "vdl"}, row.where
