"""Explanations of values that cannot be decoded, for any value."""

from __future__ import annotations

import pytest

from vdl.pipeline.decode import NO_VALUE, NOT_JSON, _name, explain

KINDS = {"n": "bigint", "text": "string"}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"{", "Expecting property name"),
        (b"\xff", "can't decode byte"),
        (b'"x"', 'it is str "x", not an object'),
        (b"[1]", "it is list [1], not an object"),
        (b'{"n": "x"}', 'n is str "x", not bigint'),
        (b'{"n": true}', "n is bool true, not bigint"),
    ],
)
def test_value_that_is_no_object_of_the_schema_is_explained(value: bytes, told: str) -> None:
    assert told in explain(NOT_JSON, value, KINDS)


def test_other_errors_stay_as_they_are() -> None:
    assert explain(NO_VALUE, None, KINDS) == NO_VALUE
    assert explain(NOT_JSON, b'{"n": 1, "text": "x"}', KINDS) == NOT_JSON


@pytest.mark.parametrize("value", [b"[" * 5000, b'{"n":' * 5000, b"[" * 1001])
def test_value_that_is_too_deep_is_explained(value: bytes) -> None:
    """Python's parser fails with an error of its own, which must not stop the task.

    The record would be there again at every start.
    """
    assert "recursion" in explain(NOT_JSON, value, KINDS)


def test_value_that_is_too_deep_to_be_written_is_named_by_its_type() -> None:
    """It may have been read with a smaller stack than there is when it is shown."""
    value: list[object] = []
    for _ in range(5000):
        value = [value]
    assert _name(value) == "list"
