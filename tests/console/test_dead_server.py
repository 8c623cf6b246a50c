"""The console of a server shows that another one is dead, and works without it."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from tests.console.asking import browser
from tests.console.browser.console_set import client_settings, console_set, make_topics
from tests.console.conftest import port_of
from tests.hangs import HANG_SECONDS
from vdl.commands.checks.cluster_facts import collect_facts
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.server.explain.questions import About, Question, explain


def test_dead_server_is_shown_and_its_partitions_are_read_elsewhere() -> None:
    with console_set("console-dead") as servers:
        settings = client_settings(servers)
        make_topics(settings, {"orders": 6})
        producer = Producer(settings)
        for partition in range(6):
            producer.produce("orders", f"value {partition}", partition=partition)
        assert producer.flush(HANG_SECONDS) == 0
        page = browser(port_of(servers))
        servers.kill(3)
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            found = page.page("overview")
            kinds = {one["kind"] for one in found["problems"]}
            rows = page.page("partitions", topic="orders")["partitions"]
            if (
                {one["id"]: one["state"] for one in found["servers"]}[3] == "down"
                and "peer_unreachable" in kinds
                and all(row["end"] == "1" and row["leader"] != 3 for row in rows)
                and all(3 not in row["isr"] for row in rows)
            ):
                break
            assert time.monotonic() < deadline, (found, rows)
            time.sleep(0.5)
        assert not found["is_ok"]
        assert found["counts"]["servers_up"] == 2
        for partition in range(6):
            (row,) = page.page("records", topic="orders", partition=partition)["records"]
            assert row["value"]["text"] == f"value {partition}"
        assert page.page("groups")["groups"] == []
        explained = page.page("explain")["explanations"]
        assert "peer_unreachable" in {one["kind"] for one in explained}
        for why in (
            Question(About.SERVER, server=3),
            Question(About.PARTITION, topic="orders", partition=0),
        ):
            found = page.page("explanation", **asked(why))["explanation"]
            expected = explain(why, collect_facts(addresses(servers.bootstrap), topic=why.topic))
            names = ("about", "ok", "kind", "summary", "page")
            assert {name: found[name] for name in names} == {name: expected[name] for name in names}
            assert not found["ok"]
            assert found["cause"]
            assert found["next"]
            # A leader that was elected after the loss has no event of it.
            assert found["evidence"] or why.about is About.PARTITION


def asked(why: Question) -> dict[str, object]:
    """Return the parameters of a question of `vdl explain`."""
    found = why.as_json()
    return {"about": found.pop("what"), **found}
