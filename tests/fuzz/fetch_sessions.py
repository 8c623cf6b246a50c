"""Fuzzer of Fetch sessions (KIP-227): consumers of a model beside a world that changes.

    python -m tests.fuzz.fetch_sessions [--count N] [--seed S]

Each round is a server with a fake host, and consumers that keep their session as Kafka's client
does. Requests are full or incremental, with and without topic ids, of few partitions or of
more than are done at once. Meanwhile records and transactions come, batches move to disk, logs
are trimmed, leaders change, topics are deleted and created again, sessions are evicted, a thief
uses somebody's session, and clients leave in the middle of a request or of an answer.

Checked with each answer: a full one has each partition once, an incremental one only those of the
session; records begin at the position that was asked for, have no gap and are the log's; under
READ_COMMITTED none is unstable, and aborted ones are listed. At the end the world is quiet: then
each consumer gets the rest within a few requests, a waiting request is answered by the next record,
and of consumers that have left nothing is kept but their sessions, which are bounded.

A failure names the seed of its round.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.unit.kafka import fake_host
from tests.unit.kafka.fake_host import Client, FakeStream, World
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka import parts
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.handlers import fetch as handler
from vdl.kafka.partitions.fetch_answer import FetchAnswer
from vdl.kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from vdl.records.batch import BatchFields, Record, build_batch, read_header, split_batches
from vdl.state import commands
from vdl.state.aborted import AbortedRange

FETCH = 1
Name = str | bytes
Place = tuple[str, int]
"""Topic and partition."""
VERSIONS = (7, 11, 12, 13, 16, 18)
BY_ID_FROM = 13
EPOCH_MAX = (1 << 31) - 1
SLOTS = 5
ACTS = 120
ROUNDS_TO_END = 60
"""Requests after which a consumer has read all there is, once the world is quiet."""
LATE_MS = 3_000
"""Most time of an answer beyond its `max_wait_ms`."""
_LOST = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
         ErrorCode.UNKNOWN_TOPIC_ID)  # fmt: skip


class SlowClock(fake_host.NodeClock):
    """Clock whose timers leave time between two pieces, in which the world changes."""

    def call_later(self, delay_ns: int, fn: Any) -> Any:
        return super().call_later(max(delay_ns, MS // 4), fn)


@contextmanager
def pieces(at_once: int, first: int, most: int) -> Iterator[None]:
    """Let requests of more than `at_once` partitions be done in pieces of `first` to `most`."""
    before = handler.AT_ONCE, handler.FIRST_ELEMENTS, parts.PART_ELEMENTS
    clock, fake_host.NodeClock = fake_host.NodeClock, SlowClock
    handler.AT_ONCE, handler.FIRST_ELEMENTS, parts.PART_ELEMENTS = at_once, first, most
    try:
        yield
    finally:
        handler.AT_ONCE, handler.FIRST_ELEMENTS, parts.PART_ELEMENTS = before
        fake_host.NodeClock = clock


class Consumer:
    """One consumer, with the state that Kafka's client keeps (`FetchSessionHandler`)."""

    def __init__(self, scene: Scene, number: int) -> None:
        rng = scene.rng
        self.scene = scene
        self.peer = (f"10.0.{number % 3}.1", 5_000 + number)
        self.version = rng.choice(VERSIONS)
        self.is_committed = rng.random() < 0.3
        self.client: Client = scene.world.client(self.peer)
        self.positions: dict[Place, int] = {}
        self.ids: dict[str, bytes] = {}
        self.id = 0
        self.epoch = 0
        self.sent: dict[tuple[Name, int], int] = {}
        """Position of each partition of the session, as its server has it."""
        self.named: dict[tuple[Name, int], Place] = {}
        self.part_bytes = 0
        self.streams: dict[tuple[Name, int], FakeStream | None] = {}
        """Logs of its partitions when they were asked for."""
        self.asked: FetchRequest | None = None
        """The request under way."""
        self.asked_ms = 0.0
        self.answers = 0

    # --- requests --------------------------------------------------------------------------------
    def ask(self, *, wait_ms: int, min_bytes: int = 1, max_bytes: int = 1 << 20,
            part_bytes: int = 1 << 20) -> None:  # fmt: skip
        assert self.asked is None
        wanted: dict[tuple[Name, int], int] = {}
        self.named = {}
        for place, position in self.positions.items():
            name = self._name(place[0])
            if name is not None:
                wanted[name, place[1]] = position
                self.named[name, place[1]] = place
        if not wanted:
            return
        is_full = self.epoch in (0, -1)
        is_all = is_full or part_bytes != self.part_bytes
        changed = [key for key in wanted if is_all or self.sent.get(key) != wanted[key]]
        gone = [] if is_full else [key for key in self.sent if key not in wanted]
        if not is_full and self.scene.rng.random() < 0.1:
            # partitions that the session does not have
            gone += [(name, 1 << 20) for name, _ in list(wanted)[:1]]
        self.sent, self.part_bytes = wanted, part_bytes
        self.streams = {key: self.scene.stream(place) for key, place in self.named.items()}
        topics: dict[Name, FetchTopic] = {}
        for name, index in changed:
            topic = topics.setdefault(name, self._topic(FetchTopic, name))
            topic.partitions.append(
                FetchPartition(
                    index, fetch_offset=wanted[name, index], partition_max_bytes=part_bytes
                )
            )
        forgotten: dict[Name, ForgottenTopic] = {}
        for name, index in gone:
            entry = forgotten.setdefault(name, self._topic(ForgottenTopic, name))
            entry.partitions.append(index)
        self.asked = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=int(self.is_committed),
            session_id=self.id,
            session_epoch=self.epoch,
            topics=[*topics.values()],
            forgotten_topics_data=[*forgotten.values()],
        )
        self.asked_ms = self.scene.now_ms
        self.client.request(FETCH, self.version, self.asked)

    def _topic(self, kind: Any, name: Name) -> Any:
        return kind(topic=name) if isinstance(name, str) else kind(topic_id=name)

    def _name(self, topic: str) -> Name | None:
        if self.version < BY_ID_FROM:
            return topic
        if topic not in self.ids:  # as a client learns it from Metadata
            found = self.scene.world.host.catalog.topics.get(topic)
            if found is None:
                return None
            self.ids[topic] = found.topic_id
        return self.ids[topic]

    # --- answers ---------------------------------------------------------------------------------
    def take(self) -> None:
        """Check the answer, if there is one."""
        if self.asked is None:
            return
        late_ms = self.scene.now_ms - self.asked_ms - self.asked.max_wait_ms
        if not self.client.received:
            assert not self.client.closed, "the connection ended"
            assert late_ms < LATE_MS or self.scene.is_stuck, f"no answer for {late_ms} ms"
            return
        (answer,) = self.client.answers()
        asked, self.asked = self.asked, None
        self.answers += 1
        self._check(asked, answer)

    def _check(self, asked: FetchRequest, answer: FetchResponse) -> None:
        if answer.error_code:
            assert asked.session_epoch not in (0, -1), answer.error_code
            assert answer.error_code in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ), answer.error_code  # fmt: skip
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.id = 0
            self.epoch = 0  # a session that may be left is closed by the next request
            return
        is_full = asked.session_epoch in (0, -1)
        keys = [
            (topic.topic if self.version < BY_ID_FROM else topic.topic_id, part.partition_index)
            for topic in answer.responses
            for part in topic.partitions
        ]
        assert len({*keys}) == len(keys), "a partition was answered twice"
        names = [topic.topic or topic.topic_id for topic in answer.responses]
        assert len({*names}) == len(names), "a topic was answered twice"
        if is_full:
            assert {*keys} == {*self.sent}, "a full answer has each partition"
        else:
            assert {*keys} <= {*self.sent}, "a partition was not asked for"
            assert answer.session_id in (0, self.id), answer.session_id
        for topic in answer.responses:
            name: Name = topic.topic if self.version < BY_ID_FROM else topic.topic_id
            for part in topic.partitions:
                self._check_partition((name, part.partition_index), part)
        if not answer.session_id:
            self.id = self.epoch = 0
        else:
            self.id = answer.session_id
            self.epoch = 1 if is_full else self.epoch + 1 if self.epoch < EPOCH_MAX else 1

    def _check_partition(self, key: tuple[Name, int], part: PartitionData) -> None:
        place, position = self.named[key], self.sent[key]
        stream = self.scene.stream(place)
        if part.error_code:
            assert not part.records
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.positions[place] = 0 if stream is None else stream.log_start_offset
            else:
                assert part.error_code in _LOST, part.error_code
            self.ids.pop(place[0], None)
            return
        before = self.streams.get(key)
        found = [one for one in (stream, before) if one is not None]
        assert found, "of a topic that never was"
        got = split_batches(memoryview(part.records or b""))
        assert sum(map(len, got)) == len(part.records or b"")
        if not got:
            return
        # A topic may be deleted while a request is done in pieces.
        if before is not None and before is not stream and self._is_of(before, position, got):
            stream = before
        assert stream is not None, "of a topic that is gone"
        assert self._is_of(stream, position, got), (
            f"{len(got)} batches from {position} on are others"
        )
        end = stream.last_stable_offset if self.is_committed else stream.high_watermark
        assert part.high_watermark <= stream.high_watermark
        listed = {(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()}
        last = [one for one in stream.batches if one.end_offset > position][len(got) - 1]
        assert last.end_offset <= end, "a record is not committed, or not stable"
        for one in self.scene.aborted.get(id(stream), ()) if self.is_committed else ():
            if one.last_offset >= position and one.first_offset < last.end_offset:
                pair = one.producer_id, one.first_offset
                assert pair in listed, "aborted records look committed"
        if self.positions.get(place) == position:  # else it was moved meanwhile
            self.positions[place] = last.end_offset

    def _is_of(self, stream: FakeStream, position: int, got: list[memoryview]) -> bool:
        batches = [one.data for one in stream.batches if one.end_offset > position]
        return batches[: len(got)] == [bytes(data) for data in got]

    # --- connections -----------------------------------------------------------------------------
    def reconnect(self) -> None:
        """Connect again. Kafka's client then closes its session, if a request was under way."""
        self.client.session.connection_lost()
        self.client = self.scene.world.client(self.peer)
        if self.asked is not None:
            self.asked = None
            self.epoch = 0

    def is_behind(self) -> bool:
        """Return True if there are records that it can read and has not."""
        for place, position in self.positions.items():
            stream = self.scene.stream(place)
            if stream is not None and position < (
                stream.last_stable_offset if self.is_committed else stream.high_watermark
            ):
                return True
        return False


class Scene:
    """One round."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        is_small = rng.random() < 0.8
        self.sizes = {"few": 3, "some": 12, "many": 40} if is_small else {"few": 3, "many": 300}
        self.limits = (8, 2, rng.choice((3, 7))) if is_small else (128, 32, 250)
        with pieces(*self.limits):
            options = KafkaOptions(
                fetch_sessions_max=rng.choice((2, SLOTS, 1_000)),
                fetch_session_partitions_max=rng.choice((60, 100_000)),
                answer_memory_max=rng.choice((1 << 20, 256 << 20)),
                auto_create_topics=False,
            )
            self.world = World(options)
        self.aborted: dict[int, list[AbortedRange]] = {}
        """All aborted transactions of a log, also those that it has forgotten."""
        self.is_stuck = False
        """True while some log waits for the test."""
        self._written = 0
        for name, count in self.sizes.items():
            self.world.topic(name, partitions=count)
        self.consumers = [Consumer(self, number) for number in range(rng.randrange(1, 5))]
        for consumer in self.consumers:
            self.choose(consumer)
        self.left: list[Client] = []

    @property
    def now_ms(self) -> float:
        return self.world.time.now_ns / MS

    def stream(self, place: Place) -> FakeStream | None:
        topic = self.world.host.catalog.topics.get(place[0])
        if topic is None:
            return None
        return self.world.host.streams.get(topic.partitions[place[1]])

    def run(self, ms: float) -> None:
        """Let time pass, and let consumers take their answers soon after they come."""
        for _ in range(max(1, int(ms * 2))):
            self.world.run(0.5)
            for consumer in self.consumers:
                consumer.take()

    def play(self) -> None:
        with pieces(*self.limits):
            acts = (
                *[self.ask] * 8, *[self.write] * 5, *[self.pause] * 4, self.move, self.choose_anew,
                self.trim, self.to_disk, self.lead, self.transact, self.recreate, self.reconnect,
                self.leave, self.steal, self.stop_serving, self.revive,
            )  # fmt: skip
            for _ in range(self.rng.randrange(ACTS)):
                self.rng.choice(acts)()
            self.settle()
            self.read_all()
            self.wake_all()
            self.end()

    # --- acts ------------------------------------------------------------------------------------
    def ask(self) -> None:
        rng, consumer = self.rng, self.rng.choice(self.consumers)
        if consumer.asked is None:
            consumer.ask(
                wait_ms=rng.choice((0, 0, 5, 50, 500)),
                min_bytes=rng.choice((0, 1, 1, 1_000, 1 << 20)),
                max_bytes=rng.choice((1, 300, 1 << 20)),
                part_bytes=rng.choice((1, 300, 1 << 20)),
            )
            consumer.take()

    def write(self) -> None:
        for _ in range(self.rng.choice((1, 1, 3, 40))):
            stream = self.stream(self.place())
            if stream is not None and stream.is_leader:
                self.append(stream)

    def append(self, stream: FakeStream, *, commit: bool = True) -> None:
        self._written += 1
        records = [
            Record(value=b"%d-%d" % (self._written, number), timestamp=1)
            for number in range(self.rng.choice((1, 1, 4)))
        ]
        data = memoryview(build_batch(records, BatchFields()))
        stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
        if commit:
            stream.commit()

    def place(self) -> Place:
        name = self.rng.choice([*self.sizes])
        return name, self.rng.randrange(self.sizes[name])

    def pause(self) -> None:
        self.run(self.rng.choice((0.3, 1, 3, 20)))

    def choose(self, consumer: Consumer) -> None:
        """Choose the partitions of a consumer."""
        rng = self.rng
        names = rng.sample([*self.sizes], rng.randrange(1, len(self.sizes) + 1))
        chosen: dict[Place, int] = {}
        for name in names:
            count = rng.choice((1, self.sizes[name] // 2 + 1, self.sizes[name]))
            for index in rng.sample(range(self.sizes[name]), count):
                place = name, index
                stream = self.stream(place)
                start = 0 if stream is None else stream.log_start_offset
                chosen[place] = consumer.positions.get(place, start)
        consumer.positions = chosen

    def choose_anew(self) -> None:
        self.choose(self.rng.choice(self.consumers))

    def move(self) -> None:
        """Seek."""
        consumer = self.rng.choice(self.consumers)
        for place in self.rng.sample([*consumer.positions], min(3, len(consumer.positions))):
            stream = self.stream(place)
            if stream is not None:
                consumer.positions[place] = self.rng.choice(
                    (0, stream.log_start_offset, stream.high_watermark, stream.high_watermark + 5)
                )

    def trim(self) -> None:
        stream = self.stream(self.place())
        if stream is not None and stream.is_leader and stream.batches:
            one = self.rng.choice(stream.batches)
            if one.end_offset <= stream.last_stable_offset:
                stream.delete_records(one.end_offset, deadline_ns=0, done=lambda _: None)
                kept = [r for r in stream.aborted_ranges if r.last_offset >= one.end_offset]
                stream.aborted_age += len(stream.aborted_ranges) - len(kept)
                stream.aborted_ranges = kept

    def to_disk(self) -> None:
        stream = self.stream(self.place())
        if stream is not None:
            stream.on_disk_below = stream.high_watermark
            stream.is_cold_read_at_once = self.rng.random() < 0.3

    def transact(self) -> None:
        """Begin or end the transaction of a partition."""
        stream = self.stream(self.place())
        if stream is None or not stream.is_leader:
            return
        if stream.open_offset is None:
            stream.open_offset = stream.high_watermark
            self.append(stream)
            return
        if self.rng.random() < 0.5:
            self.append(stream, commit=False)  # the marker
            self._written += 1
            found = AbortedRange(
                self._written, stream.open_offset, stream.batches[-1].base_offset, 0
            )
            self.aborted.setdefault(id(stream), []).append(found)
            stream.aborted_ranges = [*stream.aborted_ranges, found]
            stream.commit()
        stream.end_open()

    def lead(self) -> None:
        """Let a partition lose its leader, or lead again."""
        stream = self.stream(self.place())
        if stream is None:
            return
        if stream.is_leader:
            stream.lose_leadership()
            # another leader has removed what was not committed
            stream.batches = [b for b in stream.batches if b.end_offset <= stream.high_watermark]
        else:
            self.follow_up(stream)

    def follow_up(self, stream: FakeStream) -> None:
        stream.is_leader = True
        stream.is_proved = self.rng.random() < 0.5
        stream.term += 1
        stream.start_serving()
        stream.wake(lambda wait: True)

    def stop_serving(self) -> None:
        """Let a leader wait for its first entry."""
        stream = self.stream(self.place())
        if stream is not None and stream.is_leader and self.rng.random() < 0.3:
            stream.serving, self.is_stuck = False, True

    def revive(self) -> None:
        for stream in list(self.world.host.streams.values()):
            if stream.is_leader and not stream.serving:
                stream.start_serving()
        if self.is_stuck:
            self.is_stuck = False
            for consumer in self.consumers:
                consumer.asked_ms = self.now_ms

    def recreate(self) -> None:
        """Delete a topic, or create it again."""
        name = self.rng.choice([*self.sizes])
        if name in self.world.host.catalog.topics and self.rng.random() < 0.5:
            self.world.host.apply(commands.DeleteTopics([name]))
            self.run(self.rng.choice((0, 2)))
        if name not in self.world.host.catalog.topics:
            self.world.topic(name, partitions=self.sizes[name])

    def reconnect(self) -> None:
        self.rng.choice(self.consumers).reconnect()

    def leave(self) -> None:
        """Let a consumer leave for good, and another one come."""
        number = self.rng.randrange(len(self.consumers))
        self.consumers[number].client.session.connection_lost()
        self.consumers[number] = Consumer(self, self.rng.randrange(100))
        self.choose(self.consumers[number])

    def steal(self) -> None:
        """Let somebody use the session of a consumer."""
        rng, victim = self.rng, self.rng.choice(self.consumers)
        thief = self.world.client(("10.9.9.9", 1))
        version = rng.choice((victim.version, rng.choice(VERSIONS)))
        topics, forgotten = [], []
        for name, index in rng.sample(
            [*victim.sent], min(len(victim.sent), rng.choice((0, 2, 30)))
        ):
            kind = "topic" if isinstance(name, str) else "topic_id"
            if rng.random() < 0.5:
                asked = FetchPartition(index, fetch_offset=0, partition_max_bytes=100)
                topics.append(FetchTopic(**{kind: name}, partitions=[asked]))
            else:
                forgotten.append(ForgottenTopic(**{kind: name}, partitions=[index]))
        request = FetchRequest(
            max_wait_ms=rng.choice((0, 50)),
            max_bytes=1 << 20,
            min_bytes=1,
            session_id=victim.id,
            session_epoch=max(-1, victim.epoch + rng.choice((-1, 0, 1, 1))),
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        if victim.asked is not None and victim.epoch in (0, -1):
            return  # it has no session yet
        thief.request(FETCH, version, request)
        self.run(rng.choice((0.1, 2, 100)))
        thief.session.connection_lost()

    # --- the end ---------------------------------------------------------------------------------
    def settle(self) -> None:
        """Let everything be led and exist, and end transactions."""
        for name in self.sizes:
            if name not in self.world.host.catalog.topics:
                self.world.topic(name, partitions=self.sizes[name])
        for stream in self.world.host.streams.values():
            if not stream.is_leader:
                self.follow_up(stream)
            if stream.open_offset is not None:
                stream.end_open()
        self.revive()
        self.answered()

    def answered(self) -> None:
        """Wait for all answers."""
        began_ms = self.now_ms
        while any(consumer.asked is not None for consumer in self.consumers):
            self.run(5)
            assert self.now_ms < began_ms + 4 * LATE_MS, "no answer in a quiet world"

    def read_all(self) -> None:
        for _ in range(ROUNDS_TO_END):
            for consumer in self.consumers:
                consumer.ask(wait_ms=10)
            self.answered()
            if not any(consumer.is_behind() for consumer in self.consumers):
                return
        raise AssertionError("a consumer does not get what there is")

    def wake_all(self) -> None:
        """Let a record come to each partition in turn of a consumer that waits."""
        for consumer in self.consumers:
            for place in self.rng.sample([*consumer.positions], min(6, len(consumer.positions))):
                for _ in range(ROUNDS_TO_END):  # until it has what came for others
                    consumer.ask(wait_ms=60_000)
                    self.run(40)
                    if consumer.asked is not None:
                        break
                assert consumer.asked is not None, "it is answered without news"
                stream = self.stream(place)
                assert stream is not None
                self.append(stream)
                self.run(30)
                assert consumer.asked is None, f"{place}: no answer after a record"
                assert consumer.positions[place] == stream.high_watermark, place

    def end(self) -> None:
        """Let everybody leave. Nothing but sessions is kept, and of those nothing once they end."""
        context, host = self.world.context, self.world.host
        for consumer in self.consumers:
            if self.rng.random() < 0.5:
                consumer.ask(wait_ms=60_000)
                self.world.run(self.rng.choice((0.1, 1, 10)))
            consumer.client.session.connection_lost()
        self.world.run(50)
        sessions = context.fetch_sessions
        held = [*sessions._sessions.values()]
        assert len(held) <= context.config.fetch_sessions_max
        assert sum(len(one.partitions) for one in held) == sessions.partitions
        assert sessions.partitions <= context.config.fetch_session_partitions_max
        assert all(one.reader is None for one in held), "a request is kept with its session"
        for one in held:
            for target in one.partitions.values():
                kept = [target.cold, target.found, target.answer]
                assert kept == [None] * 3, "batches are kept with a session"
        waits = sum(sum(1 for w in s.waits if w.callback) for s in host.streams.values())
        assert waits <= sessions.partitions + sessions._unclean, (waits, sessions.partitions)
        for one in held:
            sessions.remove(one.id)
        sessions.clean(1 << 30)
        assert sessions.partitions == 0
        assert not any(w.callback for s in host.streams.values() for w in s.waits)
        assert context.requests.used == context.answers.used == 0
        assert context.requests.waiting == context.answers.waiting == 0
        turn = self.world.frontend.turn
        assert not len(turn.work_budget), "a client that has left waits for its turn"
        assert not len(turn.record_budget)
        assert not len(turn.send_budget)


KEPT = (handler._Poll, handler._Target, FetchAnswer)


def play(seed: int) -> None:
    """Play one round. Its objects must be free at its end without a collection."""
    scene = Scene(seed)
    scene.play()
    for consumer in scene.consumers:
        del consumer.client
    kept = [one for one in gc.get_objects() if type(one) in KEPT]
    assert not kept, f"{len(kept)} wait for the collector, the first a {type(kept[0]).__name__}"


def run(count: int, seed: int, told: Callable[[str], None] = lambda _: None) -> None:
    """Play `count` rounds. Raises AssertionError for the first that fails."""
    gc.collect()
    gc.freeze()  # only objects of the rounds are looked at
    gc.disable()
    began = time.monotonic()
    try:
        for number in range(seed, seed + count):
            try:
                play(number)
            except Exception as error:
                raise AssertionError(f"seed {number}: {error!r}") from error
            gc.collect()
            if number % 500 == 0:
                told(f"{number - seed} rounds, {time.monotonic() - began:.0f} s")
    finally:
        gc.enable()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    run(arguments.count, arguments.seed, told=print)
    print(f"{arguments.count} rounds of Fetch sessions: nothing lost, twice, deaf or kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
