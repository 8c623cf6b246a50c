"""The configuration file: every key is checked, every error names file, key and expectation."""

from pathlib import Path

import pytest

from rpc.tls_context import LinkEncryption
from vdl.config.settings import (
    KEYS,
    ConfigError,
    Endpoint,
    load_config,
    parse_config,
    unreachable_options,
)
from vdl.config.values import Address, parse_address, parse_duration_ms, parse_size


def parse(text, folder=Path("/etc/vdl")):
    return parse_config(text, source="vdl.toml", folder=folder)


def problem_of(text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return caught.value


def test_config_empty_file_is_a_single_complete_server():
    """A server without any setting is a cluster of its own on loopback."""
    config = parse("")
    assert config.seeds == {}
    assert config.peer is None
    assert [listener.port for listener in config.listeners] == [9092]
    assert config.listeners[0].host == "127.0.0.1"
    assert config.data_dir == Path("/etc/vdl/data")


def test_config_three_hosts_reads_every_section():
    """Seeds, listeners, endpoints and options of every layer are set."""
    config = parse("""
        [server]
        id = 2
        data_dir = "/var/lib/vdl"
        rack = "b"
        [cluster.seeds]
        1 = "vdl-1:19092"
        2 = "vdl-2:19092"
        3 = "[fd00::3]:19092"
        [peer]
        listen = "0.0.0.0:19092"
        [[listeners]]
        name = "INSIDE"
        listen = "10.0.0.2:9092"
        [[listeners]]
        max_connections = 500
        name = "OUTSIDE"
        listen = "0.0.0.0:9093"
        advertise = "kafka.example.org:9093"
        [http]
        listen = "off"
        [kafka]
        num.partitions = 6
        auto.create.topics.enable = false
        group.min.session.timeout.ms = "1s"
        log.segment.bytes = "16MiB"
        [raft]
        election_timeout = "800ms"
        [storage]
        cache_bytes = "256MiB"
        [log]
        format = "json"
    """)
    assert config.server_id == 2
    assert config.data_dir == Path("/var/lib/vdl")
    assert config.rack == "b"
    assert config.seeds == {
        1: Address("vdl-1", 19092), 2: Address("vdl-2", 19092), 3: Address("fd00::3", 19092)
    }  # fmt: skip
    assert config.peer == Endpoint(Address("0.0.0.0", 19092), Address("vdl-2", 19092))
    assert [listener.name for listener in config.listeners] == ["INSIDE", "OUTSIDE"]
    assert config.listeners[1].advertised_host == "kafka.example.org"
    assert [listener.connections_max for listener in config.listeners] == [0, 500]
    assert config.http is None
    assert config.kafka.num_partitions == 6
    assert config.kafka.auto_create_topics is False
    assert config.kafka.group_min_session_timeout_ms == 1_000
    assert config.kafka.segment_bytes == config.store.segment_bytes == 16 << 20
    assert config.host.election_ticks == 80
    assert config.store.cache_bytes_max == 256 << 20
    assert config.log.format == "json"


def test_config_peer_without_section_listens_at_its_seed_address():
    """A member of the seed list needs no [peer] section of its own."""
    config = parse('[cluster.seeds]\n1 = "127.0.0.1:19092"\n')
    assert config.peer is not None
    assert config.peer.listen == Address("127.0.0.1", 19092)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[kafka]\nnum.partitons = 3", "kafka.num.partitons", "did you mean kafka.num.partitions"),
        ("[sever]\nid = 3", "sever.id", "did you mean server.id"),
        ("[server]\nid = 0", "server.id", "an integer from 1 to 32767, found 0"),
        ("[server]\nid = true", "server.id", "an integer"),
        ('[server]\nid = "1"', "server.id", "an integer"),
        ("[server]\nid = [1]", "server.id", "expected one value, found a list"),
        ("[storage]\ncache_bytes = 1.5", "storage.cache_bytes", '"64MiB"'),
        (
            '[cluster]\nreplicas_per_server = 100000\n[storage]\njournal_file_bytes = "1MiB"\n'
            'journal_first_file_bytes = "1MiB"\n[kafka]\nmessage.max.bytes = "64KiB"',
            "storage.journal_file_bytes", "replicas_per_server",
        ),
        ('[storage]\ncache_bytes = "1MiB"', "storage.cache_bytes", "from 8MiB"),
        ('[raft]\nelection_timeout = "605ms"', "raft.election_timeout", "a multiple of 10ms"),
        ("[raft]\nelection_timeout = 600", "raft.election_timeout", "a duration"),
        (f'[raft]\nelection_timeout = "{"9" * 400}s"', "raft.election_timeout", "a duration"),
        (f'[storage]\ncache_bytes = "{"9" * 5_000}B"', "storage.cache_bytes", "a size"),
        (f"[server]\nid = 0x{'f' * 5_000}", "server.id", "found a number of more than 64 bits"),
        (f"[server]\nid = {'9' * 5_000}", "", "not valid TOML"),
        ('[raft]\nheartbeat_interval = "500ms"', "raft.election_timeout", "three times"),
        ('[raft]\ninflight_bytes = "512KiB"', "raft.inflight_bytes", "raft.message_bytes"),
        ('[raft]\nmessage_bytes = "64MiB"', "raft.message_bytes", "to 16MiB"),
        ('[http]\nlisten = "nowhere"', "http.listen", 'or "off"'),
        ('[log]\nformat = "xml"', "log.format", '"logfmt" or "json"'),
        ('[[listeners]]\nlisten = "0.0.0.0:9092"', "listeners[0].advertise", "required"),
        ('[[listeners]]\nlisten = "[0::0]:9092"', "listeners[0].advertise", "required"),
        ('[[listeners]]\nlisten = "127.0.0.1:0"', "listeners[0].advertise", "required"),
        ('[[listeners]]\nlisten = "a:1"\nadvertise = "b:0"', "listeners[0].advertise", "to b:0"),
        ('[admin]\nlisten = "127.0.0.1:0"', "admin.advertise", "required"),
        ('[[listeners]]\nname = "X"', "listeners[0].listen", "an address"),
        (f"[[listeners]]\nlisten = [0x{'f' * 5_000}]", "listeners[0].listen", "found a list"),
        ('[[listeners]]\nlisen = "a:1"', "listeners[0].lisen", "did you mean listen"),
        ('[[listeners]]\nname = "x"\nlisten = "a:1"', "listeners[0].name", "capital letters"),
        (
            f'[[listeners]]\nname = 0x{"f" * 5_000}\nlisten = "a:1"',
            "listeners[0].name",
            "a number of more than 64 bits",
        ),
        (
            '[[listeners]]\nlisten = "a:1"\nmax_connections = 0',
            "listeners[0].max_connections",
            "expected 1 to",
        ),
        ("listeners = []", "listeners", "one or more"),
        ('[cluster.seeds]\nx = "a:1"', "cluster.seeds.x", "a server id"),
        ('[cluster.seeds]\n1 = "a"', "cluster.seeds.1", "an address"),
        ('[cluster.seeds]\n1 = "a..b:1"', "cluster.seeds.1", "'a..b' is not a host name"),
        ('[cluster.seeds]\n1 = "a:0"', "cluster.seeds.1", "other servers can connect to"),
        ('[cluster.seeds]\n1 = "0.0.0.0:1"', "cluster.seeds.1", "other servers can connect to"),
        ('[cluster.seeds]\n1 = "a:1"\n01 = "b:1"', "cluster.seeds.01", "a server id"),
        ('[cluster.seeds]\n"\u0663" = "a:1"', "cluster.seeds.\u0663", "a server id"),
        (f'[cluster.seeds]\n{"9" * 5_000} = "a:1"', f"cluster.seeds.{'9' * 5_000}", "a server id"),
        ('[cluster.seeds]\n1 = "a:1"\n2 = "a:1"', "cluster.seeds", "same address"),
        ('[server]\nid = 4\n[cluster.seeds]\n1 = "a:1"', "peer.listen", "required"),
        ('[peer]\nlisten = "0.0.0.0:1"', "peer.advertise", "required"),
        ('[[listeners]]\nname = "ADMIN"\nlisten = "127.0.0.1:1"', "listeners[0].name", "reserved"),
        ('[http]\nlisten = "127.0.0.1:9092"', "http.listen", "already used by listeners[0].listen"),
        ('[kafka]\nmessage.max.bytes = "64MiB"', "kafka.message.max.bytes", "16MiB"),
        ('[clock]\nhold = "4999ms"', "clock.hold", 'from "5000ms"'),
        ("[kafka\n", "", "not valid TOML"),
    ],
)  # fmt: skip
def test_config_wrong_value_names_file_key_and_expectation(text, key, words):
    """A mistake is refused with all information needed to correct it."""
    error = problem_of(text)
    assert error.key == key
    assert words in error.problem
    assert str(error).startswith("vdl.toml: ")


def test_config_port_of_the_system_s_choice_may_be_bound_where_another_is_told():
    """The system may choose the port of the metrics, and of a listener that advertises another."""
    config = parse("""
        [[listeners]]
        listen = "127.0.0.1:0"
        advertise = "kafka.example.org:9092"
        [http]
        listen = "127.0.0.1:0"
    """)
    assert (config.listeners[0].port, config.listeners[0].advertised_port) == (0, 9092)


def test_config_missing_file_is_named(tmp_path):
    """A file that is not there is an error with its path, not a default."""
    path = tmp_path / "vdl.toml"
    with pytest.raises(ConfigError, match="No such file"):
        load_config(path)


def test_config_file_relative_data_dir_is_beside_it(tmp_path):
    """A folder with its configuration can be moved as one."""
    (tmp_path / "vdl.toml").write_text('[server]\ndata_dir = "store"\n')
    assert load_config(tmp_path / "vdl.toml").data_dir == tmp_path / "store"


def test_config_every_option_of_every_layer_has_a_key():
    """Every limit in code can be set: no option class has a field without a key."""
    assert unreachable_options() == []


def test_config_keys_have_distinct_targets():
    """No two keys set the same field."""
    targets = [key.target for key in KEYS.values()]
    assert len(set(targets)) == len(targets)


@pytest.mark.parametrize(
    ("raw", "size"), [(0, 0), (17, 17), ("17", 17), ("1KB", 1000), ("1 KiB", 1024), ("2GiB", 2**31)]
)
def test_size_with_unit_is_bytes(raw, size):
    """Decimal and binary units have their usual meaning."""
    assert parse_size(raw) == size


@pytest.mark.parametrize("raw", [-1, True, 1.5, "", "KiB", "1kib", "1 KiBs", "-1KiB"])
def test_size_without_meaning_is_refused(raw):
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="a size"):
        parse_size(raw)


@pytest.mark.parametrize(
    ("raw", "duration_ms"), [("1ms", 1), ("1.5s", 1500), ("2 m", 120_000), ("1h", 3_600_000)]
)
def test_duration_with_unit_is_milliseconds(raw, duration_ms):
    """A duration always has a unit."""
    assert parse_duration_ms(raw) == duration_ms


@pytest.mark.parametrize("raw", [5, "5", "-5s", "5 parsecs", ""])
def test_duration_without_unit_is_refused(raw):
    """A bare number could be seconds or milliseconds."""
    with pytest.raises(ValueError, match="a duration"):
        parse_duration_ms(raw)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:9092",
        "[::1]:9092",
        "[fe80::1%eth0]:9092",
        "host.example:0",
        "a_b-c.:1",
        "b\u00fccher.example:1",
    ],
)
def test_address_round_trip_is_the_same_text(text):
    """A parsed address is printed as it was written."""
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "host",
        "host:",
        ":9092",
        "host:99999",
        "::1:9092",
        "a b:1",
        1,
        "a..b:1",
        ".a:1",
        "a/b:1",
        "a,b:1",
        "a\0b:1",
        "[1.2.3.4]:1",
        "[:::]:1",
        "host:\u0663",
        f"{'a' * 64}.internal:1",
        f"{'a.' * 200}:1",
    ],
)
def test_address_without_host_or_port_is_refused(raw):
    """Both parts are needed; an IPv6 address needs its brackets."""
    with pytest.raises(ValueError, match="an address"):
        parse_address(raw)


CERTIFIED = '[tls]\ncertificate = "s.pem"\nkey = "s.key"\nca = "ca.pem"\n'


def test_config_links_are_all_encrypted_unless_the_file_says_otherwise():
    """Off by default: accepting links without encryption is an operator's decision."""
    assert parse(CERTIFIED).tls.links is LinkEncryption.REQUIRED
    for links in LinkEncryption:
        assert parse(f'{CERTIFIED}links = "{links.value}"').tls.links is links


def test_config_links_without_encryption_need_a_certificate_and_open_listeners():
    """Links without encryption need a certificate, and listeners without authentication.

    The certificate is needed for a later migration. Where clients have to authenticate, the peer
    port must not be open.
    """
    problem = problem_of('[tls]\nlinks = "accepted"')
    assert (problem.key, "tls.ca" in str(problem)) == ("tls.links", True)
    listener = '[[listeners]]\nname = "SSL"\nlisten = "127.0.0.1:9092"\n'
    assert parse(listener + CERTIFIED).tls.secures_links
    problem = problem_of(f'{listener}{CERTIFIED}links = "preferred"')
    assert (problem.key, "SSL" in str(problem)) == ("tls.links", True)
    assert problem_of(f'{CERTIFIED}links = "maybe"').key == "tls.links"


def test_lists_of_revoked_certificates_are_those_of_the_server_or_of_the_listener() -> None:
    """A listener that requests no certificates has none; "off" omits the server's."""
    lists = CERTIFIED + 'crl = "crl.pem"\n'
    config = parse(lists)
    assert config.tls.crl is not None
    assert config.tls.between_servers().crl == config.tls.crl
    for more, expected in (
        ("", None),
        ('client_auth = "required"\n', "crl.pem"),
        ('client_auth = "requested"\ncrl = "own.pem"\n', "own.pem"),
        ('client_auth = "required"\ncrl = "off"\n', None),
    ):
        table = f'[[listeners]]\nname = "SSL"\nlisten = "127.0.0.1:1"\n{more}'
        (listener,) = parse(lists + table).listeners
        assert (None if listener.tls.crl is None else listener.tls.crl.name) == expected
    table = '[[listeners]]\nname = "SSL"\nlisten = "127.0.0.1:1"\ncrl = "own.pem"\n'
    assert problem_of(lists + table).key == "listeners[0].crl"
    assert problem_of('[tls]\ncrl = "crl.pem"').key == "tls.crl"
