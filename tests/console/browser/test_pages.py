"""Pages of three servers without faults."""

import itertools
import re

import pytest
from playwright.sync_api import expect

from tests.console.browser.console_set import BIG, HOSTILE, HOSTILE_SHOWN, RECORDS
from tests.console.browser.visitor import HANG_MS

PAGES = {
    "overview": (),
    "servers": ("servers",),
    "server": ("servers", "2"),
    "topics": ("topics",),
    "topic": ("topics", "orders"),
    "empty topic": ("topics", "empty", "records"),
    "records": ("topics", "orders", "records"),
    "produce": ("topics", "orders", "produce"),
    "groups": ("groups",),
    "group": ("groups", "billing"),
    "hostile group": ("groups", HOSTILE),
    "security": ("security",),
    "problems": ("problems",),
    "why of a group": ("explain", "lag", HOSTILE),
    "why of a partition": ("explain", "partition", "orders", "0"),
}
LOOKS = {"screen": {}, "dark": {"is_dark": True}, "phone": {"is_phone": True}}


@pytest.mark.parametrize("look", LOOKS)
def test_pages_of_a_healthy_set_show_their_data(visit, look):
    """Each page has a heading, no error, and fits."""
    visitor = visit(**LOOKS[look])
    for name, path in PAGES.items():
        visitor.open(*path)
        alerts = visitor.page.locator("main [role=alert]").all_inner_texts()
        assert alerts == [], name
        assert visitor.page.locator("main h1").count() == 1, name
        visitor.check_width()
    dark = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(15, 19, 23)") == (look == "dark")


def test_name_with_marks_beside_it_stays_on_its_line_on_a_phone(visit):
    """Server 1 is "this one" and the controller; its name is as high as that of another."""
    visitor = visit(is_phone=True)
    visitor.open("servers")
    boxes = [
        visitor.page.get_by_role("link", name=f"Server {number}").bounding_box()
        for number in (1, 2)
    ]
    assert boxes[0]["height"] == boxes[1]["height"]


def test_overview_shows_health_servers_and_plots(visit):
    """The first page needs no click to say that all is well."""
    visitor = visit()
    visitor.open()
    visitor.wait_for("all is well")
    visitor.wait_for("3 of 3")
    assert len(visitor.rows()) == 3
    plots = visitor.page.locator("main svg[role=img]")
    expect(plots).to_have_count(7, timeout=HANG_MS)
    expect(plots.first.locator("path.stroke")).to_have_attribute(
        "d", re.compile("M.*L"), timeout=HANG_MS
    )
    assert "highest" in plots.first.get_attribute("aria-label")
    plots.first.press("ArrowLeft")
    expect(visitor.page.locator("figure time")).to_have_count(1)


def test_topics_are_searched_sorted_and_shared_by_address(visit):
    """The address has the whole state, so that a copy of it shows the same."""
    visitor = visit()
    visitor.open("topics")
    visitor.page.keyboard.press("/")
    visitor.page.keyboard.type("team")
    visitor.page.wait_for_url(re.compile("search=team"))
    expect(visitor.page.locator("main tbody tr")).to_have_count(2, timeout=HANG_MS)
    assert visitor.page.evaluate("document.activeElement.type") == "search"
    visitor.page.get_by_role("link", name="Partitions").click()
    expect(visitor.page.locator("main tbody tr").first).to_contain_text("team.b", timeout=HANG_MS)
    shared = visitor.page.url
    other = visit()
    other.page.goto(shared)
    other.wait_shown()
    assert [row.split()[0] for row in other.rows()] == ["team.b", "team.a"]


def test_topic_shows_partitions_and_its_groups(visit):
    """Leader, term, replicas in sync and offsets of each partition; lag of each group."""
    visitor = visit()
    visitor.open("topics", "orders")
    rows = visitor.rows()
    assert len(rows) == 12
    assert str(RECORDS) in rows[0]
    visitor.open("topics", "orders", part="settings", search="retention")
    assert any("retention.ms" in row for row in visitor.rows())
    visitor.open("topics", "orders", part="groups")
    assert sorted(row.split("\t")[0] for row in visitor.rows()) == sorted(
        ["billing", HOSTILE_SHOWN]
    )
    assert all(f"{RECORDS - 20}" in row for row in visitor.rows())


def test_records_are_paged_folded_and_shown_exactly(visit):
    """Next and previous; JSON keeps the digits of its numbers; bytes are shown as hex."""
    visitor = visit()
    visitor.open("topics", "orders", "records", **{"partition": 0, "from": 0, "count": 10})
    offsets = visitor.page.locator("main .turn")
    assert offsets.all_inner_texts() == [str(number) for number in range(10)]
    offsets.nth(0).press("Enter")
    whole = visitor.page.locator("main .whole")
    expect(whole).to_contain_text(str(BIG))
    assert whole.locator("summary").count() >= 2
    assert "trace" in whole.inner_text()
    offsets.nth(2).click()
    expect(visitor.page.locator("pre.dump").last).to_contain_text("ff")
    visitor.page.get_by_role("link", name="Next").first.click()
    expect(offsets.first).to_have_text("10", timeout=HANG_MS)
    visitor.page.get_by_role("link", name="Previous").first.click()
    expect(offsets.first).to_have_text("0", timeout=HANG_MS)


def test_records_are_found_by_key_time_and_end(visit):
    """The filter, a point in time and the end of the partition."""
    visitor = visit()
    visitor.open("topics", "orders", "records", **{"from": "start", "key": "customer-77"})
    assert visitor.page.locator("main .turn").all_inner_texts() == ["77"]
    visitor.open("topics", "orders", "records", **{"from": "@1790000100000", "count": 10})
    assert visitor.page.locator("main .turn").first.inner_text() == "100"
    visitor.open("topics", "orders", "records", count=10)
    assert visitor.page.locator("main .turn").last.inner_text() == str(RECORDS - 1)
    visitor.page.get_by_label("Begin at").select_option("offset")
    visitor.page.get_by_label("Offset", exact=True).fill("30")
    visitor.page.get_by_role("button", name="Show", exact=True).click()
    expect(visitor.page.locator("main .turn").first).to_have_text("30", timeout=HANG_MS)


def test_record_is_written_and_read_back(visit):
    """A written record is behind the link of the answer."""
    visitor = visit()
    visitor.open("topics", "written", "produce")
    visitor.page.get_by_label("Key", exact=True).fill("k1")
    visitor.page.get_by_label("Value", exact=True).fill('{"n": 9007199254740993}')
    visitor.page.get_by_role("button", name="Add a header").click()
    visitor.page.get_by_label("Name of header 1").fill("from")
    visitor.page.get_by_label("Value of header 1").fill(HOSTILE)
    visitor.page.get_by_role("button", name="Write the record").click()
    visitor.wait_for("Written to partition 0 at offset")
    visitor.page.locator("main .box.ok a").click()
    visitor.wait_shown()
    visitor.page.locator("main .turn").first.click()
    whole = visitor.page.locator("main .whole")
    expect(whole).to_contain_text("9007199254740993")
    expect(whole).to_contain_text(HOSTILE_SHOWN)


def test_group_shows_members_and_lag_over_time(visit):
    """Members with their partitions, lag by partition, and two plots."""
    visitor = visit()
    visitor.open("groups", "billing")
    text = visitor.text()
    assert "till-1" in text
    assert "Stable" in text
    assert f"{RECORDS - 20}" in text
    assert visitor.page.locator("main svg[role=img]").count() == 2


def test_hostile_names_are_texts(visit):
    """Names, keys, values and headers of clients show as they are and run nothing."""
    visitor = visit()
    visitor.open("groups")
    assert any(HOSTILE_SHOWN in row for row in visitor.rows())
    visitor.page.get_by_role("link", name=HOSTILE_SHOWN).click()
    expect(visitor.page.locator("h1")).to_have_text(HOSTILE_SHOWN, timeout=HANG_MS)
    assert visitor.page.locator("main td", has_text=HOSTILE_SHOWN).count() > 0
    visitor.open("topics", HOSTILE)
    visitor.open("topics", "orders", "records", **{"from": "start", "key": HOSTILE})
    visitor.open("topics", "orders", "records", **{"from": 0, "count": 10})
    for button in visitor.page.locator("main .turn").all():
        button.click()
    assert HOSTILE_SHOWN in visitor.text()
    assert visitor.page.locator("main img, main script, main iframe").count() == 0


def test_pages_work_from_the_keyboard(visit):
    """The first stop skips the menu; each field has a name; the focus is visible."""
    visitor = visit()
    visitor.open("topics", "orders", "records")
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.className") == "skip"
    visitor.page.keyboard.press("Enter")
    assert visitor.page.evaluate("document.activeElement.id") == "page"
    nameless = """[...document.querySelectorAll('input, select, textarea, button')]
        .filter((one) => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
        .map((one) => one.outerHTML)"""
    for path in PAGES.values():
        visitor.open(*path)
        assert visitor.page.evaluate(nameless) == []
        levels = visitor.page.evaluate(
            "[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))"
        )
        assert levels[0] == 1
        assert all(low - high <= 1 for high, low in itertools.pairwise(levels)), levels


def test_colours_are_chosen_and_kept(visit):
    """The switch wins over the system, also after the page is loaded again."""
    visitor = visit()
    visitor.open("topics")
    visitor.page.get_by_label("Colours").select_option("dark")
    visitor.page.reload()
    visitor.wait_shown()
    ground = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(15, 19, 23)"


def test_absent_pages_say_so(visit):
    """A topic that does not exist is an answer, not a failure."""
    visitor = visit()
    visitor.open("topics", "absent")
    assert "absent" in visitor.text() or "topic" in visitor.text().lower()
    visitor.open("nonsense")
    assert "No such page" in visitor.text()


def test_hidden_pages_ask_nothing(visit):
    """A tab in the background does not poll; it refreshes when it is shown again."""
    visitor = visit()
    visitor.page.clock.install()
    visitor.open("topics")
    visitor.page.clock.run_for(30_000)
    visitor.wait_shown()
    assert len(visitor.api_requests("topics")) > 1
    hide = """(isHidden) => {
        Object.defineProperty(document, 'hidden', { value: isHidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    visitor.page.evaluate(hide, True)
    visitor.page.wait_for_load_state("networkidle")
    before = len(visitor.requests)
    visitor.page.clock.run_for(300_000)
    assert len(visitor.requests) == before
    with visitor.page.expect_request(re.compile("/api/topics")):
        visitor.page.evaluate(hide, False)


def test_slow_or_failing_servers_are_asked_less_often(visit):
    """A pause grows with the time that an answer takes, and doubles with each failure."""
    visitor = visit()
    visitor.open("topics")
    assert visitor.evaluate("poll.js", "pause", 5, 0.1, 0) == 5
    assert visitor.evaluate("poll.js", "pause", 5, 3, 0) == 15
    assert visitor.evaluate("poll.js", "pause", 5, 0.1, 2) == 20
    assert visitor.evaluate("poll.js", "pause", 5, 0.1, 50) == 60


def test_numbers_and_json_keep_their_digits(visit):
    """Offsets above 2^53, and JSON texts with repeated names, escapes and large numbers."""
    visitor = visit()
    visitor.open("topics")
    assert (
        visitor.evaluate("format.js", "difference", "9007199254740995", "9007199254740992") == "3"
    )
    assert visitor.evaluate("format.js", "count", "12345678901234567890") == (
        "12,345,678,901,234,567,890"
    )
    tree = visitor.evaluate("values.js", "parsed", f'{{"a": {BIG}, "a": "\\u0041[", "b": []}}')
    assert [(one["label"], one.get("text")) for one in tree["children"]] == [
        ("a", str(BIG)), ("a", "A["), ("b", None),
    ]  # fmt: skip
    assert visitor.evaluate("values.js", "parsed", "{") is None
    assert visitor.evaluate("values.js", "dump", "414200") == "000000  41 42 00  AB."
