"""Jars that tests run on: those of a POM, fetched by Maven.

They are kept in a cache of the user, never in the repository, and held to the jars.sha256 beside the POM each time.

    python tests/maven_jars.py tests/kafka     writes that file anew, after a change of the POM
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from server_process import ServerFailed

MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_SECONDS_MAX = 600.0  # For some 40 MB: what the network gives.


@dataclass(frozen=True)
class Jars:
    """The jars of a POM, named after one of the artifacts in it."""

    name: str
    folder: Path
    artifact: str

    def version(self) -> str:
        """The version of the artifact that the POM names."""
        tree = ElementTree.parse(self.folder / "pom.xml")
        found = tree.find(f".//{{*}}dependency[{{*}}artifactId='{self.artifact}']/{{*}}version")
        assert found is not None
        assert found.text is not None
        return found.text

    @property
    def home(self) -> Path:
        """Where the jars are, or will be."""
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(cache) / f"opic-{self.name}" / self.version()

    def ensure(self) -> Path:
        """Return the directory of the jars, fetched and checked."""
        home = self.home
        if not home.is_dir():
            home.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
                fetch(self.folder, Path(scratch) / "jars")
                try:
                    (Path(scratch) / "jars").rename(home)
                except OSError:
                    if not home.is_dir():  # Otherwise another process has fetched them meanwhile.
                        raise
        lock = self.folder / "jars.sha256"
        if (found := sums(home)) != locked(lock):
            odd = sorted({name for name, _ in found.items() ^ locked(lock).items()})
            raise ServerFailed(f"{home} is not what {lock} says ({', '.join(odd[:5])}): remove it, and run again")
        return home


def fetch(folder: Path, into: Path) -> None:
    """Let Maven put the jars of a POM into a directory."""
    pom = str(folder / "pom.xml")
    command = ["mvn", "-B", "-q", "-f", pom, MAVEN_PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
    if done.returncode:
        raise ServerFailed(f"Maven did not fetch the jars of {pom}:\n{(done.stdout + done.stderr)[-2000:]}")


def sums(directory: Path) -> dict[str, str]:
    """The checksum of each jar."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.glob("*.jar"))}


def locked(lock: Path) -> dict[str, str]:
    """The checksums that the repository names."""
    rows = (line.split() for line in lock.read_text().splitlines() if line.strip())
    return {name: digest for digest, name in rows}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        fetch(folder, Path(scratch))
        lines = [f"{digest}  {name}\n" for name, digest in sums(Path(scratch)).items()]
    (folder / "jars.sha256").write_text("".join(lines))


if __name__ == "__main__":
    main()
