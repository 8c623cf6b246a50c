"""The Java oracle: Kafka's own codec in a process of its own, asked line by line."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

NEWEST = "4.4.0"
"""The client library whose classes the oracle is compiled with."""
JAVA = Path(__file__).parent / "java"
CACHE = Path(__file__).parents[2] / ".cache" / "codec-java"
BUILD_SECONDS_MAX = 120
RUN_SECONDS_MAX = 60

Oracle = Callable[[str, list[str]], list[list[str]]]


def _libraries(version: str) -> Path:
    """The folder with the client library of this version and what it needs, filled once."""
    folder = CACHE / version
    if not (folder / f"kafka-clients-{version}.jar").exists():
        partial = CACHE / f"{version}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), f"-Dkafka.version={version}"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    return folder


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Asks the oracle of one library version: lines in, for each line the fields of its answer."""
    classes = tmp_path_factory.mktemp("oracle")
    sources = sorted(map(str, JAVA.rglob("*.java")))
    command = ["javac", "-d", str(classes), "-cp", f"{_libraries(NEWEST)}/*", *sources]
    subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)

    def ask(version: str, lines: list[str]) -> list[list[str]]:
        done = subprocess.run(
            ["java", "-cp", f"{classes}:{_libraries(version)}/*", "vdl.Oracle"],
            input="".join(f"{line}\n" for line in lines),
            text=True,
            capture_output=True,
            check=True,
            timeout=RUN_SECONDS_MAX,
        )
        answers = [line.split("\t") for line in done.stdout.splitlines()]
        assert len(answers) == len(lines), done.stderr
        return answers

    return ask
