"""Columns that a job requests from its source: those that decoding needs, and no others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` or `spark` extra")

from vdl.pipeline.decode import COLUMNS
from vdl.pipeline.job import load_job
from vdl.pipeline.options import parse
from vdl.pipeline.positions import Positions, TopicPositions
from vdl.pipeline.runner import Runner

JOB = """
[job]
name = "numbers"
[source]
kind = "{kind}"
bootstrap = "127.0.0.1:1"
topics = ["numbers"]
options = {{ {options} }}
[decode]
schema = "n bigint"
[sink]
path = "out"
"""
START = Positions({"numbers": TopicPositions("id", {0: 3})})
END = Positions({"numbers": TopicPositions("id", {0: 9})})


class AskedSpark:
    """Spark stub with the readers that a runner uses."""

    def __init__(self) -> None:
        self.kind = ""
        self.asked: dict[str, str] = {}

    @property
    def read(self) -> AskedSpark:
        return self

    readStream = read

    def format(self, kind: str) -> AskedSpark:
        self.kind = kind
        return self

    def options(self, **options: str) -> AskedSpark:
        self.asked = options
        return self

    def load(self) -> AskedSpark:
        return self


Ask = Callable[..., dict[str, str]]


@pytest.fixture(params=["stream", "batch"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Ask:
    """Return a function for the options of a job's stream or bounded read, for a kind of source."""

    def asked(kind: str, options: str = "") -> dict[str, str]:
        file = tmp_path / "job.toml"
        file.write_text(JOB.format(kind=kind, options=options), encoding="utf-8")
        spark: Any = AskedSpark()
        with closing(Runner(load_job(file), spark)) as runner:
            if request.param == "stream":
                runner._stream()
            else:
                runner._bounded(START, END)
        assert spark.kind == kind
        return dict(spark.asked)

    return asked


def test_job_asks_the_source_for_what_decoding_needs(ask: Ask) -> None:
    """All but `timestampType`: dead letters keep key, value, headers and topic."""
    assert parse(ask("vdl")).columns == COLUMNS
    assert set(COLUMNS) == {
        "key", "value", "headers", "topic", "partition", "offset", "timestamp"
    }  # fmt: skip


def test_job_with_columns_of_its_own_still_has_what_decoding_needs(ask: Ask) -> None:
    """Otherwise nothing could be decoded."""
    assert parse(ask("vdl", 'columns = "value"')).columns == COLUMNS


def test_job_on_the_official_connector_asks_for_headers_in_its_words(ask: Ask) -> None:
    """It has no `columns` option, and creates all columns for every record."""
    asked = ask("kafka")
    assert asked["includeHeaders"] == "true"
    assert "columns" not in asked
