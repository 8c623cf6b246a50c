"""What `vdl status` makes of bad addresses, and how it shows good ones."""

import pytest

from vdl.commands.app import run_app
from vdl.commands.cluster_status import ClusterStatus, Server
from vdl.commands.status import _print_tables
from vdl.kafka.client import KafkaClient, Unreachable


@pytest.mark.parametrize(
    ("bootstrap", "code", "words"),
    [
        ("", 2, "at least one address"),
        (" , ", 2, "at least one address"),
        ("nowhere", 2, "expected"),
        ("a..b:1", 2, "'a..b' is no host name"),
        ("x" * 64 + ":1", 2, "is no host name"),
        ("127.0.0.1:1", 1, "127.0.0.1:1: "),
    ],
)
def test_bootstrap_that_leads_nowhere_is_an_error_in_words(bootstrap, code, words, capsys):
    """Neither a traceback nor silence."""
    assert run_app(["status", "--bootstrap", bootstrap]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_server_whose_address_is_no_host_name_is_unreachable(host):
    """A cluster may tell of such a server; Python cannot even ask for it."""
    with pytest.raises(Unreachable, match="is no host name"), KafkaClient(host, 1):
        pass


def test_server_on_an_ipv6_address_is_shown(capsys):
    """Brackets are part of it, not of a table's markup."""
    servers = [Server(1, "[::1]:9092", rack="[b]"), Server(2, "[::2]:9092", problem="[x] closed")]
    _print_tables(ClusterStatus("c[lust]er", servers), show_all=False)
    shown = capsys.readouterr().out
    for text in ("[::1]:9092", "[::2]:9092", "[b]", "[x] closed", "c[lust]er"):
        assert text in shown
