"""The Java oracle: Kafka's own codec in a process of its own, controlled by lines."""

import subprocess
from collections.abc import Callable

import pytest

from tests.codec.java_oracle import oracle_command

RUN_SECONDS_MAX = 60

Oracle = Callable[[str, list[str]], list[list[str]]]


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """Return a function that sends lines to the oracle of one library version.

    It returns the fields of each line's answer.
    """

    def ask(version: str, lines: list[str]) -> list[list[str]]:
        done = subprocess.run(
            oracle_command(version),
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
