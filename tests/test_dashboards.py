"""The dashboards of deploy/grafana are ones, and ask for metrics that there are; Grafana gets them."""

import re
from itertools import combinations
from typing import Any

import pytest
import yaml
from compose_file import services
from prometheus_files import dashboards, documented, metrics_in, names, queries, rules
from repository import ROOT

GRAFANA = ROOT / "deploy/grafana"
UNITS = {"none", "short", "s", "bytes", "percentunit", "ops", "eps", "reqps"}
WIDTH = 24
VARIABLES = {"__rate_interval"}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def source() -> dict[str, Any]:
    found = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    (only,) = found["datasources"]
    return dict(only)


def test_there_are_five_dashboards_each_with_its_own_uid_and_title() -> None:
    found = dashboards()
    assert set(found) == {"overview", "ingest", "frontier", "store", "accuracy"}
    assert {one["uid"] for one in found.values()} == {f"opic-{name}" for name in found}
    assert {one["title"] for one in found.values()} == {f"opic: {name.capitalize()}" for name in found}


@pytest.mark.parametrize("name", dashboards())
def test_each_panel_has_a_description_and_a_unit(name: str) -> None:
    dashboard = dashboards()[name]
    assert dashboard["description"]
    for panel in panels(dashboard):
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["targets"], panel["title"]
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("name", dashboards())
def test_each_query_uses_the_provisioned_data_source(name: str) -> None:
    dashboard = dashboards()[name]
    wanted = {"type": source()["type"], "uid": source()["uid"]}
    for panel in panels(dashboard):
        assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [wanted] * (
            1 + len(panel["targets"])
        )
        ids = [target["refId"] for target in panel["targets"]]
        assert len(ids) == len(set(ids))
    assert all(variable["datasource"] == wanted for variable in dashboard["templating"]["list"])


@pytest.mark.parametrize("name", dashboards())
def test_panels_do_not_overlap(name: str) -> None:
    places = [panel["gridPos"] for panel in dashboards()[name]["panels"]]
    ids = [panel["id"] for panel in dashboards()[name]["panels"]]
    assert len(ids) == len(set(ids))
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= WIDTH for at in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (a, b)


@pytest.mark.parametrize("name", dashboards())
def test_each_query_uses_existing_metrics(name: str) -> None:
    there = names(documented()) | {rule["record"] for rule in rules("record")}
    dashboard = dashboards()[name]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]} | VARIABLES
    for title, expression in queries(dashboard):
        assert metrics_in(expression) <= there, title
        assert set(re.findall(r"\$(\w+)", expression)) <= variables, title
    used = {name for _, expression in queries(dashboard) for name in re.findall(r"\$(\w+)", expression)}
    assert variables - VARIABLES <= used, "a variable that changes nothing"


def test_rules_use_existing_metrics() -> None:
    recorded = {rule["record"] for rule in rules("record")}
    for rule in [*rules("record"), *rules("alert")]:
        assert metrics_in(rule["expr"]) <= names(documented()) | recorded | {"up"}, rule
    assert all(re.fullmatch(r"opic:\w+:\w+", name) for name in recorded)
    expressions = [e for one in dashboards().values() for _, e in queries(one)] + [r["expr"] for r in rules("alert")]
    tested = (ROOT / "deploy/prometheus/alerts.test.yml").read_text()
    assert {name for name in recorded if name not in tested and name not in " ".join(expressions)} == set()


def test_each_metric_is_on_a_dashboard_or_in_an_alert() -> None:
    asked = " ".join(e for one in dashboards().values() for _, e in queries(one))
    asked += " ".join(rule["expr"] for rule in [*rules("alert"), *rules("record")])
    assert {one.name for one in documented() if one.name not in asked} == {"opic_build_info"}


def test_dashboards_are_mounted_where_grafana_looks_for_them() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/opic.yml").read_text())["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services()["grafana"]["volumes"]}
    assert mounted[provider["options"]["path"]] == "./deploy/grafana/dashboards"
    assert mounted["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"
