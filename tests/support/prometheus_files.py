"""What deploy/ asks of Prometheus: rules, alerts and dashboards; and what docs/operations.md says that there is."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families as parse_text
from repository import ROOT

PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
ROW = re.compile(r"^\| `(opic_\w+)` \| (counter|gauge|histogram)((?:, \w+)*) \|", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name as it is asked for (of a histogram without suffixes), its kind, and its labels."""

    name: str
    kind: str
    labels: frozenset[str]


def documented() -> set[Family]:
    """The metrics of the tables."""
    text = (ROOT / "docs/operations.md").read_text()
    return {Family(name, kind, frozenset(labels.split(", ")[1:])) for name, kind, labels in ROW.findall(text)}


def exported(text: str) -> set[Family]:
    """The metrics of ours in a scrape."""
    found = set()
    for family in parse_text(text):
        if family.name.startswith("opic_") and not family.name.endswith("_created"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            name = family.name + ("_total" if family.type == "counter" else "")
            found.add(Family(name, family.type, frozenset(labels)))
    return found


def names(families: set[Family]) -> set[str]:
    """The names of their series."""
    return {
        family.name + suffix
        for family in families
        for suffix in (("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",))
    }


def rules(kind: str) -> list[dict[str, Any]]:
    """The rules of a kind, `alert` or `record`."""
    groups = [group for path in ("rules.yml", "alerts.yml") for group in _groups(path)]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def _groups(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / path).read_text())["groups"]
    return found


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards, by file name."""
    return {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each query of a dashboard: the panel's title, and the expression."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def metrics_in(expression: str) -> set[str]:
    """The names of ours in an expression, recorded ones among them."""
    return set(re.findall(r"\bopic[_:][a-zA-Z_:0-9]+", re.sub(r'"[^"]*"', "", expression)))
