"""Pages while a server of the set does not run."""

import pytest
from playwright.sync_api import expect

from tests.console.browser.console_set import client_settings, console_set, fill, make_topics
from tests.console.browser.visitor import HANG_MS, visiting

pytestmark = pytest.mark.takes_turns(parts=2)

PAGES = (
    (), ("servers",), ("servers", "1"), ("topics",), ("topics", "orders"),
    ("topics", "orders", "records"), ("topics", "orders", "produce"), ("groups",), ("security",),
    ("problems",), ("explain", "server", "3"), ("explain", "partition", "orders", "0"),
)  # fmt: skip


def test_console_shows_which_server_is_dead_and_serves_the_others_data(browser):
    """A killed server is named; each page still has its data; all is well once it is back."""
    with (
        console_set("console-dead-server") as servers,
        visiting(browser, servers.origin(1)) as visitor,
    ):
        settings = client_settings(servers)
        make_topics(settings, {"orders": 6})
        fill(settings, "orders")
        visitor.open()
        visitor.wait_for("all is well")
        servers.kill(3)
        visitor.wait_for("down")
        visitor.wait_for("2 of 3")
        visitor.wait_for("peer_unreachable: servers 1 and 3 are not connected")
        for path in PAGES:
            visitor.open(*path)
            text = visitor.text()
            alerts = visitor.page.locator("main [role=alert]").all_inner_texts()
            assert path == ("security",) or alerts == [], path
            if path == ("topics", "orders"):
                visitor.wait_for("not 3")
            if path == ("problems",):
                assert "peer_unreachable" in text
                assert "Server 3 does not answer." in text
                assert visitor.page.locator("main .step").count() > 0
            if path[:1] == ("explain",):
                assert "Cause" in text
                assert "Start" in text or "Bring" in text or "start it" in text
        servers.start(3)
        visitor.open()
        visitor.wait_for("all is well")
        visitor.wait_for("3 of 3")


def test_console_of_a_dead_server_says_so_and_recovers(browser):
    """The server of the page is killed: old data stays with a word, and a retry finds it again."""
    with (
        console_set("console-own-server") as servers,
        visiting(browser, servers.origin(1)) as visitor,
    ):
        make_topics(client_settings(servers), {"orders": 1})
        visitor.open("topics")
        visitor.wait_for("orders")
        servers.kill(1)
        visitor.wait_for("Server 1 does not answer")
        assert "orders" in visitor.text()
        servers.start(1)
        servers.wait_serving(1)
        visitor.page.locator("#notice button").click()
        expect(visitor.page.locator("#notice .box")).to_have_count(0, timeout=HANG_MS)
        visitor.wait_for("orders")
