"""The past of recorded events: at any time it is what a ledger said that had read as much."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from logs import PARTITION, pep_history
from typer.testing import CliRunner

from opic.cli.history import _flow
from opic.cli.main import app
from opic.errors import BadInput
from opic.model.cash import CONTINUOUS, MILLION, CrawlRules
from opic.model.events import CrawlEvent, Record, decode_crawl_event, encode_crawl_event
from opic.model.ledger import Ledger
from opic.model.past_importance import RecordedPast, TimedEvent, standings
from opic.model.series import Window

DAY = 86_400
START = 1_700_000_000
CRAWL = [
    ("http://a.example/", ["http://b.example/", "http://c.example/"], 200),
    ("http://b.example/", ["http://a.example/"], 200),
    ("http://c.example/", ["http://a.example/"], 200),
    ("http://a.example/", ["http://b.example/"], 200),
    ("http://c.example/", [], 404),
    ("http://a.example/", ["http://b.example/"], 200),
]


def events() -> list[TimedEvent]:
    return [
        TimedEvent(
            (START + day * DAY) * MILLION,
            encode_crawl_event(CrawlEvent(url, list(links), status=status, fetched_at=START + day * DAY)),
        )
        for day, (url, links, status) in enumerate(CRAWL)
    ]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "crawl.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows()))
    return path


def rows() -> list[dict[str, object]]:
    return [
        {"url": url, "links": links, "status": status, "fetched_at": START + day * DAY}
        for day, (url, links, status) in enumerate(CRAWL)
    ]


def test_past_importance_equals_that_of_a_ledger_at_that_time() -> None:
    records = pep_history()[:1_500]
    timed = [TimedEvent(int(decode_crawl_event(r.value).fetched_at or 0) * MILLION, r.value) for r in records]
    past, half = RecordedPast([*timed[800:], *timed[:800]], CrawlRules(measures_max=4)), timed[700].time_us
    past.until(half)
    twin = Ledger(CrawlRules(measures_max=4))
    kept = [event for event in timed if event.time_us <= half]
    twin.apply(PARTITION, [Record(n, event.time_us, event.value) for n, event in enumerate(kept)])
    assert len(kept) >= 700
    assert twin.books == past.ledger.books
    assert list(twin.pages) == list(past.ledger.pages)
    total = twin.books.static_total(twin.rules.minted)
    own = [(page.spent + twin.cash(page)) / total for page in twin.pages.values()]
    live = past.past().live
    assert past.importance()[live] == pytest.approx(np.array(own)[live], rel=1e-6)


@pytest.mark.parametrize(
    "rules", [CrawlRules(measures_max=8), CrawlRules(measures_max=8, virtual="continuous", minted=CONTINUOUS.minted)]
)
@pytest.mark.parametrize("policy", ["static", "interpolation", "fixed", "variable", "improved"])
def test_every_policy_answers_for_a_past_time(policy: str, rules: CrawlRules) -> None:
    past = RecordedPast(events(), rules)
    for day in range(len(CRAWL)):
        past.until((START + day * DAY) * MILLION)
        found = past.importance(policy, Window.parse("2d"))
        assert found.sum() == pytest.approx(1)


def test_gone_page_has_no_rank_and_an_unknown_one_no_importance() -> None:
    times = [(START + day * DAY) * MILLION for day in (-1, 0, 3, 4)]
    found = list(standings(RecordedPast(events()), "http://c.example/", times))
    assert [(one.importance is None, one.rank is None, one.pages) for one in found] == [
        (True, True, 0),
        (False, False, 3),
        (False, False, 3),
        (False, True, 2),
    ]
    assert found[3].importance == 0
    with pytest.raises(BadInput, match=r"no event up to then names http://never\.example/"):
        list(standings(RecordedPast(events()), "http://never.example/", times))


def test_too_few_measures_are_refused_with_the_setting() -> None:
    past = RecordedPast(events(), CrawlRules(measures_max=1))
    with pytest.raises(BadInput, match="policy=variable needs 2 measures per page"):
        past.importance("variable")


def test_no_events_have_no_importance() -> None:
    assert len(RecordedPast([]).importance()) == 0


# The command.


def history(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["history", *map(str, words)])
    text = str(done.exception) if done.exception and not isinstance(done.exception, SystemExit) else done.stderr
    return done.exit_code, done.stdout, text


def test_recorded_crawl_is_printed_and_drawn(recorded: Path, tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "past.svg"
    code, out, _ = history("http://c.example/", "--recorded", recorded, "--plot", picture, "--json")
    assert code == 0
    answer = json.loads(out)
    assert list(answer) == ["url", "policy", "window", "past"]
    first, last = answer["past"][0], answer["past"][-1]
    assert (first["time"], last["time"]) == (START, START + 5 * DAY)
    assert 0 < first["importance"] < 1
    assert (last["importance"], last["rank"], last["pages"]) == (0, None, 2)
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_past_importance_is_given_for_one_time_with_a_window_in_days(recorded: Path) -> None:
    words = ("--recorded", recorded, "--policy", "fixed", "--window", "1d", "--json")
    code, out, _ = history("http://b.example/", "--at", "2023-11-16T12:00Z", *words)
    assert code == 0
    (row,) = json.loads(out)["past"]
    assert row["importance"] > 0
    assert json.loads(out)["window"] == "1d"
    assert len(history("http://b.example/", "--recorded", recorded)[1].splitlines()) == 1 + 20


def test_variable_policy_uses_as_many_reads_as_a_store_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page c is linked to by all in the second half only: the last reads say more of it than all of them."""
    pages = {name: f"http://{name}.example/" for name in "abcd"}
    rows = []
    for number in range(80):
        name = "abcd"[number % 4]
        links = [pages["b" if number < 40 else "c"], pages["ab"[number % 2]]]
        rows.append({"url": pages[name], "links": links, "fetched_at": START + 3_600 * number})
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def last(*words: str) -> float:
        done = history(pages["c"], "--recorded", tmp_path / "log.jsonl", "--json", *words)
        return float(json.loads(done[1])["past"][-1]["importance"])

    few, static = last("--policy", "variable"), last()
    monkeypatch.setenv("OPIC_HISTORY_MEASURES", "16")
    more = last("--policy", "variable")
    assert few > 1.2 * static
    assert few != more != static


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--at", "soon"), "--at soon is neither Unix seconds nor a time"),
        (("--at", "2001-01-01"), "no event up to then names"),
        (("--policy", "best"), "--policy best is not one of static,"),
        (("--window", "0"), "window='0' is neither a positive number of rounds"),
        (("--window", "-3d"), "window='-3d' is neither"),
    ],
)
def test_bad_question_about_the_past_is_refused(recorded: Path, words: tuple[str, ...], complaint: str) -> None:
    _, _, error = history("http://c.example/", "--recorded", recorded, *words)
    assert complaint in error


def test_window_longer_than_the_history_covers_the_whole_history(recorded: Path) -> None:
    def past(*words: str) -> list[float]:
        found = json.loads(history("http://b.example/", "--recorded", recorded, "--json", *words)[1])["past"]
        return [row["importance"] for row in found]

    assert past("--policy", "interpolation", "--window", "9999d") == past("--policy", "static")
    assert past("--policy", "fixed", "--window", "9999d") == past("--policy", "fixed", "--window", "1e9")


def test_crawl_without_times_has_no_past(tmp_path: Path) -> None:
    untimed, edges = tmp_path / "untimed.jsonl", tmp_path / "links.tsv"
    untimed.write_text('{"url": "http://a.example/"}\n')
    edges.write_text("a\tb\n")
    assert "untimed.jsonl:1: the event has no fetched_at" in history("http://a.example/", "--recorded", untimed)[2]
    assert (
        "takes crawl events, .jsonl or .msgpack, and this is edges"
        in history("http://a.example/", "--recorded", edges)[2]
    )
    untimed.write_text("\n")
    assert "contains no crawl event" in history("http://a.example/", "--recorded", untimed)[2]


def test_share_of_the_flow_is_drawn_between_reads() -> None:
    measures = [
        {"clock": 100, "cash": 100, "fetched_at": 10.0},
        {"clock": 300, "cash": 50, "fetched_at": 20.0},
        {"clock": 400, "cash": 100, "fetched_at": 40.0},
    ]
    assert _flow(measures) == [(10.0, 0.25), (20.0, 0.25), (20.0, 1.0), (40.0, 1.0)]
    with pytest.raises(BadInput, match="reads kept of this page: 1; a picture needs 2"):
        _flow(measures[:1])


def test_store_has_the_last_reads_only() -> None:
    assert "apply to --recorded only" in history("http://a.example/", "--at", "2024-01-01")[2]
