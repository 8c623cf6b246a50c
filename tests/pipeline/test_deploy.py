"""Files in `deploy/pipeline` for clusters, as far as they can be tested without one.

VDL_PIPELINE_PYTHON names the Python of a packed environment (`make pipeline-env`), unpacked
anywhere, to start as a cluster would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the `spark` extra")
pytest.importorskip("yaml", reason="needs the `spark-dev` extra")

import pyspark
import yaml

from tests.pipeline.test_reading import create
from tests.pipeline.test_spark import BROKEN, COUNT, fill, job_of
from vdl.pipeline.job import parse_job
from vdl.pipeline.session import NotInstalled, check_installed

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "pipeline"
HOME = Path(pyspark.__file__).parent
KUBERNETES = "1.30"
RECORDER = """#!/bin/bash
printf '%s\\n' "$@" > {path}
"""


def manifests() -> list[dict[str, Any]]:
    text = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    return [dict(one) for one in yaml.safe_load_all(text)]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (one for one in manifests() if one["kind"] == kind)
    return found


def settings() -> dict[str, str]:
    """Return spark-submit's settings in the manifest."""
    (driver,) = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    (text,) = (one["value"] for one in driver["env"] if one["name"] == "SUBMIT_CONF")
    return dict(line.split("=", 1) for line in text.splitlines())


def test_manifests_are_what_kubernetes_takes() -> None:
    """The check includes the fields of its quota and its policy: a misspelt field is an error."""
    validator = pytest.importorskip("kubernetes_validate", reason="needs the `spark-dev` extra")
    for one in manifests():
        validator.validate(one, KUBERNETES, strict=True)
    broken = of_kind("Deployment")
    broken["spec"]["replica"] = 1
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, KUBERNETES, strict=True)


def test_manifest_has_a_job_that_is_one_and_mounts_what_it_names() -> None:
    data = of_kind("ConfigMap")["data"]
    job = parse_job(tomllib.loads(data["job.toml"]), "job.toml", Path("/etc/vdl"))
    pod = of_kind("Deployment")["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    names = {one["name"] for one in driver["env"]}
    secrets = [value for value in job.sink.storage.values() if value.startswith("env:")]
    assert len(secrets) == 2
    assert {value.removeprefix("env:") for value in secrets} <= names
    mounts = {one["mountPath"]: one["name"] for one in driver["volumeMounts"]}
    assert driver["args"][-1] == "/etc/vdl/job.toml"
    assert job.checkpoint.startswith("/var/lib/vdl/")
    assert {"/etc/vdl", "/var/lib/vdl"} == set(mounts)
    assert set(mounts.values()) == {one["name"] for one in pod["volumes"]}
    ports = {one["name"]: one["containerPort"] for one in driver["ports"]}
    assert job.metrics_listen.endswith(f":{ports['metrics']}")
    assert settings()["spark.driver.port"] == str(ports["driver"])
    assert settings()["spark.kubernetes.container.image"] == driver["image"]


def test_settings_of_the_manifest_are_sparks() -> None:
    """Every name that begins with spark.kubernetes. is searched in Spark's own classes."""
    (jar,) = (HOME / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        names = "org/apache/spark/deploy/k8s/"
        known = b"".join(classes.read(n) for n in classes.namelist() if n.startswith(names))
    for name in settings():
        if name.startswith("spark.kubernetes."):
            looked_for = name.removesuffix(".app").encode()
            assert looked_for in known, name


def run_entrypoint(
    folder: Path, arguments: list[str], environment: dict[str, str], program: str
) -> list[str]:
    """Run the container's script with a program that only records its arguments."""
    noted = folder / "noted"
    for place in (folder, folder / "bin"):
        place.mkdir(exist_ok=True)
        (place / program).write_text(RECORDER.format(path=noted), encoding="utf-8")
        (place / program).chmod(0o755)
    subprocess.run(
        [str(FOLDER / "entrypoint.sh"), *arguments], check=True, timeout=60,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "SPARK_HOME": str(folder), **environment},
    )  # fmt: skip
    return noted.read_text(encoding="utf-8").splitlines()


def test_executor_is_started_with_what_spark_says(tmp_path: Path) -> None:
    """The main class and its options are those of the image's jar."""
    told = {
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Dx=two words",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "flights-exec-7",
    }
    found = run_entrypoint(tmp_path, ["executor"], told, "java")
    assert found[:4] == ["-Dspark.driver.port=7078", "-Dx=two words", "-Xms1g", "-Xmx1g"]
    main = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    options = found[found.index(main) + 1 :]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--driver-url": told["SPARK_DRIVER_URL"], "--executor-id": "7", "--cores": "1",
        "--app-id": "spark-1", "--hostname": "10.0.0.2", "--resourceProfileId": "0",
        "--podName": "flights-exec-7",
    }  # fmt: skip
    (jar,) = (HOME / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        assert f"{main.replace('.', '/')}.class" in classes.namelist()


def test_driver_is_submitted_with_a_setting_a_line(tmp_path: Path) -> None:
    given = {"SUBMIT_CONF": "spark.master=k8s://https://x\n\nspark.app.name=two words\n"}
    found = run_entrypoint(tmp_path, ["run", "job.toml"], given, "spark-submit")
    assert found == [
        "--deploy-mode", "client", "--conf", "spark.master=k8s://https://x",
        "--conf", "spark.app.name=two words", str(FOLDER / "submit.py"), "run", "job.toml",
    ]  # fmt: skip


@pytest.mark.takes_turns(parts=3)
@pytest.mark.spark
def test_job_is_run_by_spark_submit(bootstrap: str, tmp_path: Path) -> None:
    """Uses the image's script, and a packed environment if one is named."""
    try:
        check_installed()
    except NotInstalled as error:
        pytest.skip(str(error))
    topic = "submitted"
    create(bootstrap, topic)
    fill(bootstrap, topic, 0, COUNT)
    job_of(tmp_path, bootstrap, topic, sink="delta")
    python = os.environ.get("VDL_PIPELINE_PYTHON", sys.executable)
    environment = {
        **{k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "SPARK_HOME"}},
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SUBMIT_CONF": "spark.master=local[1]\nspark.driver.host=127.0.0.1",
    }
    if python == sys.executable:
        # A packed environment has all but Spark's own modules, which spark-submit provides.
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [str(FOLDER / "entrypoint.sh"), "run", "--once", "--quiet", str(tmp_path / "job.toml")],
        capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{COUNT} rows, {len(BROKEN)} dead letters" in done.stdout
    log = tmp_path / f"{topic}-delta" / "_delta_log"
    assert json.loads((log / f"{0:020}.json").read_text(encoding="utf-8").splitlines()[0])
