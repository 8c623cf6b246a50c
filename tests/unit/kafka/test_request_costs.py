"""Table of the worst-case cost of a request of each API, and the requests it is measured with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.price.table import TABLE, TURN_MS_MAX, Row, read, write
from tests.price.wishes import NAMES, NUMBERS, SHAPES, Wish, changed, paths, steps
from tests.price.wishes import write as write_request
from vdl.kafka.api import API, ROWS, advertised

ELEMENTS = 60
BYTES = 4_000


def test_every_api_that_is_advertised_has_its_price() -> None:
    """For a client with all permissions and one with none.

    Measure a new API with `make price ONLY=NAME` before it is released.
    """
    rows = read(TABLE)
    priced = {(row.api, row.who) for row in rows}
    assert priced == {
        (API[key].name, who) for key, *_ in advertised() for who in ("all", "nothing")
    }
    assert len(rows) == len(priced)


def test_no_request_holds_the_loop_for_long() -> None:
    """Uses the last measurement."""
    slow = [row for row in read(TABLE) if row.turn_ms > TURN_MS_MAX]
    assert not slow, [row.line for row in slow]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Lines above the rows stay."""
    row = Row("Fetch", "all", 18, 41.2, 42.0, 6.0, 300, 4.5, 433, 0, 11_999, "Topics, names known")
    path = tmp_path / "costs.md"
    head = "Words.\n\n| API |\n|---|\n"
    path.write_text(f"{head}| old |\n", encoding="utf-8")
    write(path, [row, replace(row, who="nothing")])
    assert path.read_text(encoding="utf-8").startswith(head)
    assert read(path) == [row, replace(row, who="nothing")]


@pytest.mark.parametrize("api", ROWS, ids=lambda api: api.name)
def test_requests_are_within_their_bounds_and_can_be_read(api: object) -> None:
    """The server's codec reads them for any wish, and the long list is the one wished for."""
    row = API[api.key]  # type: ignore[attr-defined]
    for version in {row.min_version, row.max_version}:
        for path in [*paths(row.key, version)] or [()]:
            first = Wish(path, elements=ELEMENTS, bytes=BYTES)
            for step in steps(row.key, version):
                wish = changed(first, step)
                if wish is None or NAMES[wish.names] not in {None, b"", b"n000000", b"t000000"}:
                    continue
                written = write_request(row.key, version, wish)
                row.wire.decode_request(memoryview(written.body), version)
                assert written.elements <= ELEMENTS or wish.others or "path" in step, wish
                assert len(written.body) <= BYTES or wish.tags, wish


def test_choices_are_all_tried() -> None:
    """Covers nested lists in each shape, and each kind of name and number."""
    wish = Wish(("Topics", "Partitions"))
    tried = [found for step in steps(2, 10) if (found := changed(wish, step)) is not None]
    assert {one.names for one in tried} == {*NAMES}
    assert {one.numbers for one in tried} == {*NUMBERS}
    assert {one.shape for one in tried} == {*SHAPES}
    assert ("Topics",) in {one.path for one in tried}
    assert changed(replace(wish, path=("Topics",)), {"shape": "outer"}) is None


def test_names_are_as_many_as_elements() -> None:
    """Holds also in the widest request, unless one name is wished for all."""
    body = write_request(10, 6, Wish(("CoordinatorKeys",), elements=2_000)).body
    asked = API[10].wire.decode_request(memoryview(body), 6)
    assert len(set(asked.coordinator_keys)) == len(asked.coordinator_keys) == 1_999
