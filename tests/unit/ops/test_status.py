"""What `vdl status` makes of bad addresses, and how it shows good ones."""

import pytest

from vdl.commands.app import run_app
from vdl.commands.cluster_status import ClusterStatus, Server
from vdl.commands.status import _print_tables


@pytest.mark.parametrize(
    ("bootstrap", "code", "words"),
    [
        ("", 2, "at least one address"),
        (" , ", 2, "at least one address"),
        ("nowhere", 2, "expected"),
        ("a..b:1", 1, "a..b:1: is no host name"),
        ("x" * 64 + ":1", 1, "is no host name"),
        ("127.0.0.1:1", 1, "127.0.0.1:1: "),
    ],
)
def test_bootstrap_that_leads_nowhere_is_an_error_in_words(bootstrap, code, words, capsys):
    """Neither a traceback nor silence."""
    assert run_app(["status", "--bootstrap", bootstrap]) == code
    assert words in capsys.readouterr().err


def test_server_on_an_ipv6_address_is_shown(capsys):
    """Brackets are part of it, not of a table's markup."""
    servers = [Server(1, "[::1]:9092", rack="[b]"), Server(2, "[::2]:9092", problem="[x] closed")]
    _print_tables(ClusterStatus("c[lust]er", servers), show_all=False)
    shown = capsys.readouterr().out
    for text in ("[::1]:9092", "[::2]:9092", "[b]", "[x] closed", "c[lust]er"):
        assert text in shown
