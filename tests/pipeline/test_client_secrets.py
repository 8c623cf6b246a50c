"""Credentials of clients, for both kinds of source, and the absence of secrets in job files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.test_job_file import GOOD
from vdl.pipeline.client_secrets import SecretMissing, exposed, java_settings, resolved
from vdl.pipeline.errors import JobInvalid
from vdl.pipeline.job import Job, load_job

CLIENT = """
[source.client]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "job"
"sasl.password" = "{password}"
"ssl.ca.location" = "{ca}"
[decode]
"""


def job_of(
    folder: Path, *, kind: str = "vdl", password: str = "env:VDL_TEST", more: str = ""
) -> Job:
    (folder / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n", encoding="utf-8")
    text = GOOD.replace("[source]", f'[source]\nkind = "{kind}"')
    text = text.replace("[decode]", CLIENT.format(password=password, ca=folder / "ca.pem"))
    (folder / "job.toml").write_text(text + more, encoding="utf-8")
    return load_job(folder / "job.toml")


def test_secret_of_the_environment_reaches_every_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers the driver's requests, the executors' reads, and the connector."""
    monkeypatch.setenv("VDL_TEST", 'se"cret\\')
    job = job_of(tmp_path)
    assert job.source.read_options().client["sasl.password"] == 'se"cret\\'
    assert job.source.reader_options()["client.security.protocol"] == "SASL_SSL"
    job = job_of(tmp_path, kind="kafka")
    assert job.source.read_options().client["sasl.password"] == 'se"cret\\'
    told = java_settings(resolved(job.source.client))
    assert told["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="job" password="se\\"cret\\\\";'
    )
    assert told["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert told["kafka.ssl.truststore.type"] == "PEM"
    assert told["kafka.ssl.truststore.certificates"].startswith("-----BEGIN")


def test_connector_reads_committed_records_only_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own default would return records of aborted transactions."""
    pytest.importorskip("pyspark", reason="needs the `spark` extra")
    from vdl.pipeline.runner import Runner

    monkeypatch.setenv("VDL_TEST", "x")
    monkeypatch.setattr(
        "vdl.pipeline.runner.Topics", lambda options: None
    )  # its certificate is none
    runner = Runner(job_of(tmp_path, kind="kafka"), None)
    told = runner._connector_options()
    assert told["kafka.isolation.level"] == "read_committed"
    assert told["kafka.security.protocol"] == "SASL_SSL"


def test_secret_of_a_file_is_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("two words\n", encoding="utf-8")
    place = f"file:{tmp_path}/password"
    assert resolved({"sasl.password": place, "other": place}) == {
        "sasl.password": "two words", "other": place,
    }  # fmt: skip


@pytest.mark.parametrize("place", ["env:VDL_NOWHERE", "file:/nowhere/at/all"])
def test_secret_that_is_missing_is_named_without_being_needed_to_validate(
    tmp_path: Path, place: str
) -> None:
    job = job_of(tmp_path, password=place)
    with pytest.raises(SecretMissing, match=r"sasl\.password: "):
        job.source.reader_options()


def test_secrets_in_a_job_file_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    more = '[spark]\n"spark.hadoop.fs.s3a.secret.key" = "abc"\nmaster = "local[2]"\n'
    with pytest.raises(JobInvalid) as refused:
        job_of(tmp_path, password="hunter2", more=more)
    problems = refused.value.problems
    assert [problem.partition(": a job file")[0] for problem in problems] == [
        "source.client: sasl.password", "spark: spark.hadoop.fs.s3a.secret.key",
    ]  # fmt: skip
    assert "hunter2" not in str(refused.value)
    assert exposed({"kafka.sasl.jaas.config": "x", "ssl.key.pem": "x", "a": "x"}) == [
        "kafka.sasl.jaas.config", "ssl.key.pem",
    ]  # fmt: skip


def test_setting_that_the_connector_has_no_word_for_is_refused(tmp_path: Path) -> None:
    job_of(tmp_path, more="")
    text = (tmp_path / "job.toml").read_text(encoding="utf-8")
    text = text.replace("[source.client]", '[source.client]\n"check.crcs" = "false"')
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    load_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_text(text.replace('"vdl"', '"kafka"'), encoding="utf-8")
    with pytest.raises(JobInvalid, match=r"check\.crcs: is unknown for kind = 'kafka'"):
        load_job(tmp_path / "job.toml")
