"""What other tools call PageRank: how far each is from PageRank, as it is called by default, and as it can be set.

Each tool is installed by its package manager, in the version named here, into a temporary folder, and ranks the same
graphs: one made from a seed, in which half of the pages have no links and many have none in either direction, as in a
crawl that goes on; and a recorded one, with --data. It needs the network, Java, Maven, Node and Cargo; a tool that
can't be had is named and left out. Not one of `make bench`.

    python benchmarks/engines.py --data ../data --result benchmarks/results/engines.json
    python benchmarks/engines.py --data ../data --only igraph,networkx    the rows of the others stay as they were
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, write_result
from numpy.typing import NDArray
from scipy import sparse

from experiments.recorded_graphs import load_graph

RUNS = Path(__file__).parent / "engine_runs"
DAMPING = 0.85
THRESHOLD = 1e-14
INSTALL_SECONDS_MAX, RUN_SECONDS_MAX = 1_200.0, 900.0
MADE_PAGES, MADE_SEED = 10_000, 1
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
Ranks = NDArray[np.float64]


@dataclass(frozen=True)
class Tool:
    """A tool: where it comes from, its packages with their versions, and the ways in which it is called."""

    name: str
    registry: str  # One of INSTALL.
    packages: Sequence[str]
    program: str  # The name of the run: of a function, or of a class of Java.
    settings: dict[str, dict[str, Any]]  # What is given to it, by what the way is called.
    small_only: bool = False  # Takes too long, or too much memory, for the larger graph.


TOOLS = [
    Tool("igraph", "pypi", ["igraph==1.0.0"], "igraph", {"default": {}}),
    Tool("networkit", "pypi", ["networkit==11.2.2"], "networkit", {"default": {}, "set": {"tol": 1e-13}}),
    Tool("fast-pagerank", "pypi", ["fast-pagerank==1.0.0"], "fast_pagerank",
         {"default": {}, "set": {"tol": 1e-12, "max_iter": 1_000}}),
    Tool("networkx", "pypi", ["networkx==3.6.1", "scipy"], "networkx",
         {"default": {}, "set": {"tol": 1e-15, "max_iter": 1_000}}),
    Tool("rustworkx", "pypi", ["rustworkx==0.18.1"], "rustworkx",
         {"default": {}, "set": {"tol": 1e-17, "max_iter": 1_000}}),
    Tool("scikit-network", "pypi", ["scikit-network==0.33.5"], "scikit_network",
         {"default": {}, "diteration": {"solver": "diteration", "n_iter": 200}}),
    Tool("Kuzu", "pypi", ["kuzu==0.11.3", "pandas"], "kuzu",
         {"default": {}, "set": {"maxIterations": 1_000, "tolerance": 1e-12}}),
    Tool("graphology", "npm", ["graphology-metrics@2.4.2", "graphology@0.26.0"], "graphology",
         {"default": {}, "set": {"tolerance": 1e-15, "maxIterations": 1_000}}),
    Tool("ngraph", "npm", ["ngraph.pagerank@2.1.1", "ngraph.graph@20.1.2"], "ngraph",
         {"default": {}, "set": {"precision": 1e-10}}),
    Tool("LAW", "maven", ["it.unimi.dsi:law:2.7.2"], "ByLaw", {"default": {}, "set": {"tolerance": 1e-12}}),
    Tool("JGraphT", "maven", ["org.jgrapht:jgrapht-core:1.5.3"], "ByJGraphT",
         {"default": {}, "set": {"steps": 1_000, "tolerance": 1e-12}}),
    Tool("TinkerPop", "maven", ["org.apache.tinkerpop:tinkergraph-gremlin:3.7.4"], "ByTinkerPop",
         {"default": {}, "set": {"steps": 200, "tolerance": 1e-12}}, small_only=True),
    Tool("JUNG", "maven", ["net.sf.jung:jung-algorithms:2.1.1", "net.sf.jung:jung-graph-impl:2.1.1"], "ByJung",
         {"alpha .15": {}, "alpha .85": {"alpha": 0.85}}, small_only=True),
    Tool("Gephi Toolkit", "maven", ["org.gephi:gephi-toolkit:0.10.1"], "ByGephi",
         {"default": {}, "set": {"directed": 1, "tolerance": 1e-12}}, small_only=True),
    Tool("GraphX", "maven", ["org.apache.spark:spark-graphx_2.13:4.0.1"], "ByGraphX",
         {"tolerance .01": {}, "50 steps": {"steps": 50}, "links alone": {"links_alone": 1}}, small_only=True),
    Tool("pagerank_spark.py on PySpark", "pypi", ["pyspark==4.0.1", "pyarrow"], "pyspark",
         {"bound 1e-6": {"bound": 1e-6}}, small_only=True),
    Tool("crate graph", "crates", ["graph =0.3.2"], "graph",
         {"default": {"steps": 20, "tolerance": 1e-4}, "set": {"steps": 1_000, "tolerance": 1e-12}}),
    Tool("petgraph", "crates", ["petgraph =0.8.3"], "petgraph",
         {"20 steps": {"steps": 20, "tolerance": 0}, "200 steps": {"steps": 200, "tolerance": 0}}, small_only=True),
]  # fmt: skip


def made_graph(pages: int = MADE_PAGES, seed: int = MADE_SEED) -> NDArray[np.int64]:
    """Return the links of a graph as a crawl has it, (links, 2): half of the pages read, a tenth without any link."""
    random = np.random.default_rng(seed)
    popularity = random.pareto(1.2, pages) + 0.01
    out = random.geometric(1 / 9, pages) * (random.random(pages) < 0.5)
    sources = np.repeat(np.arange(pages), out)
    targets = random.choice(pages, len(sources), p=popularity / popularity.sum())
    alone = random.random(pages) < 0.1
    keep = (sources != targets) & ~alone[sources] & ~alone[targets]
    return np.unique(np.stack((sources[keep], targets[keep]), axis=1), axis=0)


def pagerank(links: NDArray[np.int64], pages: int) -> Ranks:
    """Return PageRank by the power method, from pages without links to all pages alike."""
    out = np.bincount(links[:, 0], minlength=pages)
    walk = sparse.csr_matrix((1 / out[links[:, 0]], (links[:, 1], links[:, 0])), shape=(pages, pages))
    ranks = np.full(pages, 1 / pages)
    while True:
        before, ranks = ranks, DAMPING * (walk @ ranks)
        ranks += (1 - ranks.sum()) / pages
        if np.abs(ranks - before).sum() < THRESHOLD:
            return ranks


# Installation, in a folder for each tool.


def run(command: Sequence[object], folder: Path, seconds: float = RUN_SECONDS_MAX) -> None:
    """Run a program in a folder.

    Raises:
        RuntimeError: it failed; the last of what it said.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:3])} …: {(done.stdout + done.stderr).strip()[-300:]}")


def install_pypi(tool: Tool, folder: Path) -> Callable[..., None]:
    """Install packages of PyPI, and return what runs the tool."""
    uv, python = Path(sys.executable).parent / "uv", folder / "env/bin/python"
    run([uv, "venv", "--quiet", "--python", sys.executable, "env"], folder, INSTALL_SECONDS_MAX)
    run(
        [uv, "pip", "install", "--quiet", "--python", python, "numpy", "scipy", *tool.packages],
        folder,
        INSTALL_SECONDS_MAX,
    )

    def ranked(graph: Path, ranks: Path, given: dict[str, Any]) -> None:
        run([python, RUNS / "pypi.py", tool.program, graph, ranks, json.dumps(given)], folder)

    return ranked


def install_npm(tool: Tool, folder: Path) -> Callable[..., None]:
    """Install packages of npm, and return what runs the tool."""
    run(["npm", "install", "--silent", "--no-audit", *tool.packages], folder, INSTALL_SECONDS_MAX)

    def ranked(graph: Path, ranks: Path, given: dict[str, Any]) -> None:
        run(["node", RUNS / "npm.mjs", tool.program, graph, ranks, json.dumps(given)], folder)

    return ranked


def install_crates(tool: Tool, folder: Path) -> Callable[..., None]:
    """Build the program of the crates, whose versions Cargo.toml names, and return what runs the tool."""
    for name in ("Cargo.toml", "crates.rs"):
        shutil.copy(RUNS / name, folder)
    named = (folder / "Cargo.toml").read_text()
    assert all('{} = "{}"'.format(*package.split()) in named for package in tool.packages)
    run(
        ["cargo", "build", "--release", "--quiet", "--target-dir", folder.parent / "crates"],
        folder,
        INSTALL_SECONDS_MAX,
    )

    def ranked(graph: Path, ranks: Path, given: dict[str, Any]) -> None:
        run(
            [folder.parent / "crates/release/crates", tool.program, graph, ranks, given["steps"], given["tolerance"]],
            folder,
        )

    return ranked


def fetch_jars(packages: Sequence[str], folder: Path) -> list[Path]:
    """Fetch packages of Maven, and what they need."""
    excluded = ""
    for name in EXCLUDED:
        group, artifact = name.split(":")
        excluded += f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
    wanted = ""
    for package in packages:
        group, artifact, version = package.split(":")
        named = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        wanted += f"<dependency>{named}<exclusions>{excluded}</exclusions></dependency>"
    own = "<modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>0</version>"
    pom = f'<project xmlns="http://maven.apache.org/POM/4.0.0">{own}<dependencies>{wanted}</dependencies></project>'
    (folder / "pom.xml").write_text(pom)
    run(["mvn", "-B", "-q", COPY_JARS, "-DincludeScope=runtime", "-DoutputDirectory=jars"], folder, INSTALL_SECONDS_MAX)
    return sorted((folder / "jars").glob("*.jar"))


def install_maven(tool: Tool, folder: Path) -> Callable[..., None]:
    """Fetch the jars of a tool, compile its program, and return what runs it."""
    fetch_jars(tool.packages, folder)
    sources = [RUNS / "java" / f"{name}.java" for name in ("Links", tool.program)]
    run(["javac", "-nowarn", "-cp", "jars/*", "-d", "classes", *sources], folder)

    def ranked(graph: Path, ranks: Path, given: dict[str, Any]) -> None:
        words = [f"{name}={value}" for name, value in given.items()]
        run(["java", "-Xmx6g", *OPENED, "-cp", "jars/*:classes", tool.program, graph, ranks, *words], folder)

    return ranked


# What poms name and no ranking uses; Maven Central does not have it.
EXCLUDED = (
    "sun.jdk:*",
    "com.fasterxml.jackson:*",
    "org.eclipse.jetty.aggregate:*",
    "net.java.dev:*",
    "org.slf4j:slf4j-log4j12",
)
OPENED_PARTS = (
    "java.lang",
    "java.lang.invoke",
    "java.util",
    "java.nio",
    "java.net",
    "sun.nio.ch",
    "sun.util.calendar",
)  # To Spark.
OPENED = [f"--add-opens=java.base/{part}=ALL-UNNAMED" for part in OPENED_PARTS]
INSTALL = {"pypi": install_pypi, "npm": install_npm, "crates": install_crates, "maven": install_maven}


# Measurement.


def measured(found: Ranks, truth: Ranks) -> dict[str, float | int]:
    """Return the sum of the ranks, the pages left out, and the L1 distance from PageRank when scaled to sum 1."""
    total = float(np.nansum(found))
    apart = np.abs(np.nan_to_num(found) / total - truth).sum()
    return {"sum": round(total, 6), "pages_missing": int(np.isnan(found).sum()), "l1": float(f"{apart:.2g}")}


def rows_of(tool: Tool, graphs: dict[str, tuple[Path, Ranks]], scratch: Path) -> Iterator[dict[str, Any]]:
    """Install a tool, and yield a row for each graph and each way to call it."""
    folder = scratch / tool.program
    folder.mkdir()
    ranked = INSTALL[tool.registry](tool, folder)
    about = {"tool": tool.name, "registry": tool.registry, "packages": list(tool.packages)}
    for name, (graph, truth) in graphs.items():
        if tool.small_only and len(truth) > MADE_PAGES:
            continue
        for way, given in tool.settings.items():
            began = time.monotonic()
            ranked(graph, folder / "ranks", given)
            figures = measured(np.fromfile(folder / "ranks"), truth)
            row = {**about, "graph": name, "called": way, "given": given, **figures}
            yield row | {"seconds": round(time.monotonic() - began, 1)}


def written(links: NDArray[np.int64], pages: int, path: Path) -> tuple[Path, Ranks]:
    """Write a graph to a file, and return that and its PageRank."""
    np.concatenate(([pages, len(links)], links.ravel())).astype(np.int32).tofile(path)
    return path, pagerank(links, pages)


def table(result: dict[str, Any]) -> str:
    """Return the figures as a table of Markdown: a row for each way to call a tool, a column for each graph."""
    names = list(result["graphs"])
    lines = [
        f"| tool | called | {' | '.join(f'{name}: L1' for name in names)} | sum |",
        "|---" * (len(names) + 3) + "|",
    ]
    cells = dict[tuple[str, str], dict[str, dict[str, Any]]]()
    for row in result["rows"]:
        cells.setdefault((row["tool"], row["called"]), {})[row["graph"]] = row
    for (tool, called), found in cells.items():
        row = found[names[0]]
        version = re.split("[=@:]+| =", row["packages"][0])[-1]
        with_values = ", ".join(
            f"`{name}={value:g}`" if isinstance(value, float) else f"`{name}={value}`"
            for name, value in row["given"].items()
        )
        apart = [f"{found[name]['l1']:.1g}" if name in found else "–" for name in names]
        missing = f", pages missing: {row['pages_missing']:,}" if row["pages_missing"] else ""
        lines.append(
            f"| {tool} {version} | {with_values or called} | {' | '.join(apart)} | {row['sum']:.4g}{missing} |"
        )
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--data", type=Path, help="folder of recorded graphs, with uk-2007-05-100000")
    options.add_argument("--only", default="", help="names of tools, by commas")
    options.add_argument(
        "--result", type=Path, help="where to write the figures; default benchmarks/results/engines.json"
    )
    options.add_argument(
        "--table", action="store_true", help="print the figures of the result file as Markdown, and stop"
    )
    given = options.parse_args()
    if given.table:
        print(table(json.loads((given.result or RESULTS / "engines.json").read_text())))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    wanted = {name for name in given.only.lower().split(",") if name}
    path = given.result or RESULTS / "engines.json"
    before = json.loads(path.read_text()) if wanted and path.exists() else {"rows": [], "left_out": {}}
    rows = [row for row in before["rows"] if row["tool"].lower() not in wanted]  # Of the tools that stay as they were.
    left_out = {name: why for name, why in before["left_out"].items() if name.lower() not in wanted}
    with tempfile.TemporaryDirectory(prefix="opic-engines-") as name:
        scratch = Path(name)
        links = made_graph()
        graphs = {"made": written(links, MADE_PAGES, scratch / "made")}
        about = {"made": {"pages": MADE_PAGES, "links": len(links), "seed": MADE_SEED}}
        if given.data:
            recorded = load_graph("uk-2007-05-100000", given.data)
            pairs = np.stack(recorded.links.nonzero(), axis=1).astype(np.int64)
            graphs[recorded.name] = written(pairs, len(recorded), scratch / "recorded")
            about[recorded.name] = {"pages": len(recorded), "links": len(pairs)}
        for tool in TOOLS:
            if wanted and tool.name.lower() not in wanted:
                continue
            try:
                for row in rows_of(tool, graphs, scratch):
                    rows.append(row)
                    write_result("engines", {"graphs": about, "rows": rows, "left_out": left_out}, path)
                    words = (row["tool"], row["graph"], row["called"], row["sum"], row["pages_missing"], row["l1"])
                    print("{:<15} {:<18} {:<12} sum {:<10.6g} missing {:<6} L1 {:.2g}".format(*words), flush=True)
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                left_out[tool.name] = str(error)
                print(f"{tool.name}: left out: {error}", flush=True)
            shutil.rmtree(scratch / tool.program, ignore_errors=True)
    order = [tool.name for tool in TOOLS]
    rows.sort(key=lambda row: order.index(row["tool"]))
    write_result("engines", {"graphs": about, "rows": rows, "left_out": left_out}, path)


if __name__ == "__main__":
    main()
