"""The StormCrawler example names what the service reads."""

import json
import tomllib

import yaml
from repository import ROOT

from opic.urlfrontier.items import BASE, CAUSE, LINKS, REDIRECTED, STATUS
from opic.urls.rules import check_rules

EXAMPLE = ROOT / "examples/stormcrawler"


def test_stormcrawler_example_sends_the_metadata_that_the_service_reads() -> None:
    config = yaml.safe_load((EXAMPLE / "crawler-conf.yaml").read_text())["config"]
    assert config["metadata.persist"] == [LINKS, BASE, STATUS, REDIRECTED, CAUSE]
    assert config["metadata.track.path"] is True
    filters = json.loads((EXAMPLE / config["jsoup.filters.config.file"]).read_text())
    assert {name for row in filters.values() for one in row for name in one["params"]} == {LINKS, BASE}
    assert json.loads((EXAMPLE / config["urlfilters.config.file"]).read_text())


def test_stormcrawler_example_allows_pages_of_one_host_only() -> None:
    rules = check_rules(tomllib.loads((EXAMPLE / "rules.toml").read_text())["rules"])
    assert [(rule.effect, rule.host) for rule in rules] == [("allow", "a.example"), ("deny", None)]


def test_topology_of_the_example_connects_all_its_parts() -> None:
    topology = yaml.safe_load((EXAMPLE / "crawler.flux").read_text())
    parts = {part["id"] for part in [*topology["spouts"], *topology["bolts"]]}
    assert {stream[end] for stream in topology["streams"] for end in ("from", "to")} == parts
