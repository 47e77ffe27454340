"""One server of the store as deploy/ starts it: by start.sh, with redis.conf and users.acl."""

import shutil
from pathlib import Path

import redis
from ports import free_port
from repository import ROOT
from server_process import ServerProcess
from servers import Binary, answers

DEPLOY = ROOT / "deploy"
PASSWORDS = {"opic": "store-of-the-test", "admin": "admin-of-the-test"}


class ShippedServer(ServerProcess):
    """A single server with the shipped files, one line of whose rules may be replaced."""

    def __init__(self, binary: Binary, *, default: str = "", without: str = "") -> None:
        super().__init__(f"shipped-{binary.name}")
        self._binary, self.port = binary, free_port()
        self._conf = self.directory / "conf"
        self._conf.mkdir()
        shutil.copy(DEPLOY / "redis.conf", self._conf)
        lines = (DEPLOY / "users.acl").read_text().splitlines()
        lines = [default if default and line.startswith("user default ") else line for line in lines]
        (self._conf / "users.acl").write_text("\n".join(lines).replace(without, "") + "\n")

    @property
    def url(self) -> str:
        """The store as the service's user reaches it."""
        return f"redis://opic:{PASSWORDS['opic']}@127.0.0.1:{self.port}"

    def client(self, user: str = "admin") -> redis.Redis:
        """A client in the name of a user."""
        return redis.Redis(port=self.port, username=user, password=PASSWORDS[user])

    def start(self) -> None:
        """Run start.sh as docker-compose.yml does, on loopback, without a cluster."""
        own = {"STORE_CONF": self._conf, "STORE_RUN": self.directory, "STORE_SERVER": self._binary.path}
        command = ["/usr/bin/env", *(f"{name}={value}" for name, value in own.items())]
        command += [f"STORE_PASSWORD={PASSWORDS['opic']}", f"STORE_ADMIN_PASSWORD={PASSWORDS['admin']}"]
        command += ["/bin/sh", str(DEPLOY / "valkey/start.sh"), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--cluster-enabled", "no", "--dir", str(self.directory)]
        with self.client() as client:
            self.launch(command, lambda: answers(client))

    def shut_down(self) -> None:
        """End in order, as for an upgrade; `start` starts it again on its files."""
        self.stop()

    def replace_rules(self, line: str, by: str) -> None:
        """Replace a line of the rules, as of the next start."""
        path = self._conf / "users.acl"
        assert line in path.read_text()
        path.write_text(path.read_text().replace(line, by))

    def log(self) -> str:
        """What the server has said."""
        return Path(self.log_path).read_text(errors="replace")
