"""A real Prometheus for the tests, with the rules and the jobs of deploy/, which it finds at other addresses."""

from collections.abc import Mapping, Sequence
from typing import Any

import curls
import httpx
import yaml
from ports import free_port
from prometheus_files import PROMETHEUS
from server_process import ServerProcess


class Prometheus(ServerProcess):
    """Scrapes some processes every other second."""

    def __init__(self, binary: str, targets: Mapping[str, Sequence[str]]) -> None:
        """Scrape targets, `host:port`, by the name of their job."""
        super().__init__("prometheus")
        self._binary, self._targets = binary, targets
        self.url = f"http://127.0.0.1:{free_port()}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] |= {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
        config["scrape_configs"] = [
            {"job_name": job["job_name"], "static_configs": [{"targets": list(self._targets[job["job_name"]])}]}
            for job in config["scrape_configs"]
            if job["job_name"] != "prometheus"  # Itself.
        ]
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [self._binary, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"]
        self.launch([*command, f"--web.listen-address={self.url.removeprefix('http://')}"], self._ready)

    def _ready(self) -> bool:
        try:
            return curls.get(f"{self.url}/-/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expression: str) -> list[float]:
        """The values that an expression has now, one a series."""
        answer = curls.post(f"{self.url}/api/v1/query", data={"query": expression}, timeout=10)
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        found = answer.json()["data"]
        if found["resultType"] == "scalar":
            return [float(found["result"][1])]
        return [float(series["value"][1]) for series in found["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """Its rules, with how they are."""
        found = curls.get(f"{self.url}/api/v1/rules", timeout=10).raise_for_status().json()
        return [rule for group in found["data"]["groups"] for rule in group["rules"]]
