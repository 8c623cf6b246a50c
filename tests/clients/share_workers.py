"""Java share consumers in processes that can be killed, and the records of their deliveries.

Each process is one `ShareWorker` with some `KafkaShareConsumer`s, which write deliveries and
acknowledgements to files. A delivery is identified by partition, offset and its count, so the files
of all processes can be merged without any clock: the consumer that acknowledged a record had its
last delivery.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.clients import DRIVERS, java_classes, java_libraries

SOURCES = DRIVERS / "share"
VERSION = "4.4.0"
SECONDS = 60.0
NOT_TAKEN = "InvalidRecordStateException"
"""Error that means the record is not acknowledged. Other errors leave it open."""

Record = tuple[int, int]
"""(partition, offset)."""


def share_worker() -> list[str]:
    """Return the command of a worker, which is built if necessary."""
    flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m"]
    flags += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    classes, libraries = java_classes(SOURCES, VERSION), java_libraries(VERSION)
    return ["java", *flags, "-cp", f"{classes}:{libraries}/*", "vdl.ShareWorker"]


class ShareWorker:
    """One process with some consumers of a group."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        log: Path,
        *,
        consumers: int,
        releases_percent: int = 0,
        rejects_percent: int = 0,
    ) -> None:
        self.log = log
        command = [*share_worker(), bootstrap, group, topic, str(consumers), str(log)]
        command += [str(releases_percent), str(rejects_percent)]
        self._errors = log.with_suffix(".err").open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"started\n", self.log

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Have the consumers close; the records that they hold are released."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(SECONDS)
        self._reap()

    def _reap(self) -> None:
        self.process.wait(SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()


@dataclass(slots=True)
class ShareHistory:
    """Contents of the files of a group's consumers."""

    delivered: dict[Record, list[int]] = field(default_factory=dict)
    """Delivery counts of each record, in the order of the files."""
    accepted: Counter[Record] = field(default_factory=Counter)
    rejected: Counter[Record] = field(default_factory=Counter)
    ended: dict[Record, int] = field(default_factory=dict)
    """By record: the delivery that was accepted or rejected."""
    failed: dict[Record, list[tuple[int, str]]] = field(default_factory=dict)
    """Failed acknowledgements: the delivery, and the error."""

    @property
    def failures(self) -> Counter[str]:
        """Return the number of failures by error."""
        return Counter(why for some in self.failed.values() for _, why in some)

    @property
    def given_again(self) -> Counter[str]:
        """Return, by error, the number of failed records that were delivered again."""
        return Counter(
            why
            for record, some in self.failed.items()
            for count, why in some
            if max(self.delivered[record]) > count
        )

    @property
    def redeliveries(self) -> int:
        """Return the number of deliveries beyond the first one."""
        return sum(len(counts) - 1 for counts in self.delivered.values())

    def problems(self, *, limit: int) -> list[str]:
        """Return violations of a share group's guarantees.

        A process that was killed may have acknowledged more than it wrote, so a record without an
        acknowledgement is no violation by itself.
        """
        found = []
        done = self.accepted + self.rejected
        for record, count in done.items():
            if count > 1:
                found.append(f"{record} acknowledged {count} times")
        for record, counts in self.delivered.items():
            if len(set(counts)) < len(counts):
                found.append(f"{record} delivered twice with one count: {counts}")
            if max(counts) > limit:
                found.append(f"{record} delivered past its limit: {counts}")
            ended = self.ended.get(record, limit)
            if max(counts) > ended:
                found.append(f"{record} delivered again after its end: {counts}, {ended} ended it")
        for record, failures in self.failed.items():
            for count, why in failures:
                again = max(self.delivered[record]) > count or count == limit
                if why == NOT_TAKEN and not again:
                    found.append(f"{record} was taken, its member was told that it was not")
        return found


def read_history(folder: Path) -> ShareHistory:
    """Read all files below a folder. A line that was cut off by a kill is omitted."""
    history = ShareHistory()
    for path in sorted(folder.glob("*-[0-9]*")):
        text = path.read_text(encoding="ascii")
        for line in text[: text.rfind("\n") + 1].splitlines():
            kind, number, *rest = line.split(" ")
            partition = int(number)
            first, last = map(int, rest[0].split("-"))
            for offset in range(first, last + 1):
                record = (partition, offset)
                count = int(rest[1])
                if kind == "F":
                    history.failed.setdefault(record, []).append((count, rest[2]))
                elif kind == "D":
                    history.delivered.setdefault(record, []).append(count)
                elif kind == "A":
                    history.accepted[record] += 1
                    history.ended[record] = count
                elif kind == "X":
                    history.rejected[record] += 1
                    history.ended[record] = count
    return history
