"""Rules and dashboards of `deploy/prometheus` are valid, current, and lead to the runbook.

`test_sources.py` compares their metrics with the pages of live servers.
"""

import re
import subprocess

import pytest

from tests.unit.ops.prometheus_files import (
    FOLDER,
    NO_PROMTOOL,
    PROMTOOL,
    ROOT,
    alerts,
    dashboards_module,
    expressions,
    metrics_of,
    recorded,
    rules,
)
from vdl.server.problem import CLUSTER_KINDS, SERVER_KINDS

RUNBOOK = (ROOT / "deploy" / "runbook.md").read_text(encoding="utf-8")
PAGES = set(re.findall(r"^### (\S+)$", RUNBOOK, re.M))
BY_KIND = "{{ $labels.kind }}"
EXPRESSIONS = list(expressions())
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)


@pytest.mark.parametrize(("place", "expression"), EXPRESSIONS, ids=[p for p, _ in EXPRESSIONS])
def test_expression_is_promql_and_uses_rules_that_exist(place, expression):
    found = metrics_of(expression)
    assert found, place
    assert {name for name in found if ":" in name} <= recorded()


def test_expression_that_is_not_promql_is_found_out():
    """The parser of these tests refuses what Prometheus would."""
    with pytest.raises(ValueError, match="unclosed"):
        metrics_of("sum by (job rate(vdl_x[5m])")


def test_each_metric_of_an_expression_is_found():
    """Also in ranges, aggregations, subqueries and on both sides of an operator."""
    text = 'max_over_time(a[1h:1m]) / b > 0 or sum by (le) (rate(c_total{x="1"}[5m])) unless -d'
    assert metrics_of(text) == {"a", "b", "c_total", "d"}


def test_recording_rules_are_named_by_level_metric_and_operation():
    for name in recorded():
        assert re.fullmatch(r"[a-z_]+:vdl_[a-z_]+:(p50|p99|rate5m|mean5m|max|ratio)", name), name


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alert_leads_to_a_page_of_the_runbook_and_has_a_row_there(alert):
    name, url = alert["alert"], alert["annotations"]["runbook_url"]
    path, _, page = url.partition("#")
    assert ROOT / path == ROOT / "deploy" / "runbook.md"
    wanted = SERVER_KINDS.keys() | CLUSTER_KINDS.keys() if page == BY_KIND else {page}
    assert wanted <= PAGES
    link = r"\[the list\]\(#at-night\)" if page == BY_KIND else rf"\[{page}\]\(#{page}\)"
    assert re.search(rf"^\| `{name}` \| .+ \| {link} \|$", RUNBOOK, re.M), name
    assert alert["annotations"]["summary"].endswith(".")
    assert alert["labels"]["severity"] in {"page", "ticket"}


def test_rows_of_alerts_are_of_alerts_there_are():
    rows = re.findall(r"^\| `(Vdl\w+)` \|", RUNBOOK, re.M)
    assert rows == [alert["alert"] for alert in alerts()]


def test_rules_have_names_of_their_own():
    names = [rule.get("alert") or rule["record"] for rule in rules()]
    assert len(set(names)) == len(names)


def test_dashboards_are_what_the_module_makes():
    """After a change: `python deploy/prometheus/dashboards.py`."""
    files = dict(dashboards_module().rendered())
    assert set(files) == set((FOLDER / "dashboards").glob("*.json"))
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, path.name


@needs_promtool
def test_promtool_takes_the_configuration_and_the_rules():
    done = subprocess.run(
        [PROMTOOL, "check", "config", "--lint=all", "--lint-fatal", FOLDER / "prometheus.yml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_sees_each_alert_that_is_tried_fire():
    """`alerts_test.yml` has series of faults, and the alerts they must raise."""
    done = subprocess.run(
        [PROMTOOL, "test", "rules", ROOT / "tests/unit/ops/alerts_test.yml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
