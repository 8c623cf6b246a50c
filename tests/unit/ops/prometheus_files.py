"""The files of `deploy/prometheus` as tests read them: expressions, and the metrics in them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import yaml

from tests.unit.ops.promtool import promtool

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yml"))
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
PROMTOOL = promtool()
"""Prometheus' own checker; None: `make setup-unit` has not fetched it."""
NO_PROMTOOL = "no promtool: `make setup-unit` takes it out of Debian's package"
OF_PROMETHEUS = {"up"}
"""Metrics that Prometheus makes itself."""


@cache
def rules() -> list[dict[str, Any]]:
    """Return all rules: recording rules have `record`, alerts have `alert`."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield (place, expression) of each rule and each line of a dashboard."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


def metrics_of(expression: str) -> set[str]:
    """Return the names in an expression. Raise ValueError if it is not PromQL."""
    found: set[str] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            found.add(node.name)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def metrics_used() -> dict[str, str]:
    """Return the metrics of servers that rules and dashboards use, each with one place."""
    ours = OF_PROMETHEUS | recorded()
    return {
        name: place
        for place, expression in expressions()
        for name in metrics_of(expression)
        if name not in ours
    }


def dashboards_module() -> ModuleType:
    """Return the module that makes the dashboards, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("vdl_dashboards", FOLDER / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
