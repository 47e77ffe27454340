"""Does a replay read what the writers of the field write, and is every record counted?

Archives are planned by a seed (`archive_plans` of the tests). Libraries write the planned records; crawlers fetch what
a server on the loopback answers as planned. Each archive is read, and compared with its plan: URL, status, time,
redirect and links of each event, and the counts of records without one. warcio counts the records too.

Without options, warcio and wget write. The others are built from benchmarks/archive_writers by Maven, Cargo and Go:

    python benchmarks/bench_archive_writers.py --archives 200 --writers all
"""

import argparse
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness import write_result
from warcio.recordloader import ArcWarcRecord
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from opic.archives.events import ArchivedEvent, ArchiveEvents
from opic.archives.files import ArchiveFile

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from archive_plans import IN_ARC, IN_WARC, SERVED, ArchivePlan, PlannedEvent, PlannedRecord
from archive_readers import kinds_by_warcio, recorded, row_of
from ports import free_port

PROGRAMS: Final = Path(__file__).resolve().parent / "archive_writers"
JAVA: Final = {
    "jwat": IN_WARC,
    "jwarc": IN_WARC,
    "heritrix": IN_WARC,
    "jwat-arc1": IN_ARC,
    "jwat-arc2": IN_ARC,
    "heritrix-arc": IN_ARC,
}
WRITERS: Final = ("warcio", *JAVA, "rust", "wget", "warcprox", "gowarc", "gowarc-zstd")
MAVEN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
WARCPROX: Final = "warcprox==2.13.1"
# Counts that are not reasons why a record gave no event.
NOTABLE: Final = ("records", "revisits_repeated", "bodies_cut", "pages_unparsable", "without_recorded_links")
OF_THE_WRITER: Final = ("warcinfo", "metadata", "not_web")  # Records that a writer adds of its own.
SUMMED: Final = ("archives", "records", "events", "links", "records_by_another_reader", "archives_that_differ")
FETCHES: Final = 12


# Writers of planned records.


def write_by_warcio(plan: ArchivePlan, path: Path) -> None:
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=path.suffix == ".gz")
        for row in plan.records:
            writer.write_record(warcio_record(writer, row))


def warcio_record(writer: WARCWriter, row: PlannedRecord) -> Any:
    headers = {"WARC-Record-ID": f"<{row.name}>", "WARC-Date": row.date.strftime("%Y-%m-%dT%H:%M:%SZ")} | row.fields
    block = io.BytesIO(row.block)
    parsed = row.kind == "revisit" or (row.kind == "response" and row.block.startswith(b"HTTP/1.1 200"))
    if parsed and "WARC-Segment-Number" not in row.fields:  # It writes the HTTP header in its own form.
        told = {"warc_content_type": row.content_type, "warc_headers_dict": headers}
        return writer.create_warc_record(row.url, row.kind, payload=block, length=len(row.block), **told)
    pairs = [
        ("WARC-Type", row.kind),
        ("WARC-Target-URI", row.url),
        *headers.items(),
        ("Content-Type", row.content_type),
    ]
    return ArcWarcRecord(
        "warc", row.kind, StatusAndHeaders("", pairs, "WARC/1.0"), block, None, row.content_type, len(row.block)
    )


class Programs:
    """Programs of other languages, built in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._built = folder, dict[str, Any]()

    def of(self, name: str) -> list[str]:
        """Return the command of one, after building it."""
        if name not in self._built:
            self._built[name] = getattr(self, f"_{name}")()
        return self._built[name]

    def _java(self) -> list[str]:
        pom, jars, out = PROGRAMS / "java/pom.xml", self._folder / "jars", self._folder / "classes"
        run("mvn", "-B", "-q", "-f", str(pom), MAVEN, "-DincludeScope=runtime", f"-DoutputDirectory={jars}")
        path = os.pathsep.join(map(str, sorted(jars.glob("*.jar"))))
        run("javac", "-cp", path, "-d", str(out), str(PROGRAMS / "java/Archives.java"))
        return ["java", "-cp", os.pathsep.join([str(out), path]), "Archives"]

    def _rust(self) -> list[str]:
        run("cargo", "build", "-q", "--release", "--locked", "--target-dir", str(self._folder), cwd=PROGRAMS / "rust")
        return [str(self._folder / "release/rw")]

    def _gowarc(self) -> list[str]:
        run("go", "build", "-o", str(self._folder / "gw"), ".", cwd=PROGRAMS / "gowarc")
        return [str(self._folder / "gw")]

    def _warcprox(self) -> list[str]:
        run(sys.executable, "-m", "venv", str(self._folder / "venv"))
        run(str(self._folder / "venv/bin/pip"), "install", "-q", WARCPROX)
        return [str(self._folder / "venv/bin/warcprox")]


def run(*command: str, **options: Any) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options)


# Crawlers.


class Server:
    """Answers each path with the bytes that are planned for it; then it closes the connection."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self._listener = socket.create_server(("127.0.0.2", 0))  # warcprox refuses 127.0.0.1.
        self.origin = f"http://127.0.0.2:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as asked:
            method, path, *_ = asked.readline().decode().split()
            while asked.readline().strip():
                continue
            block = self.answers.get(path.removeprefix(self.origin), b"HTTP/1.1 404 Not Found\r\n\r\n")
            if method == "HEAD":
                block = block[: re.search(rb"\n\r?\n", block).end()]  # type: ignore[union-attr]
            connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):  # Until the other side has read all.
                continue


@dataclass(frozen=True)
class Fetch:
    """A request of a crawler."""

    method: str
    event: PlannedEvent


def fetches_of(plan: ArchivePlan, server: Server) -> list[Fetch]:
    """Let a server answer as planned; return requests: some pages twice, some by other methods."""
    for record in plan.records:
        server.answers[record.url.removeprefix(server.origin)] = record.block
    methods = ["GET", "GET", "GET", "HEAD", "POST"]
    found = [Fetch("GET", event) for event in plan.events]
    return found + [Fetch(methods[nth % 5], event) for nth, event in enumerate(plan.events) if nth % 2]


def crawl_by_wget(fetches: Sequence[Fetch], path: Path) -> None:
    """The methods come one after the other: wget has one a run. The archives are joined."""
    parts = list[Path]()
    for method, options in (("GET", []), ("HEAD", ["--method=HEAD"]), ("POST", ["--post-data=a=b"])):
        urls = [fetch.event.url for fetch in fetches if fetch.method == method]
        if urls:
            parts.append(path.with_name(f"{path.name}.{method}.warc.gz"))
            file = f"--warc-file={str(parts[-1]).removesuffix('.warc.gz')}"
            command = [
                "wget",
                "-q",
                "--tries=1",
                "--max-redirect=0",
                "--no-warc-keep-log",
                "--output-document=/dev/null",
                file,
            ]
            # An answer of 404 ends it with status 8.
            subprocess.run([*command, *options, "-i", "-"], input="\n".join(urls), text=True, check=False)
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()


def crawl_by_gowarc(command: list[str], jobs: list[tuple[Sequence[Fetch], Path]], compression: str) -> None:
    lines = list[str]()
    for fetches, path in jobs:
        folder = path.with_name(path.name + ".files")
        folder.mkdir()
        requests = [(fetch.method, fetch.event.url) for fetch in fetches]
        lines.append(
            json.dumps({"Prefix": "x", "Folder": str(folder), "Compression": compression, "Requests": requests})
        )
    subprocess.run(command, input="\n".join(lines), text=True, check=True, stdout=subprocess.DEVNULL)
    for _, path in jobs:
        folder = path.with_name(path.name + ".files")
        path.write_bytes(b"".join(one.read_bytes() for one in sorted(folder.rglob("*.warc*"))))
        shutil.rmtree(folder)


@contextmanager
def warcprox(command: list[str], folder: Path) -> Iterator[int]:
    port = free_port()
    options = ["-p", str(port), "-d", str(folder), "-z", "--dedup-db-file", str(folder / "dedup")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, *options, "--dedup-min-text-size", "1"], cwd=folder, **quiet) as process:
        try:
            while b"warcprox" not in answered(port, "GET /status HTTP/1.1\r\nHost: x\r\n\r\n"):
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def answered(port: int, request: str) -> bytes:
    """Return what a server on the loopback answers; nothing before it listens."""
    found = bytearray()
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request.encode())
        while part := connection.recv(1 << 16):
            found += part
    return bytes(found)


def crawl_by_warcprox(command: list[str], jobs: list[tuple[Sequence[Fetch], Path]], folder: Path) -> None:
    with warcprox(command, folder) as port:
        for number, (fetches, _) in enumerate(jobs):
            for fetch in fetches:
                meta = json.dumps({"warc-prefix": f"n{number:05}n"})
                head = f"{fetch.method} {fetch.event.url} HTTP/1.1\r\nHost: x\r\nWarcprox-Meta: {meta}\r\n"
                answered(port, head + "Content-Length: 0\r\n\r\n")
    for number, (_, path) in enumerate(jobs):
        path.write_bytes(b"".join(one.read_bytes() for one in sorted(folder.glob(f"n{number:05}n*"))))


# Comparison.


class Comparison:
    """Counts of archives of one writer, read and compared with their plans."""

    def __init__(self, writer: str) -> None:
        self.counts, self.differ, self._writer = Counter[str](), list[str](), writer
        self._events = ArchiveEvents()  # One run: warcprox refers to records of other files.

    def close(self) -> None:
        self._events.close()

    def add(
        self,
        path: Path,
        wanted: Sequence[PlannedEvent],
        reasons: Counter[str],
        *,
        timed: bool,
        kinds: Counter[str] | None,
    ) -> None:
        """Compare; `kinds` are the numbers of records that another reader finds, by their types."""
        self._events.counts.clear()
        found = [
            one.event for one in self._events.events_of(ArchiveFile(path.name, path)) if isinstance(one, ArchivedEvent)
        ]
        counts = self._events.counts
        told = {name: count for name, count in counts.items() if count and name not in NOTABLE}
        assert counts["records"] == len(found) + sum(told.values()), (path, counts)  # The sums of the summary.
        told = {name: count for name, count in told.items() if name in reasons or name not in OF_THE_WRITER}
        a, b = (Counter(row_of(one, timed=timed) for one in rows) for rows in (found, wanted))
        self.counts.update({"archives": 1, "events": len(found), **{k: v for k, v in counts.items() if v}})
        self.counts["links"] += sum(len(one.links) for one in found)
        if kinds is not None:
            self.counts["records_by_another_reader"] += (theirs := sum(kinds.values()))
        if (
            a != b
            or told != {k: v for k, v in reasons.items() if v}
            or (kinds is not None and theirs != counts["records"])
        ):
            self.counts["archives_that_differ"] += 1
            self.differ += [f"{self._writer} {path.name}: {told} instead of {dict(reasons)}; {kinds}"]
            self.differ += [f"  ours   {one}" for one in (a - b)] + [f"  wanted {one}" for one in (b - a)]


def planned(writer: str, count: int, folder: Path, programs: Programs) -> list[tuple[Path, ArchivePlan]]:
    """Let a library write archives; return each with its plan."""
    plans = {f"{seed:04}": ArchivePlan(seed, kinds=JAVA.get(writer, IN_WARC)) for seed in range(count)}
    if writer == "warcio":
        for seed, (name, plan) in enumerate(plans.items()):
            write_by_warcio(plan, folder / f"{name}.warc{'.gz' * (seed % 2)}")
    else:
        with tempfile.TemporaryDirectory() as rows:
            for name, plan in plans.items():
                Path(rows, f"{name}.jsonl").write_text(plan.rows())
            command = [*programs.of("java"), writer] if writer in JAVA else programs.of("rust")
            run(*command, rows, str(folder))
    return [(path, plans[path.name.partition(".")[0]]) for path in sorted(folder.iterdir())]


def crawled(
    writer: str, count: int, folder: Path, programs: Programs, server: Server
) -> list[tuple[Path, list[Fetch]]]:
    """Let a crawler write archives; return each with what it was asked to fetch."""
    ending = ".warc.zst" if writer.endswith("zstd") else ".warc.gz"
    plans = [ArchivePlan(seed, FETCHES, kinds=SERVED, origin=server.origin) for seed in range(count)]
    jobs = [(fetches_of(plan, server), folder / f"{seed:04}{ending}") for seed, plan in enumerate(plans)]
    if writer == "wget":
        for fetches, path in jobs:
            crawl_by_wget(fetches, path)
    elif writer == "warcprox":
        (own := folder / "warcprox").mkdir()
        crawl_by_warcprox(programs.of("warcprox"), jobs, own)
        shutil.rmtree(own)
    else:
        crawl_by_gowarc(programs.of("gowarc"), jobs, "ZSTD" if writer.endswith("zstd") else "GZIP")
    return [(path, fetches) for fetches, path in jobs]


def compare(found: Comparison, writer: str, count: int, folder: Path, programs: Programs, server: Server) -> None:
    if writer in ("wget", "warcprox", "gowarc", "gowarc-zstd"):
        for path, fetches in crawled(writer, count, folder, programs, server):
            wanted, reasons = recorded(path, {fetch.event.url: fetch.event for fetch in fetches})
            found.add(path, wanted, reasons, timed=False, kinds=kinds_by_warcio(path))
            found.counts["fetches"] += len(fetches)
    else:
        for path, plan in planned(writer, count, folder, programs):
            kinds = None if writer == "jwat-arc2" else kinds_by_warcio(path)
            found.add(path, plan.events, plan.reasons, timed=True, kinds=kinds)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--archives", type=int, default=20, help="of each writer")
    options.add_argument("--writers", default="warcio,wget", help=f"all, or some of {', '.join(WRITERS)}")
    options.add_argument("--keep", type=Path, help="keep the archives in this folder")
    options.add_argument("--result", type=Path)
    given = options.parse_args()
    chosen = (
        WRITERS
        if given.writers == "all"
        else [name for name in given.writers.split(",") if name != "wget" or shutil.which(name)]
    )
    rows, differ = dict[str, Any](), list[str]()
    with tempfile.TemporaryDirectory(prefix="opic-writers-") as scratch, closing(Server()) as server:
        programs = Programs(Path(scratch))
        for writer in chosen:
            (folder := (given.keep or Path(scratch)) / "archives" / writer).mkdir(parents=True)
            with closing(Comparison(writer)) as found:
                compare(found, writer, given.archives, folder, programs, server)
            rows[writer] = dict(found.counts)
            differ += found.differ
            print(f"{writer:<12} {rows[writer]}", flush=True)
    print(*differ[:40], sep="\n")
    all_of = {name: sum(row.get(name, 0) for row in rows.values()) for name in SUMMED}
    write_result("archive_writers", {"all": all_of | {"writers": len(rows)}, "writers": rows}, given.result)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
