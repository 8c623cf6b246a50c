"""Directories that differ from their peers' marks: swapped, copied, cloned, rolled back."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rpc.hello import VERSION_OF_BOOTS, Hello, RejectReason
from rpc.peer import FrameType
from segments.memory import MemoryImage, MemoryStore
from tests.unit.logstream.conftest import SERVERS, Cluster, DelayWorkers, Node
from vdl.logstream.host import Host
from vdl.logstream.options import TICK_NS


def image_of(node: Node) -> MemoryImage:
    """Return a copy of a server's present disk."""
    assert node.store is not None
    return copy.deepcopy(node.store.image)


def restore(node: Node, image: MemoryImage) -> None:
    """Stop a server, if it runs, and start it from an older copy."""
    if not node.clock.stopped:
        node.crash()
    assert node.store is not None
    node.store.image = copy.deepcopy(image)
    node.start()


def errors(node: Node, event: str) -> int:
    return sum(name == event for name, _ in node.log.errors)


def fill(cluster: Cluster, group_id: int, count: int) -> list[int]:
    """Append records. Return the offsets that were acknowledged."""
    done: list[int] = []
    for _ in range(count):
        fates = cluster.append(cluster.leader(group_id), b"x" * 100)
        cluster.run(5)
        done += [fate.base_offset for fate in fates if fate.error == 0]
    return done


def replica_numbers(node: Node, group_id: int) -> list[int]:
    """Return the numbers of a group's replicas in a server's directory that are not lost."""
    assert node.store is not None
    return [
        log.replica_number
        for log in node.store.logs.values()
        if log.group_id == group_id and not log.lost
    ]


def records(cluster: Cluster, group_id: int) -> int:
    """Return the number of offsets that the leader has committed."""
    log = cluster.leader(group_id).group.log
    return int(log.offset_after(log.commit_index))


@pytest.fixture
def topic(cluster: Cluster) -> int:
    group_id = cluster.create_topic()
    fill(cluster, group_id, 5)
    cluster.run(500)
    return group_id


# --- ownership ------------------------------------------------------------------------------------
def test_swapped_directories_are_refused_by_whoever_is_linked(cluster: Cluster, topic: int) -> None:
    """The identity need not name a server: no server may act for another's replicas."""
    for n in (2, 3):
        cluster.nodes[n].crash()
    images = image_of(cluster.nodes[2]), image_of(cluster.nodes[3])
    for n, image in ((3, images[0]), (2, images[1])):
        restore(cluster.nodes[n], image)
    cluster.run(5_000)
    host = cluster.nodes[1].host
    assert host.alive_servers() == [1]
    for n in (2, 3):
        refused = host.refusal(cluster.nodes[n].hello())
        assert refused is not None
        assert refused[0] is RejectReason.FOREIGN_DIRECTORY
        assert f"of server {5 - n}, not of server {n}" in refused[1]
    for n, image in ((2, images[0]), (3, images[1])):
        restore(cluster.nodes[n], image)
    cluster.run(5_000)
    assert records(cluster, topic) == 5


def test_directory_that_was_copied_for_another_server_counts_once(
    cluster: Cluster, topic: int
) -> None:
    """The copy is refused, and the rest of the cluster goes on."""
    image = image_of(cluster.nodes[2])
    restore(cluster.nodes[3], image)
    cluster.run(3_000)
    assert cluster.nodes[1].host.alive_servers() == [1, 2]
    assert cluster.nodes[2].host.alive_servers() == [1, 2]
    assert fill(cluster, topic, 3) == [5, 6, 7]


# --- two processes --------------------------------------------------------------------------------
def clone_of(cluster: Cluster, server_id: int, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Start another process of a server, in a copy of its directory; no peer can connect to it."""
    image = image_of(cluster.nodes[server_id])
    clone = object.__new__(Node)
    clone.cluster, clone.id, clone.directories, clone.starts = cluster, server_id, 0, 1
    clone.store = MemoryStore(DelayWorkers(cluster.nodes[server_id].clock), image=image)
    clone.store.image = image
    image.boots.pop()  # the last boot only served to hold it
    with monkeypatch.context() as patched:
        patched.setattr(cluster.network, "listen", lambda *_, **__: None)
        clone.start()
    return clone


def test_second_process_in_a_copy_is_refused_and_the_first_one_is_not(
    cluster: Cluster, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No link alternates between the two, and all acknowledgements are of the first one."""
    ups: Counter[int] = Counter()
    clone = clone_of(cluster, 3, monkeypatch)
    for n in (1, 2):
        host = cluster.nodes[n].host
        monkeypatch.setattr(host, "link_up", noted(host.link_up, ups), raising=False)
    assert fill(cluster, topic, 40) == list(range(5, 45))
    cluster.run(5_000)
    assert ups[clone.incarnation] == 0
    assert clone.host.alive_servers() == [3]
    assert cluster.nodes[1].host.alive_servers() == [1, 2, 3]
    assert not any(group.node.is_leader for group in clone.host.groups.values())
    assert {(RejectReason.SECOND_PROCESS, True)} == {
        (reason, by_peer)
        for _, reason, text, by_peer in clone.rejected
        if "is already running, at " in text
    }


def noted(up: Callable[[Any], None], ups: Counter[int]) -> Callable[[Any], None]:
    def note(hello: Any) -> None:
        ups[hello.incarnation] += 1
        up(hello)

    return note


def test_restarted_process_takes_the_place_of_the_former_at_once(
    cluster: Cluster, topic: int
) -> None:
    """Its directory lists the start that the others remember."""
    for _ in range(3):
        cluster.nodes[3].crash()
        cluster.nodes[3].start()
        cluster.run(1_000)
        assert cluster.nodes[1].host.alive_servers() == [1, 2, 3]
        assert replica_numbers(cluster.nodes[3], topic) == [1]
        assert fill(cluster, topic, 1)
    for node in cluster.nodes.values():
        assert not errors(node, "directory_from_the_past")
        assert not errors(node, "peer_from_the_past")


def test_copy_that_comes_when_the_first_process_is_gone_is_of_the_past(
    cluster: Cluster, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one acknowledged entries after the copy was made."""
    image = image_of(cluster.nodes[3])
    fill(cluster, topic, 20)
    cluster.run(300)
    restore(cluster.nodes[3], image)
    cluster.run(500)
    assert errors(cluster.nodes[3], "directory_from_the_past") == 1


# --- old copies -----------------------------------------------------------------------------------
@pytest.mark.parametrize("victim", SERVERS)
def test_server_from_an_older_copy_loses_its_replicas_and_gets_others(
    cluster: Cluster, topic: int, victim: int
) -> None:
    """For each server: all acknowledged records are there in the end, on three intact replicas."""
    image = image_of(cluster.nodes[victim])
    done = fill(cluster, topic, 50)
    cluster.run(500)
    restore(cluster.nodes[victim], image)
    cluster.run(300)
    node = cluster.nodes[victim]
    assert errors(node, "directory_from_the_past") == 1
    assert node.host.groups == {}
    cluster.run(10_000)
    assert replica_numbers(node, topic) == [2]
    assert node.store is not None
    assert node.store.directory_id != image.directory_id
    assert records(cluster, topic) == done[-1] + 1
    assert fill(cluster, topic, 1) == [done[-1] + 1]
    assert node.host.groups[topic].log.next_offset == done[-1] + 2
    assert errors(node, "directory_from_the_past") == 1


def test_server_that_is_of_the_past_stays_so_over_a_restart(cluster: Cluster, topic: int) -> None:
    """It may be started again before its replicas are replaced, and alone."""
    image = image_of(cluster.nodes[3])
    fill(cluster, topic, 20)
    cluster.run(300)
    restore(cluster.nodes[3], image)
    cluster.run(100)
    for n in (1, 2):
        cluster.nodes[n].crash()
    for _ in range(2):
        cluster.nodes[3].crash()
        cluster.nodes[3].start()
        cluster.run(2_000)
        assert cluster.nodes[3].host.groups == {}
        assert cluster.nodes[3].host.lost_groups
    for n in (1, 2):
        cluster.nodes[n].start()
    cluster.run(10_000)
    assert replica_numbers(cluster.nodes[3], topic) == [2]
    assert records(cluster, topic) == 25


def test_marks_are_found_again_when_all_servers_were_restarted(
    cluster: Cluster, topic: int
) -> None:
    """They are written to disk periodically: no peer needs to have run throughout."""
    image = image_of(cluster.nodes[3])
    fill(cluster, topic, 20)
    cluster.run(6_000)
    for node in cluster.nodes.values():
        node.crash()
    cluster.run(1_000)
    assert cluster.nodes[3].store is not None
    cluster.nodes[3].store.image = image
    for node in cluster.nodes.values():
        node.start()
    cluster.run(2_000)
    assert errors(cluster.nodes[3], "directory_from_the_past") == 1
    cluster.run(10_000)
    assert records(cluster, topic) == 25


def test_set_that_was_restored_as_a_whole_goes_on(cluster: Cluster, topic: int) -> None:
    """The backup of all directories was made while all servers were stopped: no mark is newer."""
    for node in cluster.nodes.values():
        node.host.close()
    cluster.run(50)
    for node in cluster.nodes.values():
        node.crash()
    images = {n: image_of(node) for n, node in cluster.nodes.items()}
    for node in cluster.nodes.values():
        node.start()
    cluster.run(1_000)
    fill(cluster, topic, 10)
    cluster.run(6_000)
    for node in cluster.nodes.values():
        node.crash()
    for n, node in cluster.nodes.items():
        node.store.image = images[n]  # type: ignore[union-attr]
        node.start()
    cluster.run(3_000)
    assert not any(errors(node, "directory_from_the_past") for node in cluster.nodes.values())
    assert records(cluster, topic) == 5


def test_two_of_three_from_older_copies_serve_nothing(cluster: Cluster, topic: int) -> None:
    """The third has marks of both. It has all acknowledged records, and is not outvoted."""
    images = {n: image_of(cluster.nodes[n]) for n in (2, 3)}
    fill(cluster, topic, 20)
    cluster.run(500)
    for n, image in images.items():
        restore(cluster.nodes[n], image)
    cluster.run(10_000)
    for n in (2, 3):
        assert errors(cluster.nodes[n], "directory_from_the_past") == 1
        assert errors(cluster.nodes[n], "replica_lost")
        assert cluster.nodes[n].host.stream(topic) is None
    stream = cluster.nodes[1].host.stream(topic)
    assert stream is not None
    assert not stream.serving  # two lost replicas are no majority for it
    assert stream.group.log.next_offset == 25


def test_server_waits_for_who_may_remember_and_not_for_who_is_gone(
    cluster: Cluster, topic: int
) -> None:
    """An older copy and a server that was away start before the third, which has everything."""
    image = image_of(cluster.nodes[2])
    cluster.nodes[3].crash()
    done = fill(cluster, topic, 20)
    cluster.run(6_000)
    cluster.nodes[1].crash()
    restore(cluster.nodes[2], image)
    cluster.nodes[3].start()
    cluster.run(50)
    assert cluster.nodes[2].host.groups == {}  # it has not been compared with the first one
    cluster.nodes[1].start()
    cluster.run(300)
    assert errors(cluster.nodes[2], "directory_from_the_past") == 1
    cluster.run(10_000)
    assert records(cluster, topic) == done[-1] + 1
    cluster.nodes[1].crash()
    cluster.nodes[2].crash()
    cluster.nodes[2].start()
    cluster.run(cluster.options.election_ticks * TICK_NS / 1_000_000 + 10)
    assert topic in cluster.nodes[2].host.groups  # the first one may be gone for good


def diverge(cluster: Cluster, topic: int) -> None:
    """Have server 2 lose records 5 to 24, and elect server 3, which was away.

    Both continue with other records. Then server 1 returns, which has the lost ones.
    """
    image = image_of(cluster.nodes[2])
    cluster.nodes[3].crash()
    assert fill(cluster, topic, 20) == list(range(5, 25))
    cluster.run(6_000)
    cluster.nodes[1].crash()
    restore(cluster.nodes[2], image)
    cluster.nodes[3].start()
    cluster.run(5_000)
    assert fill(cluster, topic, 3) == [5, 6, 7]  # no running server could know
    cluster.nodes[1].start()


def test_divergence_that_an_old_copy_made_is_named_and_served_no_more(
    cluster: Cluster, topic: int
) -> None:
    """Each side has entries that once had a majority.

    The affected offsets are logged, and neither of the two goes on: the copy is no majority for the
    one, nor the one for the other.
    """
    diverge(cluster, topic)
    cluster.run(10_000)
    assert errors(cluster.nodes[2], "directory_from_the_past") == 1
    assert errors(cluster.nodes[1], "peer_contradicts") or errors(cluster.nodes[3], "log_diverged")
    for node in cluster.nodes.values():
        stream = node.host.stream(topic)
        assert stream is None or not stream.serving
    group = cluster.nodes[1].host.groups[topic]
    assert group.log.offset_after(group.log.commit_index) == 25
    assert ("log_diverged", "events-0") in cluster.nodes[3].log.errors
    found = [fields for event, fields in cluster.nodes[3].log.fields if event == "log_diverged"]
    of_topic = [fields for fields in found if fields["partition"] == "events-0"]
    assert 5 <= of_topic[0]["first_offset"] <= 8  # of the first entry that was compared
    assert of_topic[0]["end_offset"] == 25


def test_old_copy_is_found_out_however_often_it_was_started_alone(
    cluster: Cluster, topic: int
) -> None:
    """By then its journal is longer than the mark."""
    image = image_of(cluster.nodes[3])
    fill(cluster, topic, 5)
    cluster.run(300)
    for node in cluster.nodes.values():
        node.crash()
    cluster.nodes[3].store.image = image  # type: ignore[union-attr]
    for _ in range(5):
        cluster.nodes[3].start()
        cluster.run(30_000)
        cluster.nodes[3].crash()
    for node in cluster.nodes.values():
        node.start()
    cluster.run(1_500)
    # The others were killed before they noted the marks of the last seconds.
    told = errors(cluster.nodes[3], "directory_from_the_past")
    cluster.run(10_000)
    assert records(cluster, topic) == 10
    assert told in (0, 1)


def test_wiped_directory_is_a_new_one_and_not_of_the_past(cluster: Cluster, topic: int) -> None:
    """A mark belongs to a directory."""
    fill(cluster, topic, 5)
    cluster.run(300)
    cluster.nodes[3].wipe()
    cluster.nodes[3].start()
    cluster.run(10_000)
    assert not errors(cluster.nodes[3], "directory_from_the_past")
    assert replica_numbers(cluster.nodes[3], topic) == [2]


def test_server_of_an_earlier_version_is_neither_waited_for_nor_sent_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown frame would end the link; and the server has no marks."""
    hello = Node.hello

    def of_before(node: Node) -> Hello:
        said = hello(node)
        return replace(said, version=VERSION_OF_BOOTS - 1, info=b"") if node.id == 3 else said

    monkeypatch.setattr(Node, "hello", of_before)
    cluster = Cluster()
    kinds: set[FrameType] = set()
    heard = cluster.nodes[3].host.frame

    def noted_frame(server_id: int, kind: FrameType, payload: memoryview) -> None:
        kinds.add(kind)
        heard(server_id, kind, payload)

    monkeypatch.setattr(cluster.nodes[3].host, "frame", noted_frame, raising=False)
    topic = cluster.create_topic()
    assert fill(cluster, topic, 5) == [0, 1, 2, 3, 4]
    cluster.nodes[2].crash()
    cluster.nodes[2].start()
    cluster.run(100)
    assert cluster.nodes[2].host.groups
    cluster.run(2_000)
    assert FrameType.RAFT in kinds
    assert not kinds & {FrameType.JOURNAL, FrameType.REMEMBERED, FrameType.DISSENT}
    cluster.nodes[3].crash()
    cluster.nodes[3].start()
    cluster.run(2_000)
    assert not any(errors(node, "peer_from_the_past") for node in cluster.nodes.values())


def test_list_of_starts_in_a_form_of_later_versions_says_nothing(
    cluster: Cluster, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgraded server does not count as a restored copy because its peers have older marks.

    Its messages count, and it judges itself by the marks it receives.
    """
    hello = Node.hello
    later = b"\x02" + bytes(24)
    cluster.nodes[3].crash()
    monkeypatch.setattr(
        Node, "hello", lambda n: replace(hello(n), info=later) if n.id == 3 else hello(n)
    )
    cluster.nodes[3].start()
    cluster.run(2_000)
    assert not any(errors(node, "peer_from_the_past") for node in cluster.nodes.values())
    cluster.nodes[2].crash()
    cluster.run(3_000)
    assert fill(cluster, topic, 3) == [5, 6, 7]


def test_replicas_that_were_made_after_the_copy_are_not_made_again(
    cluster: Cluster, topic: int
) -> None:
    """The copy does not know them; under the same number they would have forgotten their votes."""
    image = image_of(cluster.nodes[3])
    later = cluster.create_topic("later")
    fill(cluster, later, 5)
    cluster.run(500)
    restore(cluster.nodes[3], image)
    cluster.run(12_000)
    for group_id in (topic, later):
        assert replica_numbers(cluster.nodes[3], group_id) == [2]
        assert records(cluster, group_id) == 5


# --- a copy from before there was anything --------------------------------------------------------
def empty_images(monkeypatch: pytest.MonkeyPatch) -> dict[int, MemoryImage]:
    """Return, by server, a copy of its directory from its first start, before it had logs."""
    images: dict[int, MemoryImage] = {}
    begin = Host.start

    def start(host: Host, front: Any) -> None:
        images.setdefault(host.server_id, copy.deepcopy(host.store.image))  # type: ignore[attr-defined]
        begin(host, front)

    monkeypatch.setattr(Host, "start", start)
    return images


def logs_here(node: Node) -> list[tuple[int, int]]:
    """Return (group id, replica number) of each log in a server's directory."""
    assert node.store is not None
    return sorted((log.group_id, log.replica_number) for log in node.store.logs.values())


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not-noted"])
def test_copy_from_before_there_were_logs_is_compared_before_it_takes_part(
    monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    """By its own bytes it has nothing to forget, but it acknowledged entries all the same.

    `is_noted`: True if the copy lists the start in which it was made.
    """
    images = empty_images(monkeypatch)
    cluster = Cluster()
    topic = cluster.create_topic()
    cluster.nodes[2].crash()
    done = fill(cluster, topic, 20)
    cluster.run(500)
    image = images[3]
    if not is_noted:
        image.boots.clear()
    restore(cluster.nodes[3], image)
    cluster.nodes[2].start()
    made = set()
    for _ in range(600):
        cluster.run(1)
        made.update(logs_here(cluster.nodes[3]))
    assert errors(cluster.nodes[3], "directory_from_the_past") == 1
    assert {number for _, number in made} <= {2}
    cluster.run(10_000)
    assert replica_numbers(cluster.nodes[3], topic) == [2]
    assert records(cluster, topic) == done[-1] + 1


def test_server_that_waits_makes_no_replica_that_a_peer_tells_it_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer has the server's catalog number, but no mark; the one with the mark is away."""
    images = empty_images(monkeypatch)
    cluster = Cluster()
    topic = cluster.create_topic()
    fill(cluster, topic, 20)
    cluster.run(6_000)
    cluster.nodes[1].crash()
    cluster.nodes[2].crash()
    assert cluster.nodes[2].store is not None
    cluster.nodes[2].store.image.peers_note = b""
    cluster.nodes[3].crash()
    cluster.nodes[2].start()
    cluster.run(1_000)
    restore(cluster.nodes[3], images[3])
    cluster.run(400)
    assert logs_here(cluster.nodes[3]) == []
    cluster.nodes[1].start()
    cluster.run(100)
    assert errors(cluster.nodes[3], "directory_from_the_past") == 1
    cluster.run(15_000)
    assert replica_numbers(cluster.nodes[3], topic) == [2]
    assert records(cluster, topic) == 20
