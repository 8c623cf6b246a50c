"""A person with a browser at the console of one server: pages, and what they asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from tests.hangs import HANG_SECONDS

HANG_MS = HANG_SECONDS * 1000
PHONE = {"width": 360, "height": 740}
SCREEN = {"width": 1280, "height": 800}
HACKED = "window.hacked === undefined ? 'no' : 'yes'"


class Visitor:
    """One page of a browser. Fails at the end if a script failed, the content security policy was
    broken, or a request left the console's origin."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.origin = origin
        self.requests: list[str] = []
        """URLs of all requests, blocked ones too."""
        self.mistakes: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(HANG_MS)
        self.page.on("request", self._note_request)
        self.page.on("pageerror", lambda error: self.mistakes.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.mistakes.append(f"dialog: {dialog.message}"))
        self.page.on("console", self._note_line)

    def _note_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _note_line(self, line: Any) -> None:
        # A refused or failed answer is a line of the browser's own, and part of some tests.
        if line.type in {"error", "warning"} and "Failed to load resource" not in line.text:
            self.mistakes.append(f"{line.type}: {line.text}")

    def open(self, *path: str, **params: object) -> None:
        """Go to a page and wait until its data is shown, or an error in its place."""
        self.page.goto(f"{self.origin}/console/{address(*path, **params)}")
        self.wait_shown()

    def wait_shown(self) -> None:
        """Wait until the page has data or an error."""
        expect(self.page.locator("main .loading")).to_have_count(0, timeout=HANG_MS)
        expect(self.page.locator("main:not([aria-busy]) h1, main [role=alert]")).not_to_have_count(
            0, timeout=HANG_MS
        )

    def wait_for(self, text: str) -> None:
        """Wait until the page shows a text."""
        expect(self.page.locator("body")).to_contain_text(text, timeout=HANG_MS)

    def text(self) -> str:
        """Return the text of the page, without the menu."""
        return self.page.locator("main").inner_text()

    def rows(self) -> list[str]:
        """Return the text of each row of the page's tables."""
        return self.page.locator("main tbody tr").all_inner_texts()

    def api_requests(self, name: str) -> list[str]:
        """Return the URLs of the questions of this name, in order."""
        start = f"{self.origin}/console/api/{name}"
        return [url for url in self.requests if url.partition("?")[0] == start]

    def evaluate(self, module: str, call: str, *arguments: object) -> Any:
        """Return the result of a function of a module of the console."""
        listed = ", ".join(json.dumps(one) for one in arguments)
        return self.page.evaluate(f"import('./{module}').then((m) => m.{call}({listed}))")

    def check(self) -> None:
        """Assert that nothing went wrong, and that no request left the console."""
        assert self.mistakes == []
        assert self.page.evaluate(HACKED) == "no"
        strangers = {origin_of(url) for url in self.requests} - {self.origin}
        assert strangers == set()

    def check_width(self) -> None:
        """Assert that the page needs no scrolling to the side."""
        excess = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert self.page.evaluate(excess) == 0, self.page.url


@contextmanager
def visiting(
    browser: Browser, origin: str, *, is_phone: bool = False, is_dark: bool = False
) -> Iterator[Visitor]:
    """Yield a visitor with a browser profile of their own."""
    context = browser.new_context(
        viewport=PHONE if is_phone else SCREEN,
        color_scheme="dark" if is_dark else "light",
        reduced_motion="reduce",
    )
    try:
        visitor = Visitor(context, origin)
        yield visitor
        visitor.check()
    finally:
        context.close()


def address(*path: str, **params: object) -> str:
    """Return the fragment of a page."""
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in params.items())
    return f"#/{'/'.join(quote(part, safe='') for part in path)}{'?' if query else ''}{query}"


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
