"""HTTP server that receives OpenLineage events, and can be made to misbehave."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Collected:
    """Received events and requests, and the server's behaviour.

    `events`: in order of arrival; `requests`: paths and authorization headers; `status`: of
    responses; no response is sent until `answers` is set.
    """

    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    status: int = 201
    answers: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def lineage_server() -> Iterator[Collected]:
    found = Collected()
    found.answers.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append((self.path, self.headers.get("Authorization", "")))
            found.answers.wait(60)
            if found.status < 300:
                found.events.append(json.loads(body))
            with contextlib.suppress(OSError):
                self.send_response(found.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
