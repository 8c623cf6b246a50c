"""Pages of a set with many partitions: VDL_CONSOLE_PARTITIONS=10000 for the long form."""

import os
import re

import pytest
from playwright.sync_api import expect

from tests.console.browser.console_set import client_settings, console_set, make_topics
from tests.console.browser.visitor import HANG_MS, visiting

pytestmark = pytest.mark.takes_turns(parts=2)

PARTITIONS = int(os.environ.get("VDL_CONSOLE_PARTITIONS", "1000"))
EACH = 100
ANSWER_MS = """Object.fromEntries(performance.getEntriesByType('resource')
    .filter((one) => one.name.includes('/api/'))
    .map((one) => [new URL(one.name).pathname.split('/').at(-1), Math.round(one.duration)]))"""
"""Duration of the last question of each name."""


def test_lists_of_many_partitions_come_in_pages(browser, record_property):
    """Rows in the document stay few, and the sums are right."""
    topics = PARTITIONS // EACH
    with (
        console_set("console-many-partitions", replicas_max=PARTITIONS + EACH) as servers,
        visiting(browser, servers.origin(1)) as visitor,
    ):
        settings = client_settings(servers)
        for number in range(topics):
            make_topics(settings, {f"topic.{number:03}": EACH})
        visitor.open()
        figures = visitor.page.locator("main .figure", has_text="Partitions").locator("dd")
        expect(figures).to_have_text(re.compile(r"[\d,]+"), timeout=HANG_MS)
        # The set's own topics have some more.
        assert int(figures.inner_text().replace(",", "")) >= PARTITIONS
        visitor.open("topics", sort="partitions", order="desc")
        assert len(visitor.rows()) == min(50, topics)
        visitor.wait_for(f"of {topics} topics")
        visitor.open("topics", search="topic.003")
        assert len(visitor.rows()) == 1
        visitor.open("topics", "topic.003")
        assert len(visitor.rows()) == 50
        visitor.page.get_by_role("link", name="Next").first.click()
        expect(visitor.page.locator("main")).to_contain_text(f"51–100 of {EACH}", timeout=HANG_MS)
        visitor.open("topics", "topic.003", search=77)
        assert len(visitor.rows()) == 1
        last = visitor.page.evaluate(ANSWER_MS)
        print(f"{PARTITIONS} partitions, milliseconds of answers: {last}")
        record_property("milliseconds of answers", last)
