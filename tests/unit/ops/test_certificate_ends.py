"""A server reports the coming expiry of its certificates."""

from dataclasses import replace

import pytest

from rpc.tls_context import TlsFiles
from vdl.commands.servers.certificates import open_authority, write_server
from vdl.config.settings import Config
from vdl.server.server_tls import ACCEPTING, DIALING, ServerTls


def server_with(folder, days):
    authority = open_authority(folder, "c")
    file = write_server(folder, authority, "c", 1, (), days)
    files = TlsFiles(file, file.with_suffix(".key"), folder / "ca.pem", "c")
    tls = ServerTls(replace(Config(), tls=files))
    tls.load()
    return tls


@pytest.mark.parametrize(("days", "names"), [(30, set()), (6, {ACCEPTING, DIALING})])
def test_certificate_that_ends_within_a_week_is_told_of_each_port_that_shows_it(
    tmp_path, days, names
):
    tls = server_with(tmp_path, days)
    assert tls.ending().keys() == names
    assert tls.refresh().ending_certificates.keys() == names
    assert not tls.refresh().ending_certificates  # once a day


def test_certificate_that_is_renewed_is_told_no_more(tmp_path):
    """The new file is loaded while the server runs."""
    tls = server_with(tmp_path, 0)
    assert tls.ending()
    write_server(tmp_path, open_authority(tmp_path, "c"), "c", 1, (), 30)
    assert not tls.refresh().problems
    assert not tls.ending()
