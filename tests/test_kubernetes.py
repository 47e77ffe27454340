"""The manifests of deploy/kubernetes are valid, and say of our commands, settings and ports what is true."""

import re
import shlex
import subprocess
from typing import Any

import compose_file
import kubernetes_validate
import pytest
import yaml
from conftest import want_tool
from documents import wrong_opic
from repository import ROOT

from opic.ingest.kafka.connection import KafkaCluster
from opic.settings import Settings, topic_of

FOLDER, CHART = ROOT / "deploy/kubernetes", ROOT / "deploy/helm/opic"
FILES_OF_THE_STORE = ("deploy/redis.conf", "deploy/users.acl", "deploy/valkey/start.sh")
VERSION = "1.37"
SECRETS = {"OPIC_STORE": "redis://opic:x@opic-store:6379", "OPIC_API_TOKEN": "token-of-the-test"}
OF_OPERATORS = {"Kafka", "KafkaNodePool", "ScaledObject"}
FOUND: dict[str, dict[str, Any]] = {
    f"{one['kind']}/{one['metadata']['name']}": one
    for path in sorted(FOLDER.glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
}
PODS = {name: one["spec"]["template"]["spec"] for name, one in FOUND.items() if "template" in one.get("spec", {})}
OURS = {name: pod["containers"][0] for name, pod in PODS.items() if pod["containers"][0]["image"].startswith("opic:")}


def rendered(*given: str) -> dict[str, dict[str, Any]]:
    """What the chart makes of these values, by kind and name."""
    helm = want_tool("helm", how="no helm on the PATH; with Go: go install helm.sh/helm/v3/cmd/helm@v3.19.0")
    command = [helm, "template", "opic", CHART, "--kube-version", f"{VERSION}.0", *given]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(done.stdout)}


def test_chart_passes_the_linter() -> None:
    helm = want_tool("helm", how="no helm on the PATH")
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_chart_makes_the_manifests_by_default() -> None:
    found = rendered()
    files = found.pop("ConfigMap/opic-store")["data"]
    assert found == FOUND
    assert files == {path.name: path.read_text() for path in map(ROOT.joinpath, FILES_OF_THE_STORE)}


@pytest.mark.parametrize(
    "given",
    [
        ["store.enabled=false", "kafka.strimzi=false", "worker.replicas=3"],
        ["worker.keda=true", "shards=16", "kafka.partitions=8"],
        ["image.repository=registry.example/opic", "image.pullPolicy=Always", "imagePullSecrets[0].name=registry"],
        ["endpoint.tokens=opic-tokens"],
        ["settings.OPIC_CRAWL=news", "settings.OPIC_HOST_DELAY_SECONDS=2", "store.storageClassName=fast"],
    ],
)
def test_manifests_of_other_values_are_valid(given: list[str]) -> None:
    found = rendered(*(word for one in given for word in ("--set", one)))
    for one in found.values():
        if one["kind"] not in OF_OPERATORS:
            kubernetes_validate.validate(one, VERSION, strict=True)
    worker = found["Deployment/opic-worker"]["spec"]
    scaled = found.get("ScaledObject/opic-worker")
    endpoint = found["Deployment/opic-endpoint"]["spec"]["template"]["spec"]
    mounted = {mount["name"]: mount["mountPath"] for mount in endpoint["containers"][0]["volumeMounts"]}
    told = {one["name"]: one["value"] for one in endpoint["containers"][0].get("env", ())}
    assert told == ({"OPIC_TOKENS_FILE": f"{mounted['tokens']}/tokens.toml"} if "endpoint.tokens" in given[0] else {})
    # A manifest that is applied again must not undo what KEDA set.
    assert worker.get("replicas") == (None if scaled else 3 if "worker.replicas=3" in given else 2)
    assert ("StatefulSet/opic-store" in found) is ("store.enabled=false" not in given)
    assert (scaled is not None) is ("worker.keda=true" in given)
    if scaled is not None:
        crawl = found["ConfigMap/opic"]["data"].get("OPIC_CRAWL", "default")
        told = scaled["spec"]["triggers"][0]["metadata"]
        assert (told["consumerGroup"], told["topic"]) == (f"opic-{crawl}", topic_of(crawl))


@pytest.mark.parametrize("name", [name for name, one in FOUND.items() if one["kind"] not in OF_OPERATORS])
def test_manifest_is_valid(name: str) -> None:
    kubernetes_validate.validate(FOUND[name], VERSION, strict=True)


def test_misspelt_field_of_a_manifest_is_detected() -> None:
    broken = yaml.safe_load(yaml.safe_dump(FOUND["Deployment/opic-worker"]))
    broken["spec"]["template"]["spec"]["containers"][0]["comand"] = ["worker"]
    with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
        kubernetes_validate.validate(broken, VERSION, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_pod_has_limits_and_few_rights(name: str) -> None:
    pod = PODS[name]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"]["cpu"]
    probes = {key for key in container if key.endswith("Probe")}
    assert probes >= ({"startupProbe", "readinessProbe"} if not name.startswith("Job/") else set())


def test_images_equal_those_of_compose() -> None:
    of_compose = {service["image"] for service in compose_file.services().values()}
    assert {pod["containers"][0]["image"] for pod in PODS.values()} <= of_compose
    assert f"apache/kafka:{FOUND['Kafka/opic']['spec']['kafka']['version']}" in of_compose


@pytest.mark.parametrize("name", OURS)
def test_commands_and_variables_exist(name: str) -> None:
    container = OURS[name]
    words = container.get("command") or ["opic", *container["args"]]
    line = words[2] if words[:2] == ["/bin/sh", "-c"] else shlex.join(words)
    assert [sentence for part in line.split("||") for sentence in wrong_opic(shlex.split(part))] == []
    given = SECRETS | FOUND["ConfigMap/opic"]["data"] | {one["name"]: one["value"] for one in container.get("env", ())}
    assert set(given) <= {f"OPIC_{field.upper()}" for field in Settings.model_fields}
    settings = Settings.load(**{key.removeprefix("OPIC_").lower(): value for key, value in given.items()})
    assert "shards" not in settings.model_fields_set  # A crawl that is there keeps what it was made with.


def test_ports_of_probes_and_services_are_open() -> None:
    worker, endpoint = OURS["Deployment/opic-worker"], OURS["Deployment/opic-endpoint"]
    assert {one["name"]: one["value"] for one in worker["env"]}["OPIC_WORKER_PORT"] == "9100"
    assert worker["ports"] == [{"name": "metrics", "containerPort": 9100}]
    assert endpoint["args"][-1] == "8080"
    assert endpoint["ports"] == [{"name": "http", "containerPort": 8080}]
    for container in (worker, endpoint):
        port = container["ports"][0]["name"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port}
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port}
    assert FOUND["Service/opic"]["spec"]["ports"][0]["targetPort"] == "http"


@pytest.mark.parametrize("name", [name for name in FOUND if name.startswith(("Service/", "PodDisruptionBudget/"))])
def test_selectors_find_pods(name: str) -> None:
    selector = FOUND[name]["spec"]["selector"]
    wanted = selector.get("matchLabels", selector)
    labels = [FOUND[pod]["spec"]["template"]["metadata"]["labels"] for pod in PODS]
    assert sum(wanted.items() <= label.items() for label in labels) == 1


def test_workers_are_scaled_by_the_lag_of_their_group_on_their_topic() -> None:
    found = rendered("--set", "worker.keda=true", "--set", "shards=16", "--set", "worker.replicasMax=8")
    spec = found["ScaledObject/opic-worker"]["spec"]
    (trigger,) = spec["triggers"]
    settings = Settings.load(kafka_bootstrap=found["ConfigMap/opic"]["data"]["OPIC_KAFKA_BOOTSTRAP"])
    assert found["ConfigMap/opic"]["data"]["OPIC_SHARDS"] == "16"
    assert f"Deployment/{spec['scaleTargetRef']['name']}" in found
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 8)
    told = trigger["metadata"]
    assert told["bootstrapServers"] == settings.kafka_bootstrap
    assert told["topic"] == settings.kafka_topic
    assert told["consumerGroup"] == KafkaCluster(settings).group
    brokers = found["Kafka/opic"]
    assert settings.kafka_bootstrap == f"{brokers['metadata']['name']}-kafka-bootstrap:9092"
    assert brokers["spec"]["kafka"]["listeners"][0]["port"] == 9092


def test_files_of_the_store_equal_those_in_the_documents() -> None:
    guide = (ROOT / "docs/guide/kubernetes.md").read_text()
    files = re.findall(r"--from-file=(\S+)", guide)
    assert files == list(FILES_OF_THE_STORE)
    store = PODS["StatefulSet/opic-store"]
    assert {"name": "files", "configMap": {"name": "opic-store"}} in store["volumes"]
    assert store["containers"][0]["command"][1] == "/etc/opic/start.sh"
    asked = set(re.findall(r"\$\{(STORE_\w+):\?\}", (ROOT / "deploy/valkey/start.sh").read_text()))
    assert asked <= set(re.findall(r"--from-literal=(\w+)=", guide))
