"""Errors on a machine without Java, and the jars that the connector needs."""

from __future__ import annotations

import os
import stat
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from vdl.pipeline import jars, session
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.session import (
    DAEMON,
    LOOPBACK,
    MASTER_DEFAULT,
    SETTINGS,
    SOCKET_FOLDER_LENGTH_MAX,
    NotInstalled,
    find_java,
    java_version,
    local_sockets,
    session_settings,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.12" 2024-07-16', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ("no such thing", 0),
    ],
)
def test_java_version_is_found_in_what_it_says(told: str, version: int) -> None:
    assert java_version(told) == version


def test_machine_without_java_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match=r"Spark requires Java.*openjdk-17"):
        find_java()


def test_machine_with_an_old_java_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match="version 8"):
        find_java()


def test_java_that_is_slow_is_not_taken_for_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`vdl pipeline validate` works without Java, and would accept unparsed texts."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session, "JAVA_SECONDS_MAX", 0.1)
    with pytest.raises(PipelineError, match=r"java -version: no response in 0\.1 s") as raised:
        find_java()
    assert not isinstance(raised.value, NotInstalled)


def test_java_that_runs_already_is_not_asked_which_one_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would cost a process, and the installed Java may be another one by now."""
    pyspark = pytest.importorskip("pyspark", reason="needs the `spark` extra")
    jvm = object()
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", object())
    monkeypatch.setattr(pyspark.SparkContext, "_jvm", jvm)
    monkeypatch.setattr(session, "find_java", lambda: pytest.fail("asked"))
    assert session.start_jvm({}) is jvm


@pytest.mark.parametrize("master", ["", "local", "local[4]", "local[2,4]", "local[*]"])
def test_session_on_one_machine_binds_to_loopback(master: str) -> None:
    told = session_settings(master=master, settings={}, is_submitted=False)
    assert told == {**SETTINGS, **LOOPBACK, "spark.master": master or MASTER_DEFAULT}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host:443"])
def test_session_on_a_cluster_is_reached_by_its_executors(master: str) -> None:
    """On their machines 127.0.0.1 is another host: they would wait for the driver forever."""
    told = session_settings(master=master, settings={}, is_submitted=False)
    assert told == {**SETTINGS, "spark.master": master}
    named = {"spark.master": master}
    assert session_settings(master="", settings=named, is_submitted=False) == told


def test_session_settings_of_a_job_have_the_last_word() -> None:
    wanted = {"spark.driver.host": "10.0.0.7", "spark.sql.session.timeZone": "CET"}
    for master in ("local[2]", "spark://host:7077"):
        told = session_settings(master=master, settings=wanted, is_submitted=False)
        assert told.items() >= wanted.items()
        assert told["spark.master"] == master


def test_session_of_spark_submit_is_told_neither_master_nor_address() -> None:
    told = session_settings(master="local[2]", settings={"spark.x": "y"}, is_submitted=True)
    assert told == {**SETTINGS, "spark.x": "y"}


def test_session_of_spark_submit_keeps_what_that_was_given() -> None:
    """A job's own settings take precedence over both."""
    given = {"spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.app.name"}
    own = {"spark.sql.session.timeZone": "CET"}
    told = session_settings(master="", settings=own, is_submitted=True, given=given)
    assert "spark.sql.shuffle.partitions" not in told
    assert told["spark.sql.session.timeZone"] == "CET"
    assert told.keys() | given == SETTINGS.keys() | given


def test_parent_of_tasks_is_not_taken_from_files_sent_with_a_job() -> None:
    """`--py-files` may be how executors get this package, and only tasks have them."""
    for given in ({"spark.app.name"}, {"spark.submit.pyFiles"}):
        told = session_settings(master="", settings={}, is_submitted=True, given=given)
        assert (DAEMON in told) == ("spark.submit.pyFiles" not in given)


def test_local_sockets_are_in_a_folder_that_nobody_else_can_enter() -> None:
    """They have no password: a process that reaches one can run code."""
    told = local_sockets()
    folder = Path(told["spark.python.unix.domain.socket.dir"])
    assert told["spark.python.unix.domain.socket.enabled"] == "true"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_local_sockets_are_not_used_where_their_names_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * SOCKET_FOLDER_LENGTH_MAX)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert local_sockets() == {}


def test_connector_jars_that_are_missing_name_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(jars.FOLDER, str(tmp_path))
    with pytest.raises(PipelineError, match="vdl pipeline jars"):
        jars.find_jars()


def test_connector_pom_leaves_out_what_spark_has() -> None:
    """Each artifact alone, since pyspark includes their dependencies."""
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = ET.fromstring(jars.pom()).findall(".//m:dependency", space)
    assert len(found) == len(jars.ARTIFACTS)
    for dependency in found:
        assert dependency.findtext("m:exclusions/m:exclusion/m:artifactId", "", space) == "*"


def test_connector_has_the_version_of_spark() -> None:
    """It uses internal classes of Spark, which may change between any two versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"pyspark=={jars.SPARK}" in project["project"]["optional-dependencies"]["spark"]
    assert {version for group, _, version in jars.ARTIFACTS if "spark" in group} == {jars.SPARK}


def test_pages_of_a_local_session_are_on_and_for_this_machine_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have no login. An address that is set is kept."""
    told = session_settings(master="", settings={}, is_submitted=False)
    assert told.get("spark.ui.enabled", "true") == "true"
    assert int(told["spark.port.maxRetries"]) > 16  # jobs on one machine
    monkeypatch.delenv(session.LOCAL_ADDRESS, raising=False)
    session.keep_pages_local(told)
    assert os.environ[session.LOCAL_ADDRESS] == "127.0.0.1"
    monkeypatch.setenv(session.LOCAL_ADDRESS, "10.0.0.1")
    session.keep_pages_local(told)
    assert os.environ[session.LOCAL_ADDRESS] == "10.0.0.1"
