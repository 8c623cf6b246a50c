"""A set with logins."""

import pytest
from confluent_kafka.admin import AdminClient
from playwright.sync_api import expect

from tests.console.browser.console_set import client_settings, console_set, make_topics
from tests.console.browser.visitor import HANG_MS, visiting
from tests.console.conftest import add_user
from vdl.kafka.security.client_settings import read_properties

pytestmark = pytest.mark.takes_turns(parts=2)


@pytest.fixture(scope="module")
def secure_servers(browser):
    with console_set("console-login", is_secure=True, changes=False) as servers:
        yield servers


def log_in(visitor, user, password):
    visitor.page.get_by_label("User").fill(user)
    visitor.page.get_by_label("Password").fill(password)
    visitor.page.get_by_role("button", name="Log in").click()


def admin_of(servers):
    known = read_properties(servers.directory / "client.properties")
    return known["sasl.username"], known["sasl.password"]


def test_console_of_a_secure_set_shows_nothing_before_the_login(browser, secure_servers):
    """A wrong password is refused in words; login leads to the asked page; logout ends it."""
    user, password = admin_of(secure_servers)
    with visiting(browser, secure_servers.origin()) as visitor:
        visitor.open("security")
        expect(visitor.page.locator("h1")).to_have_text("Log in")
        assert visitor.page.locator("#menu a").count() == 0
        log_in(visitor, user, "not the password")
        visitor.wait_for("The servers refused this user or this password.")
        assert visitor.page.evaluate("document.cookie") == ""
        log_in(visitor, user, password)
        visitor.wait_for("Access control")
        expect(visitor.page.locator("h1")).to_have_text("Security", timeout=HANG_MS)
        stored = visitor.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert password not in stored
        visitor.page.get_by_role("button", name="Log out").click()
        expect(visitor.page.locator("h1")).to_have_text("Log in", timeout=HANG_MS)
        visitor.page.reload()
        expect(visitor.page.locator("h1")).to_have_text("Log in", timeout=HANG_MS)


def test_users_see_what_their_permissions_allow(browser, secure_servers):
    """A user without permissions sees no topics; users, rules and quotas are the admin's."""
    user, password = admin_of(secure_servers)
    add_user(AdminClient(client_settings(secure_servers)), "alice", "alice's password")
    with visiting(browser, secure_servers.origin()) as visitor:
        visitor.open("security", part="users")
        log_in(visitor, "alice", "alice's password")
        visitor.wait_for("alice")
        expect(visitor.page.locator("main [role=alert]")).to_have_count(1, timeout=HANG_MS)
        visitor.open("topics")
        visitor.wait_for("There are no topics")
        visitor.page.get_by_role("button", name="Log out").click()
        log_in(visitor, user, password)
        expect(visitor.page.get_by_role("button", name="Log out")).to_be_visible(timeout=HANG_MS)
        visitor.open("security", part="users")
        visitor.wait_for(user)
        visitor.wait_for("alice")
        assert sorted(row.split()[0] for row in visitor.rows()) == sorted(["alice", user])


def test_changes_that_are_switched_off_are_not_offered(browser, secure_servers):
    """There is no link to the form, and its address explains why."""
    make_topics(client_settings(secure_servers), {"orders": 1})
    with visiting(browser, secure_servers.origin()) as visitor:
        visitor.open("topics", "orders", "produce")
        log_in(visitor, *admin_of(secure_servers))
        visitor.wait_for("Changes are switched off on this server (http.console_changes).")
        assert visitor.page.get_by_role("link", name="Produce").count() == 0
        assert visitor.page.locator("main form").count() == 0
