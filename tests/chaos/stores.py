"""The stores of the storm's worlds: servers as deploy/ starts them, a cluster, the bundled store of a service."""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import redis
from certificates import Certificate
from processes import Service, wait_until
from redis_cluster import Cluster
from repository import ROOT
from servers import Binary, Server, answers

from chaos.proxy import Proxy

PASSWORD, ADMIN_PASSWORD = "store-of-the-storm", "admin-of-the-storm"
TAIL_BYTES_MAX = 65_536


class ShippedServer(Server):
    """A server with the configuration and the access rules of deploy/, started by its script; on a Unix socket."""

    def __init__(self, binary: Binary) -> None:
        super().__init__(binary)
        self.url = f"unix://admin:{ADMIN_PASSWORD}@{self.socket_path}"

    def start(self) -> None:
        """Start the server and wait until it answers, its append-only file read."""
        own = ["--dir", str(self.directory), "--unixsocket", str(self.socket_path)]
        command = ["/bin/sh", str(ROOT / "deploy/valkey/start.sh"), *own, "--port", "0", "--cluster-enabled", "no"]
        words = {"STORE_CONF": str(ROOT / "deploy"), "STORE_RUN": str(self.directory), "STORE_SERVER": self.binary.path}
        words |= {"STORE_PASSWORD": PASSWORD, "STORE_ADMIN_PASSWORD": ADMIN_PASSWORD, "PATH": os.environ["PATH"]}
        with redis.Redis.from_url(self.url) as client:
            self.launch(
                ["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in words.items()), *command], lambda: answers(client)
            )


class OneServer:
    """A server behind a proxy."""

    def __init__(self, binary: Binary, rng: random.Random, certificate: Certificate | None = None) -> None:
        """Start nothing yet; with a certificate, the proxy wants TLS."""
        self.server, self.rng, self._certificate = ShippedServer(binary), rng, certificate

    def __enter__(self) -> "OneServer":
        with ExitStack() as stack:
            stack.enter_context(self.server)
            self.proxy = stack.enter_context(Proxy(self.server.socket_path, self._certificate))
            self.url = self.server.url  # For us; for workers there is the proxy, and fewer rights.
            scheme, trusted = "redis", ""
            if self._certificate is not None:
                scheme, trusted = "rediss", f"?ssl_ca_certs={self._certificate.file}"
            self.workers_url = f"{scheme}://opic:{PASSWORD}@127.0.0.1:{self.proxy.port}/0{trusted}"
            self.admin_url = f"{scheme}://admin:{ADMIN_PASSWORD}@127.0.0.1:{self.proxy.port}/0{trusted}"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def crash(self) -> None:
        """Kill the server and start it again: nothing is lost."""
        self.server.kill()
        self.server.start()

    def lose_the_end(self) -> None:
        """Kill the server, and cut off the last of what it wrote, as if its disk had not synced."""
        self.server.kill()
        files = (self.server.directory / "appendonlydir").glob("*.incr.aof")
        last = max(files, key=lambda path: int(path.name.split(".")[-3]))
        os.truncate(last, max(0, last.stat().st_size - self.rng.randrange(1, TAIL_BYTES_MAX)))


class ManyNodes:
    """A Redis Cluster."""

    def __init__(self, binary: Binary, nodes: int, replicas: int) -> None:
        self.cluster, self.replicas = Cluster(binary, nodes, replicas), replicas

    def __enter__(self) -> "ManyNodes":
        self.cluster.start()
        self.url = self.workers_url = self.admin_url = self.cluster.url
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def bring_back(self, key: str, node: object) -> Callable[[], None]:
        """What ends the absence of a killed node: its replica takes over, if there is one, and it comes back."""

        def end() -> None:
            if self.replicas:
                self.cluster.await_failover(key, node)
            self.cluster.restart(node)

        return end


class BundledStore:
    """The store of `opic serve --embedded`, and a proxy before it for whoever is no part of the service."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def __enter__(self) -> "BundledStore":
        with ExitStack() as stack:
            self.url = self.service.store_url()
            self.proxy = stack.enter_context(Proxy(Path(self.url.removeprefix("unix://"))))
            self.admin_url = self.workers_url = f"redis://127.0.0.1:{self.proxy.port}/0"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def crash(self) -> None:
        """Kill the server; the service starts it again."""
        before = self.service.store_pid()
        os.kill(before, 9)
        wait_until(lambda: self.service.store_pid() != before and self.service.ready())
