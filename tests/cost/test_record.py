"""Comparison of figures with recorded ones, version by version, and its messages."""

from __future__ import annotations

import pytest

from tests.cost.record import Change, changes, record, recorded


def change(before: float, after: float) -> Change:
    return Change("large", "MB", "syncs", "waits", before, after)


@pytest.mark.parametrize(
    ("before", "after", "is_fault"),
    [
        (100.0, 105.0, False),
        (100.0, 105.001, True),
        (100.0, 95.0, False),
        (100.0, 94.999, True),
        (0.0, 0.0, False),
        (0.0, 0.001, True),
    ],
)
def test_change_beyond_the_tolerance_is_a_fault(before, after, is_fault):
    """Five per cent in both directions, and any increase from zero."""
    assert change(before, after).is_fault is is_fault


def test_rise_names_figure_values_and_way_out():
    text = str(change(1_234_567.891, 1_358_024.68))
    for part in (
        "large",
        "syncs",
        "10.0%",
        "1,234,567.891",
        "1,358,024.68",
        "TOP=40",
        "make cost RECORD=1",
    ):
        assert part in text


def test_fall_asks_to_be_recorded():
    text = str(change(1_000.0, 900.0))
    assert "fell by 10.0%" in text
    assert "make cost RECORD=1" in text


def test_figure_without_a_record_is_a_fault():
    """An unrecorded figure is a fault; otherwise a new figure would stay unchecked."""
    (row,) = changes("large", "MB", {}, {"syncs": 1.0}, {"syncs": "waits"})
    assert row.is_fault


def test_record_keeps_what_was_not_counted(tmp_path):
    """Other workloads and other versions; workloads that no longer exist are removed."""
    file = tmp_path / "figures.toml"
    record({"a": {"x": 1.5}, "b": {"x": 2.0}, "c": {"x": 3.0}}, "abc", file, "3.11")
    record({"a": {"x": 9.0}}, "abc", file, "3.9")
    record({"b": {"x": 4.25}}, "ab", file, "3.11")
    assert recorded(file, "3.11") == {"a": {"x": 1.5}, "b": {"x": 4.25}}
    assert recorded(file, "3.9") == {"a": {"x": 9.0}}
    assert recorded(file, "3.12") == {}
