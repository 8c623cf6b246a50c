"""Jars of the official connector that pyspark does not include.

`spark.jars.packages` needs every artifact of the connector in the repository, also those that only
clusters with Kerberos tokens use. Here Maven copies four jars, with a `pom.xml` that leaves out
what Spark already has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from vdl.pipeline.errors import PipelineError

SCALA = "2.13"
SPARK = "4.2.0"
"""Version of the connector, which is that of pyspark in `pyproject.toml`."""
KAFKA_CLIENTS = "3.9.1"
POOL = "2.12.1"
MAVEN_SECONDS = 600
FOLDER = "VDL_PIPELINE_JARS"
"""Environment variable: folder of the jars instead of ~/.cache/vdl/jars-<version>."""

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>vdl</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY = """    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
ARTIFACTS = (
    ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", SPARK),
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", SPARK),
    ("org.apache.kafka", "kafka-clients", KAFKA_CLIENTS),
    ("org.apache.commons", "commons-pool2", POOL),
)


def pom() -> str:
    return POM.format(
        dependencies="\n".join(
            DEPENDENCY.format(group=group, artifact=artifact, version=version)
            for group, artifact, version in ARTIFACTS
        )
    )


def folder() -> Path:
    told = os.environ.get(FOLDER)
    return Path(told) if told else Path.home() / ".cache" / "vdl" / f"jars-{SPARK}"


def find_jars() -> list[str]:
    """Return the paths of the jars. Raises PipelineError if they have not been fetched."""
    found = sorted(str(path) for path in folder().glob("*.jar"))
    if len(found) != len(ARTIFACTS):
        raise PipelineError(
            f"the jars of the connector are not in {folder()}; run `vdl pipeline jars`"
        )
    return found


def fetch_jars() -> list[str]:
    """Have Maven copy the jars, unless they exist. Raises PipelineError."""
    try:
        return find_jars()
    except PipelineError:
        pass
    maven = shutil.which("mvn")
    if maven is None:
        raise PipelineError("Maven (mvn) is required to fetch the jars of the connector")
    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "pom.xml").write_text(pom(), encoding="utf-8")
        command = [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        try:
            subprocess.run(  # noqa: S603 - Maven, with a file of our own
                command, cwd=work, check=True, capture_output=True, text=True,
                timeout=MAVEN_SECONDS,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            raise PipelineError(f"Maven: {error.stdout[-500:]}") from error
        except subprocess.TimeoutExpired as error:
            raise PipelineError(f"Maven has not finished within {MAVEN_SECONDS} s") from error
    return find_jars()
