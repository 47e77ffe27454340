"""`opic sample`: a recorded crawl, real websites on loopback, and a running service that knows where to begin."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import running
from typer.testing import CliRunner
from website import WebPage, linking, website

from opic.cli.main import app
from opic.errors import OpicError
from opic.local.fetcher import RecordedFetcher
from opic.model.events import CrawlEvent, EventLimits
from opic.sampling.sampled_web import SampledWeb, recorded_inlinks
from opic.sampling.topics import parse_topic

PAGES, BIRDS = 300, 60


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def url(page: int) -> str:
    return f"http://h{page % 30}.example/{'bird' if page < BIRDS else 'train'}/{page}"


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crawl of 300 pages on 30 hosts; every third is tagged, the first 60 are about birds."""
    rng, path = random.Random(2), tmp_path_factory.mktemp("crawl") / "crawl.jsonl"
    with path.open("w") as file:
        for page in range(PAGES):
            links = [url((page + 1) % PAGES), *(url(int(PAGES * rng.random() ** 2)) for _ in range(6))]
            event = {
                "url": url(page),
                "links": links,
                "tags": ["third"] if page % 3 == 0 else [],
                "text": "wings and nests" if page < BIRDS else "steam and tracks",
                "title": f"Page {page}",
            }
            file.write(json.dumps(event) + "\n")
    return path


def run(*words: object) -> tuple[Any, str]:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return json.loads(done.stdout) if "--json" in words else done.stdout, done.stderr


@pytest.mark.parametrize("focus", ["hard", "neighbourhood", "trial", "none"])
def test_estimate_of_a_recorded_topic_is_near_the_truth(crawl: Path, focus: str) -> None:
    words = ("--topic", "tag:third", "--estimate", "url:/bird/", "--steps", 6_000, "--focus", focus, "--json")
    found, _ = run("sample", "--recorded", crawl, *words)
    assert list(found)[:5] == ["estimate", "interval", "samples", "steps", "topic"]
    assert abs(found["estimate"] - 0.2) < 0.06
    low, high = found["interval"]
    assert 0 < low < found["estimate"] < high < 0.4
    assert (found["topic"], found["steps"], found["focus"]) == ("tag:third", 6_000, focus)
    assert 0 < found["samples"] <= 6_000
    assert found["fetched"] <= PAGES
    assert found["precision"] == 1.0 if focus == "hard" else 0.1 < found["precision"] < 1
    again, _ = run("sample", "--recorded", crawl, *words)
    assert again == found


def test_estimate_is_plotted_over_the_walk(crawl: Path, tmp_path: Path) -> None:
    words = ("sample", "--recorded", crawl, "--topic", "tag:third", "--steps", 500, "--plot", tmp_path / "out.svg")
    _, said = run(*words, "--estimate", "url:/bird/")
    assert f"wrote {tmp_path / 'out.svg'}" in said
    drawn = (tmp_path / "out.svg").read_text()
    assert all(text in drawn for text in ("Share of url:/bird/ in the pages of tag:third", "95 % confidence interval"))
    run(*words)
    assert "steps on the topic" in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize("focus", ["hard", "neighbourhood", "trial"])
def test_means_and_shares_by_value_are_near_the_truth(crawl: Path, focus: str) -> None:
    events = [json.loads(line) for line in crawl.read_text().splitlines()]
    on_topic = [event for event in events if event["tags"]]
    asked = ("--topic", "tag:third", "--steps", 6_000, "--focus", focus, "--json")
    found, _ = run("sample", "--recorded", crawl, *asked, "--mean", "links", "--shares", "host")
    truth = sum(len({*event["links"]} - {event["url"]}) for event in on_topic) / len(on_topic)
    assert found["mean"]["of"] == "links"
    assert abs(found["mean"]["mean"] - truth) < 0.5
    low, high = found["mean"]["interval"]
    assert low < found["mean"]["mean"] < high < truth + 2
    values = found["shares"]["values"]
    assert {row["value"] for row in values} == {f"h{host}.example" for host in range(0, 30, 3)}
    assert all(abs(row["share"] - 0.1) < 0.06 for row in values)
    assert sum(row["share"] for row in values) == pytest.approx(1)
    assert [row["share"] for row in values] == sorted((row["share"] for row in values), reverse=True)
    found, _ = run("sample", "--recorded", crawl, *asked, "--mean", "links-on-topic", "--shares", "links-on-topic")
    third = {event["url"] for event in on_topic}
    shares = [sum(link in third for link in links) / len(links) for links in ({*e["links"]} for e in on_topic)]
    assert abs(found["mean"]["mean"] - sum(shares) / len(shares)) < 0.06
    bins = [row["value"] for row in found["shares"]["values"]]
    assert bins == sorted(bins)
    assert "0.3-0.4" in bins


def test_metadata_is_counted_and_its_numbers_have_a_mean(crawl: Path, tmp_path: Path) -> None:
    path = tmp_path / "priced.jsonl"
    with path.open("w") as file:
        for number, line in enumerate(crawl.read_text().splitlines()):
            event = json.loads(line)
            if number % 4:
                event["meta"] = {"price": "n/a" if number % 4 == 1 else str(number % 7), "kind": f"k{number % 3}"}
            file.write(json.dumps(event) + "\n")
    asked = ("sample", "--recorded", path, "--topic", "url:/", "--steps", 4_000, "--focus", "hard")
    found, _ = run(*asked, "--mean", "meta:price", "--shares", "meta:kind", "--json")
    assert abs(found["mean"]["mean"] - 3) < 0.4
    assert abs(found["mean"]["without"] - 0.5) < 0.1
    kinds = {row["value"]: row["share"] for row in found["shares"]["values"]}
    assert [*kinds][-1] is None
    assert kinds == {name: pytest.approx(0.25, abs=0.07) for name in ("k0", "k1", "k2", None)}
    text, _ = run(*asked, "--shares", "meta:kind")
    assert text.splitlines()[0] == "value\tshare\tlow\thigh"
    text, _ = run(*asked, "--mean", "meta:price")
    assert "mean.mean\t" in text


def test_exhausted_fetches_leave_the_samples_so_far(crawl: Path) -> None:
    found, _ = run(
        "sample", "--recorded", crawl, "--topic", "tag:third", "--mean", "links-on-topic", "--focus", "hard",
        "--steps", 40, "--fetch", 95, "--json",
    )  # fmt: skip
    assert found["fetched"] == 95
    assert found["steps"] == 40
    assert 0 < found["mean"]["mean"] < 1
    assert any("links-on-topic is of the first" in note for note in found["notes"])


def test_sample_without_an_estimate_is_a_list_of_pages(crawl: Path) -> None:
    text, said = run("sample", "--recorded", crawl, "--topic", "word:wings", "--steps", 2_000, "--verbose")
    pages = text.splitlines()
    assert len(pages) > 100
    assert all("/bird/" in page for page in pages)
    assert len({*pages}) > BIRDS / 2
    for word in (
        "burn-in: the first",
        "thinning: the pages are one in",
        "samples: every visit, weighted by the virtual time",
    ):
        assert word in said
    found, _ = run("sample", "--recorded", crawl, "--topic", "word:wings", "--steps", 200, "--json")
    assert (found["estimate"], found["interval"]) == (None, None)


def test_text_classifier_is_trained_and_used(crawl: Path, tmp_path: Path) -> None:
    model = tmp_path / "birds.json"
    found, _ = run("topic-model", model, "--recorded", crawl, "--on", "url:/bird/", "--json")
    assert found["pages"] == PAGES
    assert found["on_topic"] == BIRDS
    assert found["accuracy"] == found["precision"] == found["recall"] == 1.0
    found, _ = run(
        "sample", "--recorded", crawl, "--topic", f"text:{model}", "--estimate", "url:/bird/", "--steps", 500, "--json"
    )
    assert found["estimate"] == 1.0
    assert found["interval"][0] < found["interval"][1] == 1.0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--topic", "url:nowhere"), "found no page on the topic url:nowhere: name one"),
        (("--topic", "url:bird", "--steps", "0"), "--steps 0 is below 1"),
        (("--topic", "url:bird", "--start", "http://unknown.example/"), "http://unknown.example/, can't be fetched"),
        (("--topic", "url:bird", "--start", url(200)), "is not on the topic: name another"),
        (("--topic", "url:bird/7", "--focus", "hard"), "has no neighbour that the walk may visit"),
        (("--topic", "url:bird", "--fetch", "1"), "1 pages were fetched, as many as --fetch allows, before the walk"),
        (("--topic", "url:"), "topic 'url:' is empty"),
        (("--topic", "url:bird", "--shares", "hosts"), "'hosts' is not a property of pages: did you mean host"),
        (("--topic", "url:bird", "--shares", "host:a"), "'host:a' is not a property of pages"),
        (("--topic", "url:bird", "--mean", "meta:"), "'meta:' names no metadata: give meta:NAME"),
        (("--topic", "url:bird", "--mean", "host"), "host is a name, which has no mean: estimate --shares of it"),
        (("--topic", "url:bird", "--mean", "meta:price"), "and no page on the topic has it"),
        (("--topic", "url:bird", "--crawl", "README.md"), "name its files with --recorded"),
    ],
)
def test_impossible_sample_is_refused_with_the_reason(crawl: Path, words: tuple[str, ...], complaint: str) -> None:
    done = CliRunner().invoke(app, ["sample", "--recorded", str(crawl), *words])
    assert isinstance(done.exception, OpicError)
    assert complaint in str(done.exception)


def test_bad_files_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "crawl.jsonl"
    file.write_text('{"url": "http://a.example/", "link": []}\n{"url": "http://b.example/", "links": []}\n')
    done = CliRunner().invoke(app, ["sample", "--recorded", str(file), "--topic", "word:a"])
    assert "crawl.jsonl:1: not a crawl event, with title and text if it has them: " in done.stderr
    assert "word:a needs texts, but no recorded page has a field `text`" in str(done.exception)
    file.write_text("{}\n")
    done = CliRunner().invoke(app, ["sample", "--recorded", str(file), "--topic", "url:a"])
    assert "contains no valid crawl event" in str(done.exception)
    done = CliRunner().invoke(app, ["topic-model", str(tmp_path / "m"), "--recorded", str(file), "--on", "url:a"])
    assert "no crawl event has a field `text`" in str(done.exception)


def test_exhausted_fetches_end_the_walk(crawl: Path) -> None:
    found, _ = run(
        "sample", "--recorded", crawl, "--topic", "url:/bird/", "--estimate", "tag:third", "--focus", "hard",
        "--fetch", 60, "--json",
    )  # fmt: skip
    assert found["fetched"] == 60
    assert 2 <= found["steps"] < 10_000
    assert any("it ended after" in note for note in found["notes"])
    assert any("under 30 independent samples" in note for note in found["notes"])


def test_redirects_are_followed_and_failed_pages_are_left_out() -> None:
    events = [
        CrawlEvent("http://a.example/", links=["http://b.example/", "http://gone.example/", "http://loop.example/"]),
        CrawlEvent("http://b.example/", status=301, redirect="http://c.example/"),
        CrawlEvent("http://c.example/", links=["http://a.example/"]),
        CrawlEvent("http://gone.example/", status=404),
        CrawlEvent("http://loop.example/", status=302, redirect="http://loop.example/"),
    ]
    limits = EventLimits()
    web = SampledWeb(
        RecordedFetcher({event.url: event for event in events}),
        recorded_inlinks(events, limits),
        parse_topic("host:example"),
        None,
        limits=limits,
    )
    moved = web.load_page("http://b.example/")
    assert moved is not None
    assert moved.page == "http://c.example/"
    assert web.inlinks("http://c.example/") == ["http://a.example/"]
    for page in ("http://gone.example/", "http://loop.example/", "http://unknown.example/"):
        assert web.load_page(page) is None
    assert (web.fetched, web.failed) == (5, 3)


# Real pages over HTTP.


@pytest.fixture
def site() -> Iterator[Any]:
    """A ring of 40 pages with a few links across; every second is about birds; /private is forbidden."""
    pages = {"/robots.txt": WebPage("User-agent: *\nDisallow: /private\n")}
    for page in range(40):
        about = "<title>x</title><p>Birds sing" if page % 4 < 2 else "<p>Trains"
        links = linking(f"/{(page + 1) % 40}", f"/{page * 7 % 40}", "/private", "/none")
        pages[f"/{page}"] = WebPage(about + links.body)
    with ExitStack() as stack:
        yield stack.enter_context(website("127.0.0.1", pages))


def test_pages_are_fetched_over_http_by_robots_txt_once_each(site: Any) -> None:
    words = (
        "--topic",
        "word:birds",
        "--estimate",
        "url:/1",
        "--steps",
        150,
        "--host-delay",
        0,
        "--allow-private",
        "--json",
    )
    found, _ = run("sample", "--start", f"{site.url}/0", *words, "--store", "embedded:nowhere")
    assert found["start"] == f"{site.url}/0"
    assert found["steps"] == 150
    assert found["fetched"] <= 42
    assert "/private" not in site.paths()
    assert len(site.paths()) == len({*site.paths()})
    low, high = found["interval"]
    assert 0 <= low <= found["estimate"] <= high <= 1


@pytest.mark.slow
def test_service_gives_the_start_page_and_gets_the_fetched_pages(site: Any, tmp_path: Path) -> None:
    with running(tmp_path / "store", tmp_path / "log", host_delay_seconds=0) as service:
        service.post("/v1/seeds", {"urls": [f"{site.url}/0", f"{site.url}/1"]}).raise_for_status()
        service.settle()
        found, _ = run(
            "sample",
            "--topic",
            "host:127.0.0.1",
            "--steps",
            30,
            "--host-delay",
            0,
            "--allow-private",
            "--service",
            service.url,
            "--json",
        )
        assert found["start"] in (f"{site.url}/0", f"{site.url}/1")
        service.settle()
        assert service.get("/v1/stats").json()["read_pages"] > 5


@pytest.fixture
def star() -> Iterator[Any]:
    """Thirty pages that link to /hub, which links to /end alone: without in-links nothing leads back to them."""
    pages = {f"/leaf/{page}": linking("/hub") for page in range(30)}
    with website("127.0.0.1", {**pages, "/hub": linking("/end"), "/end": linking()}) as site:
        yield site


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False])
def test_service_that_keeps_links_gives_the_walk_its_in_links(star: Any, tmp_path: Path, keeps: bool) -> None:
    settings = {"host_delay_seconds": 0, "keep_links": keeps}
    with running(tmp_path / "store", tmp_path / "log", **settings) as service:
        events = [{"url": f"{star.url}/leaf/{page}", "links": [f"{star.url}/hub"]} for page in range(30)]
        events.append({"url": f"{star.url}/hub", "links": [f"{star.url}/end"]})
        service.post("/v1/events", events).raise_for_status()
        service.settle()
        web = ("--start", f"{star.url}/leaf/0", "--host-delay", 0, "--allow-private", "--service", service.url)
        found, said = run("sample", "--topic", "host:127.0.0.1", "--estimate", "url:/leaf/", "--json", *web)
    assert said.count("opic: the service keeps no links (OPIC_KEEP_LINKS=off at its workers)") == (0 if keeps else 1)
    assert found["fetched"] == (32 if keeps else 3)
    assert abs(found["estimate"] - (30 / 32 if keeps else 1 / 3)) < 0.1
    asked = [path for path in star.paths() if path != "/robots.txt"]
    assert len(asked) == len({*asked}) == found["fetched"]


def test_walk_without_a_start_page_says_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["sample", "--topic", "url:a", "--data", str(tmp_path)])
    assert "name a page with --start URL" in str(done.exception)
    done = CliRunner().invoke(
        app, ["sample", "--topic", "tag:a", "--start", "http://a.example/", "--data", str(tmp_path)]
    )
    assert "pages fetched over HTTP have no tags" in str(done.exception)


@pytest.mark.parametrize("on", ["tag:none", "url:"])
def test_model_of_no_topic_or_of_one_class_is_refused_and_no_file_is_written(
    crawl: Path, tmp_path: Path, on: str
) -> None:
    model = tmp_path / "model.json"
    done = CliRunner().invoke(app, ["topic-model", str(model), "--recorded", str(crawl), "--on", on])
    assert isinstance(done.exception, OpicError)
    expected = "topic 'url:' is empty" if on == "url:" else "0 pages with text are on the topic"
    assert expected in str(done.exception)
    assert not model.exists()
