"""`vdl status`: errors for bad addresses, display of good ones."""

import socket

import pytest

from vdl.commands.app import run_app
from vdl.commands.checks.cluster_status import ClusterStatus, Partition, Replica, Server, Topic
from vdl.commands.status import PARTITIONS_MAX, PROBLEMS_MAX, Shown, print_tables
from vdl.kafka.client import KafkaClient, Unreachable


@pytest.mark.parametrize(
    ("bootstrap", "code", "words"),
    [
        ("", 2, "--bootstrap is empty"),
        (",", 2, "one or more addresses"),
        ("nowhere", 2, "expected"),
        ("a..b:1", 2, "'a..b' is not a host name"),
        ("x" * 64 + ":1", 2, "is not a host name"),
        ("127.0.0.1:1", 1, "127.0.0.1:1: "),
    ],
)
def test_bootstrap_that_leads_nowhere_is_an_error_in_words(bootstrap, code, words, capsys):
    """The error is a readable message, not a traceback."""
    assert run_app(["status", "--bootstrap", bootstrap]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_server_whose_address_is_no_host_name_is_unreachable(host):
    """A cluster may advertise such a server; Python cannot even resolve it."""
    with pytest.raises(Unreachable, match="is not a host name"), KafkaClient(host, 1):
        pass


def test_server_on_an_ipv6_address_is_shown(capsys):
    """Brackets are part of the address, not markup of a table."""
    servers = [Server(1, "[::1]:9092", rack="[b]"), Server(2, "[::2]:9092", problem="[x] closed")]
    print_tables(ClusterStatus("c[lust]er", servers), Shown())
    shown = capsys.readouterr().out
    for text in ("[::1]:9092", "[::2]:9092", "[b]", "[x] closed", "c[lust]er"):
        assert text in shown


def cluster_of(count, *, ill=(), notes=()):
    """Return a cluster with one topic of `count` partitions; those in `ill` have no leader."""
    partitions = [
        Partition(f"orders-{index}", -1 if index in ill else 1, partition=index)
        for index in range(count)
    ]
    servers = [Server(1, "a:9092", notes=list(notes)), Server(2, "b:9092")]
    return ClusterStatus("c", servers, [Topic("orders", partitions)])


@pytest.mark.parametrize(
    ("count", "shown", "expected"),
    [
        (PARTITIONS_MAX, Shown(), PARTITIONS_MAX),
        (PARTITIONS_MAX + 1, Shown(), 2),
        (PARTITIONS_MAX + 1, Shown(show_all=True), PARTITIONS_MAX + 1),
        (PARTITIONS_MAX + 1, Shown(topics=frozenset({"orders"})), PARTITIONS_MAX + 1),
        (PARTITIONS_MAX + 1, Shown(topics=frozenset({"others"})), 0),
        (5, Shown(only_wrong=True), 2),
    ],
)
def test_of_many_partitions_those_are_shown_that_are_not_well(count, shown, expected, capsys):
    print_tables(cluster_of(count, ill={0, 3}), shown)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"cluster c: 2 servers, 2 up; 1 topic; {count} partitions, 2 unhealthy"
    assert sum(line.startswith("orders-") for line in lines) == expected


@pytest.mark.parametrize(
    ("note", "state", "line", "is_healthy"),
    [
        ("disk_full: no room", "disk_full", "disk_full: server 1: no room", False),
        ("no_leader: orders-0 has no leader", "up", "no_leader: orders-0 has no leader", False),
        ("replica_moved: replicas of orders-0 are being moved", "up", "replica_moved: ", True),
        ("of another version", "up", "of another version: ", False),
    ],
)
def test_what_is_wrong_is_said_once_and_decides_the_exit_code(
    note, state, line, is_healthy, capsys
):
    """A server is up although partitions that it knows of have problems."""
    cluster = cluster_of(1, notes=[note, note])
    print_tables(cluster, Shown())
    lines = capsys.readouterr().out.splitlines()
    assert state in lines[2].split()
    assert sum(one.startswith(line) for one in lines) == 1
    assert cluster.is_healthy is is_healthy


def test_server_that_is_cut_off_does_not_make_partitions_leaderless(capsys):
    """Partitions are led if any server reports that it leads them.

    A server that is cut off knows of no leaders.
    """
    cluster = cluster_of(2, notes=["no_leader: orders-0 has no leader"])
    cluster.topics[0].partitions[0].replicas = [Replica(2, "leader"), Replica(1, "follower")]
    print_tables(cluster, Shown())
    assert "no_leader" not in capsys.readouterr().out
    assert cluster.is_healthy


def test_unhealthy_partitions_of_a_large_cluster_are_some(capsys):
    """An ended server makes thousands unhealthy; --wrong shows each."""
    cluster = cluster_of(PARTITIONS_MAX + 5, ill=range(1, PARTITIONS_MAX + 5))
    print_tables(cluster, Shown())
    shown = capsys.readouterr().out
    assert shown.count("orders-") == PARTITIONS_MAX
    assert "and 4 more partitions unhealthy; --wrong shows each" in shown
    assert "1 partition is healthy; --all shows each" in shown
    print_tables(cluster, Shown(only_wrong=True))
    assert capsys.readouterr().out.count("orders-") == PARTITIONS_MAX + 4


def test_of_many_problems_of_a_kind_the_first_are_shown(capsys):
    notes = [f"no_leader: orders-{index} has no leader" for index in range(PROBLEMS_MAX + 4)]
    print_tables(cluster_of(1, notes=notes), Shown())
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("no_leader"))
    assert line.endswith("; and 4 more")


def test_status_of_servers_that_are_all_down_names_each_once(capsys):
    """Servers with the same cause are listed once, with their addresses."""
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))  # reserved, but not listening
        places = [f"127.0.0.1:{free.getsockname()[1]}" for free in (one, other)]
        assert run_app(["status", "--bootstrap", ",".join(places)]) == 1
    down = f"no server answers: {', '.join(sorted(places))}: Connection refused"
    assert down in capsys.readouterr().err


def test_status_with_a_file_that_is_no_clients_properties_is_refused(tmp_path, capsys):
    """A file without client properties is refused: it would be read as one without encryption."""
    file = tmp_path / "vdl.toml"
    file.write_text("# a server\n[server]\nid = 1\n")
    assert run_app(["status", "--bootstrap", "127.0.0.1:1", "--config", str(file)]) == 2
    assert "'[server]' is not a client property of the form name=value" in capsys.readouterr().err


def test_racks_of_several_servers_have_a_line_each(capsys):
    """A host that runs several servers is seen as one; racks of one server add nothing."""
    servers = [
        Server(number, f"a:{number}", rack=f"h{number // 3}", replicas=10, leading=number)
        for number in range(1, 6)
    ]
    servers[3].problem = "Connection refused"
    print_tables(ClusterStatus("c", servers), Shown())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["rack", "servers", "up", "replicas", "leading"],
        ["h0", "2", "of", "2", "20", "3"],
        ["h1", "2", "of", "3", "20", "8"],
    ]
    print_tables(ClusterStatus("c", servers[1:3]), Shown())
    assert "servers up" not in capsys.readouterr().out
