"""URLFrontier's own Java client, an artifact of Maven Central, against a real service: see tests/java/urlfrontier."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import want_tool
from maven_jars import Jars
from repository import ROOT
from urlfrontier_client import served_by_command

pytestmark = pytest.mark.slow

FOLDER = ROOT / "tests/java/urlfrontier"
JARS = Jars("urlfrontier-client", FOLDER, "urlfrontier-API")
JAVA = "17"
SECONDS_MAX = 300.0  # It takes 10 s on an idle machine.


def test_tests_of_the_java_client_of_urlfrontier_pass(tmp_path: Path) -> None:
    javac, java = want_tool("javac", "default-jdk-headless"), want_tool("java", "default-jdk-headless")
    if not JARS.home.is_dir():
        want_tool("mvn", "maven")
    path = f"{JARS.ensure()}/*"
    classes, sources = tmp_path / "classes", map(str, FOLDER.glob("src/test/java/**/*.java"))
    compiling = [javac, "-Xlint:all", "-Werror", "-proc:none", "--release", JAVA, "-cp", path, "-d", str(classes)]
    done = subprocess.run([*compiling, *sources], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    settings = {"host_delay_seconds": "0", "max_crawls": "2"}
    with served_by_command(tmp_path / "data", 0, "--urlfrontier-allow-delete", **settings) as (_, address):
        running = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Durlfrontier.address={address}"]
        running += ["-cp", f"{classes}:{path}", "org.junit.platform.console.ConsoleLauncher", "execute"]
        running += [f"--scan-classpath={classes}", "--include-engine=junit-jupiter", "--disable-banner"]
        done = subprocess.run(
            [*running, "--disable-ansi-colors"], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) tests successful", done.stdout)
    assert passed is not None
    assert int(passed[1]) == sum(path.read_text().count("@Test\n") for path in FOLDER.glob("src/**/*.java"))
