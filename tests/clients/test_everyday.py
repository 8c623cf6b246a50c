"""Everyday uses with further clients, beside those of the scenarios.

Each is the newest published version, unmodified. kcat is Debian's package: CI installs it, other
machines may have it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence

import pytest

from tests.clients import everyday
from tests.clients.clients import CLIENTS
from tests.clients.conftest import Drivers
from tests.clients.everyday_programs import PROGRAMS
from tests.clients.scenarios import BASE_TIMESTAMP, numbered
from tests.clients.topics import Topics

KCAT_SECONDS_MAX = 60


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=getattr(pytest.mark, program.needs) if program.needs else ())
        for name, program in PROGRAMS.items()
    ],
)
def test_client_does_what_applications_do_every_day(
    name: str, bootstrap: str, topics: Topics
) -> None:
    """The results are the same as with Kafka: see `everyday.py`."""
    program = PROGRAMS[name]
    topic = topics.unused_name(f"everyday-{name}")
    found = everyday.run(program.command(), bootstrap, topic, f"group-{topic}")
    assert found.pop("client").startswith(name)
    wanted = {key: value for key, value in everyday.expected().items() if key not in program.untold}
    assert found == wanted


# --- kcat -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kcat() -> str:
    """Return the program; the set-up installs it in CI."""
    path = shutil.which("kcat")
    if path is None:
        pytest.skip("needs kcat")
    return path


def run(command: Sequence[str], text: str = "") -> list[str]:
    """Run a command; return its output lines."""
    done = subprocess.run(
        command,
        check=False,
        timeout=KCAT_SECONDS_MAX,
        input=text,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kcat_writes_and_reads(kcat: str, bootstrap: str, topics: Topics) -> None:
    """kcat uses keys, headers and compression, alone and as a member of a group.

    The group continues at its positions.
    """
    topic = topics.create("kcat", partitions=2)
    base = [kcat, "-b", bootstrap]
    produce = [*base, "-P", "-t", topic, "-K:", "-z", "zstd", "-X", "enable.idempotence=true"]

    def write(numbers: range) -> None:
        for partition in ("0", "1"):
            lines = "".join(f"k{n}:{n}\n" for n in numbers)
            run([*produce, "-p", partition, "-H", "from=kcat"], lines)

    write(range(10))
    listed = json.loads("".join(run([*base, "-L", "-J", "-t", topic])))
    assert [len(one["partitions"]) for one in listed["topics"]] == [2]
    assert len(listed["brokers"]) == 3
    shown = ["-f", "%p %o %k %s %h\\n", "-e", "-q"]
    found = run([*base, "-C", "-t", topic, *shown])
    wanted = {f"{p} {n} k{n} {n} from=kcat" for p in (0, 1) for n in range(10)}
    assert set(found) == wanted
    assert len(found) == 20
    member = [*base, "-f", "%s\\n", "-q", "-X", "auto.offset.reset=earliest"]
    read: list[int] = []
    for numbers in (range(10), range(10, 13)):
        if numbers.start:
            write(numbers)
        command = [*member, "-c", str(2 * len(numbers)), "-G", f"group-{topic}", topic]
        read += map(int, run(command))
    assert sorted(read) == sorted([*range(13)] * 2)


def test_kcat_finds_offsets_by_time(
    kcat: str, bootstrap: str, drivers: Drivers, topics: Topics
) -> None:
    """kcat queries an offset by time, and reads from there on."""
    topic = topics.create("kcat-time")
    drivers.of(CLIENTS[0], 1)[0].produce(numbered(topic, range(20)))
    since = BASE_TIMESTAMP + 12
    base = [kcat, "-b", bootstrap]
    assert run([*base, "-Q", "-t", f"{topic}:0:{since}"]) == [f"{topic} [0] offset 12"]
    read = [*base, "-C", "-t", topic, "-p", "0", "-o", f"s@{since}", "-e", "-q", "-f", "%s\\n"]
    assert run(read) == [str(n) for n in range(12, 20)]
