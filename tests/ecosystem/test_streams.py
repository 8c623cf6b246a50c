"""Kafka Streams: word count and windowed join with changelog topics, and exactly-once across kills.

VDL_STREAMS_LINES, VDL_STREAMS_KILLS and VDL_STREAMS_LEADERS set the size of the last test, and how
often the program and leaders are killed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.ecosystem.programs import Program, classes, java
from tests.ecosystem.records import Record, Topics, last_values

pytestmark = pytest.mark.takes_turns(parts=2)

LINES = 2_000
WORDS = 300
WORDS_PER_LINE = 8
PARTITIONS = 4
PAIRS = 400
KEYS = 20
ONCE_LINES = int(os.environ.get("VDL_STREAMS_LINES", "2000"))
KILLS = int(os.environ.get("VDL_STREAMS_KILLS", "2"))
LEADERS = int(os.environ.get("VDL_STREAMS_LEADERS", "0"))
IS_LONG = ONCE_LINES >= 1_000_000
"""True for a long run, in which a line is one word: the number of records matters."""
WINDOW_MS = 10_000
"""Equal to that in Topology.java."""
FIRST_MS = 1_700_000_000_000
SPAN_MS = 300_000


def test_streams_counts_words_and_joins_over_a_restart(
    topics: Topics, tmp_path: Path, log: Path
) -> None:
    """The program ends after half of the input and its local state is lost.

    Then the other half follows. All of the left side comes before: later pairs need state that only
    a changelog still has.
    """
    rng = random.Random(7)
    topics.create("lines", "counts", "left", "right", "joined")
    lines = [
        " ".join(f"w{rng.randrange(WORDS)}" for _ in range(WORDS_PER_LINE)) for _ in range(LINES)
    ]
    left, right = _events(rng, "l"), _events(rng, "r")
    topics.produce("left", left)
    state = tmp_path / "state"
    command = java(
        classes("java"), "vdl.Topology",
        topics.bootstrap, "topology", str(state), str(topics.replication),
        "at_least_once", "",
    )  # fmt: skip
    for begin, end in ((0.0, 0.5), (0.5, 1.0)):
        topics.produce("lines", _records(lines[int(begin * LINES) : int(end * LINES)]))
        topics.produce("right", right[int(begin * PAIRS) : int(end * PAIRS)])
        counted = Counter(word for line in lines[: int(end * LINES)] for word in line.split())
        joined = _joined(left, right[: int(end * PAIRS)])
        shutil.rmtree(state, ignore_errors=True)
        log.unlink(missing_ok=True)
        with Program(command, log) as program:
            program.wait_for("all words are counted", partial(_is_counted, topics, counted))
            program.wait_for("all pairs are joined", partial(_is_joined, topics, len(joined)))
            assert program.end_input() == 0
            assert program.says("closed"), program.tail()
        assert _counts(topics) == counted
        assert sorted((r.key, r.value) for r in topics.read("joined")) == joined
    policy = topics.config(
        "topology-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog", "cleanup.policy"
    )
    assert policy == "compact"


def test_streams_counts_each_word_exactly_once_over_kills(
    servers: ReplicaSet | None, topics: Topics, tmp_path: Path, log: Path
) -> None:
    """`exactly_once_v2`: each count of each word is written once, in order.

    The program is killed repeatedly in the middle of its transactions, and leaders are too.
    """
    rng = random.Random(8)
    topics.create(*(f"once-{name}" for name in ("lines", "counts", "left", "right", "joined")))
    words = 1 if IS_LONG else WORDS_PER_LINE
    lines = [" ".join(f"w{rng.randrange(WORDS)}" for _ in range(words)) for _ in range(ONCE_LINES)]
    counted = Counter(word for line in lines for word in line.split())
    state = tmp_path / "once-state"
    command = java(
        classes("java"), "vdl.Topology",
        topics.bootstrap, "once", str(state), str(topics.replication), "exactly_once_v2", "once-",
    )  # fmt: skip
    topics.produce("once-lines", _records(lines))
    with topics.follow("once-counts") as told:

        def wait(program: Program, share: float) -> None:
            program.wait_for(
                "words are counted", lambda: told.count() >= counted.total() * share / (KILLS + 1)
            )

        for number in range(KILLS):
            with Program(command, log) as program:
                if number < LEADERS:
                    wait(program, number + 0.5)
                    _kill_leader(servers, topics, number % PARTITIONS)
                wait(program, number + 1)
                program.kill()
        with Program(command, log) as program:
            wait(program, KILLS + 1)
            assert program.end_input() == 0
        assert told.count() == counted.total()
        counts: dict[bytes | None, list[int]] = {}
        for record in told.records:
            counts.setdefault(record.key, []).append(int(record.value or b"0"))
    assert counts == {word.encode(): list(range(1, n + 1)) for word, n in counted.items()}
    print(
        f"{ONCE_LINES} records, {KILLS} times killed, {LEADERS} leaders: {counted.total()} counts"
    )


def _kill_leader(servers: ReplicaSet | None, topics: Topics, partition: int) -> None:
    leader = topics.leader("once-counts", partition)
    if servers is not None and leader > 0:
        servers.kill(leader)
        servers.start(leader)
        servers.wait_serving(leader)


def _records(lines: Sequence[str]) -> list[Record]:
    return [Record(b"%d" % number, line.encode()) for number, line in enumerate(lines)]


def _events(rng: random.Random, side: str) -> list[Record]:
    return [
        Record(
            b"k%d" % rng.randrange(KEYS),
            f"{side}{number}".encode(),
            timestamp_ms=FIRST_MS + rng.randrange(SPAN_MS),
        )
        for number in range(PAIRS)
    ]


def _joined(left: Sequence[Record], right: Sequence[Record]) -> list[tuple[bytes, bytes]]:
    """Return the expected pairs of the join, each once."""
    return sorted(
        (one.key or b"", (one.value or b"") + b"|" + (other.value or b""))
        for one in left
        for other in right
        if one.key == other.key and abs(one.timestamp_ms - other.timestamp_ms) <= WINDOW_MS
    )


def _counts(topics: Topics) -> Counter[str]:
    """Return the last count of each word."""
    found = last_values(topics.read("counts"))
    return Counter({(key or b"").decode(): int(value or b"0") for key, value in found.items()})


def _is_counted(topics: Topics, counted: Counter[str]) -> bool:
    return _counts(topics) == counted


def _is_joined(topics: Topics, pairs: int) -> bool:
    return len(topics.read("joined")) >= pairs
