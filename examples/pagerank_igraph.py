"""PageRank of an exported crawl with igraph, for `opic load-importance`: on a machine that holds the graph in memory.

    opic export pages.parquet --links
    python examples/pagerank_igraph.py pages.parquet pages.links.parquet importance.parquet
    opic load-importance importance.parquet --as-of TIME

It needs igraph and pyarrow. Pages that are gone take no part; the random jump is uniform, so classes of pages with
weights of their own are not in it.
"""

import argparse
import json

import igraph
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DAMPING = 0.85


def pagerank(pages: str, links: str, damping: float = DAMPING) -> tuple[pa.Table, float]:
    """Return a table of url and importance, and of when the export is (Unix seconds)."""
    table = pq.read_table(pages, columns=["url", "state"])
    live = pc.not_equal(table["state"], "gone").to_numpy(zero_copy_only=False)
    number = np.cumsum(live) - 1  # Of each live page; links name pages by their row.
    ends = pq.read_table(links)
    sources, targets = ends["from"].to_numpy(), ends["to"].to_numpy()
    inside = live[sources] & live[targets]
    pairs = np.column_stack((number[sources[inside]], number[targets[inside]]))
    graph = igraph.Graph(n=int(live.sum()), edges=pairs, directed=True)  # With n, for pages without links count.
    ranks = graph.pagerank(damping=damping)
    about = json.loads(pq.read_schema(pages).metadata[b"opic"])
    return pa.table({"url": table["url"].filter(pa.array(live)), "importance": ranks}), about["as_of"]


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("pages", help="the export, as Parquet")
    parser.add_argument("links", help="its links, as Parquet")
    parser.add_argument("out", help="where the importance goes, as Parquet")
    parser.add_argument("--damping", type=float, default=DAMPING, help="OPIC_DAMPING of the crawl (%(default)s)")
    given = parser.parse_args()
    table, as_of = pagerank(given.pages, given.links, given.damping)
    pq.write_table(table, given.out)
    print(f"{len(table):,} pages; --as-of {as_of}")


if __name__ == "__main__":
    main()
