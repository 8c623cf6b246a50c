"""Which file a location names, whatever writer wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vdl.pipeline.storage import NamedFiles, PlaceUnclear, place_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://lake/t/data/a.parquet", "s3a://lake/t/data/a.parquet"),
        ("s3://lake/t/data/a.parquet", "S3N://lake/t//data/./a.parquet"),
        ("/lake/t/data/a.parquet", "file:/lake/t/data/a.parquet"),
        ("file:/lake/t/a.parquet", "file:///lake/t/a.parquet"),
        ("file:///lake/t/a.parquet", "//lake/t//a.parquet"),
    ],
)
def test_locations_of_one_file_are_equal(one: str, other: str) -> None:
    assert place_of(one) == place_of(other)
    assert NamedFiles([one]).has(other)
    assert NamedFiles([other]).has(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://lake/t/a.parquet", "s3://lake/t/b.parquet"),
        ("s3://lake/t/a.parquet", "s3://lake/T/a.parquet"),
        ("/lake/t/a.parquet", "/lake/t/a.parquet2"),
        ("s3://lake/t/a.parquet", "/lake/t/a.parquet"),
    ],
)
def test_locations_of_two_files_are_not_equal(one: str, other: str) -> None:
    assert place_of(one) != place_of(other)
    assert not NamedFiles([one]).has(other)


@pytest.mark.parametrize(
    "location",
    [
        "", "t/a.parquet", "/", "s3:///t/a.parquet", "s3://lake", "s3:lake/a", "hdfs://host/t/a",
        "file://host/t/a", "/lake/../t/a", "s3://lake/x/../a", "file:t/a",
    ],
)  # fmt: skip
def test_location_that_may_be_read_in_two_ways_is_refused(location: str) -> None:
    with pytest.raises(PlaceUnclear):
        place_of(location)
    with pytest.raises(PlaceUnclear):
        NamedFiles([location])


def test_same_path_in_another_bucket_or_store_is_unclear() -> None:
    """An access point and its bucket have two names, as have a store and its mount."""
    known = NamedFiles(["s3://lake/t/a.parquet", "s3://lake/t/b.parquet"])
    for location in ("s3a://lake-accesspoint/t/a.parquet", "gs://lake/t/b.parquet"):
        with pytest.raises(PlaceUnclear):
            known.has(location)


def test_location_of_a_uri_names_both_files_that_it_may() -> None:
    """Java writes the path "a b" as it is, or as "a%20b"."""
    known = NamedFiles(["file:/t/a%20b.parquet"])
    assert known.has("/t/a%20b.parquet")
    assert known.has("/t/a b.parquet")
    assert not known.has("/t/a+b.parquet")


def test_file_below_a_link_is_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert NamedFiles([f"file:{tmp_path}/link/a"]).has(f"{tmp_path}/real/a")
    assert NamedFiles([f"{tmp_path}/real/a"]).has(f"{tmp_path}/link/a")
