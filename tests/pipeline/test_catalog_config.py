"""Settings that a REST catalog cannot change: a server sends others, and they are not taken."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

from vdl.pipeline.iceberg_catalog import catalog_of

WANTED = {"scan-planning-mode": "server", "snapshot-loading-mode": "refs"}
ENDPOINTS = [
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan",
]


class Configuration(BaseHTTPRequestHandler):
    """Server that wants to plan scans itself, and has the endpoints to do it."""

    def do_GET(self) -> None:
        answer = json.dumps({"defaults": {}, "overrides": WANTED, "endpoints": ENDPOINTS}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Configuration)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("given", [{}, WANTED])
def test_scans_are_planned_here_whatever_the_server_prefers(
    address: str, given: dict[str, str]
) -> None:
    """A server's plan leaves out what was deleted by keys that a batch does not have."""
    catalog = catalog_of({"type": "rest", "uri": address, **given})
    assert not catalog.supports_server_side_planning()
    assert catalog.properties["snapshot-loading-mode"] == "all"
