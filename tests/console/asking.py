"""A browser without a screen: requests to the console as its pages send them, and crude ones."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from tests.hangs import HANG_SECONDS

API = "/console/api/"


@dataclass(slots=True)
class Answer:
    """An answer. `json`: its body, if it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """The kind of an error."""
        found: str = self.json["error"]["kind"]
        return found


@dataclass(slots=True)
class Browser:
    """One browser at the console of one server, with its cookies."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Answer:
        """Send a request with the headers of a page; None in `headers` leaves one out."""
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        own: dict[str, str | None] = {
            "X-VDL-Console": "1",
            "Sec-Fetch-Site": "same-origin",
            "Host": self.host,
            "Cookie": cookie or None,
        }
        if body is not None:
            own |= {"Content-Type": "application/json", "Origin": f"http://{self.host}"}
        sent = {name: value for name, value in {**own, **(headers or {})}.items() if value}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if body is not None:
                sent.setdefault("Content-Length", str(len(body)))
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            found = connection.getresponse()
            answer = Answer(found.status, dict(found.getheaders()), found.read())
        finally:
            connection.close()
        for name, morsel in SimpleCookie(answer.headers.get("Set-Cookie", "")).items():
            self.cookies[name] = morsel.value
        return answer

    def get(self, name: str, /, **parameters: object) -> Answer:
        """Ask a page of the API. `from_` is `from`, which Python reserves."""
        query = urlencode({key.rstrip("_"): value for key, value in parameters.items()})
        return self.send("GET", f"{API}{name}{'?' if query else ''}{query}")

    def page(self, page: str, /, **parameters: object) -> Any:
        """Return a page of the API, which must be there."""
        answer = self.get(page, **parameters)
        assert answer.status == 200, (page, answer.status, answer.body)
        return answer.json

    def post(self, page: str, body: object, **headers: str | None) -> Answer:
        """Post JSON. Dashes in names of headers are underscores here."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", f"{API}{page}", json.dumps(body).encode(), named)

    def log_in(self, user: str, password: str) -> Answer:
        """Log in."""
        return self.post("login", {"user": user, "password": password})


def browser(port: int) -> Browser:
    """Return a browser that has a session, on a set without logins."""
    found = Browser(port)
    assert found.page("session")["state"] == "in"
    return found


def raw(port: int, data: bytes) -> bytes:
    """Send bytes and return all that comes back until the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as connection:
        connection.sendall(data)
        received = b""
        try:
            while piece := connection.recv(65_536):
                received += piece
        except ConnectionResetError:
            pass
        return received
