"""PageRank by a tool of PyPI, in an environment that has it: pypi.py TOOL GRAPH RANKS PARAMETERS.

GRAPH has the number of pages, that of links, and the two pages of each link, all int32. RANKS is written as float64,
NaN for a page that the tool does not know. PARAMETERS is a JSON object.
"""

import json
import sys

import numpy as np


def by_igraph(pages, links, given):
    import igraph

    return igraph.Graph(n=pages, edges=links, directed=True).pagerank(damping=0.85, **given)


def by_networkit(pages, links, given):
    import networkit as nk

    graph = nk.Graph(pages, directed=True)
    for source, target in links.tolist():
        graph.addEdge(source, target)
    ranks = nk.centrality.PageRank(graph, damp=0.85, **given)
    ranks.run()
    return ranks.scores()


def by_fast_pagerank(pages, links, given):
    from fast_pagerank import pagerank_power
    from scipy import sparse

    return pagerank_power(sparse.csr_matrix((np.ones(len(links)), links.T), shape=(pages, pages)), p=0.85, **given)


def by_networkx(pages, links, given):
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(pages))
    graph.add_edges_from(links.tolist())
    ranks = nx.pagerank(graph, alpha=0.85, **given)
    return [ranks[page] for page in range(pages)]


def by_rustworkx(pages, links, given):
    import rustworkx as rx

    graph = rx.PyDiGraph()
    graph.add_nodes_from(range(pages))
    graph.add_edges_from_no_data(list(map(tuple, links.tolist())))
    ranks = rx.pagerank(graph, alpha=0.85, **given)
    return [ranks[page] for page in range(pages)]


def by_scikit_network(pages, links, given):
    from scipy import sparse
    from sknetwork.ranking import PageRank

    matrix = sparse.csr_matrix((np.ones(len(links)), links.T), shape=(pages, pages))
    return PageRank(damping_factor=0.85, **given).fit_predict(matrix)


def by_kuzu(pages, links, given):
    import kuzu
    import pandas as pd

    connection = kuzu.Connection(kuzu.Database(""))
    connection.execute("CREATE NODE TABLE Page(id INT64 PRIMARY KEY)")
    connection.execute("CREATE REL TABLE Link(FROM Page TO Page)")
    nodes, ends = pd.DataFrame({"id": np.arange(pages)}), pd.DataFrame(links.astype(np.int64), columns=["a", "b"])
    connection.execute("COPY Page FROM $nodes", {"nodes": nodes})
    connection.execute("COPY Link FROM $links", {"links": ends})
    connection.execute("CALL project_graph('web', ['Page'], ['Link'])")
    options = "".join(f", {name} := {value!r}" for name, value in given.items())
    found = connection.execute(f"CALL page_rank('web'{options}) RETURN node.id AS id, rank ORDER BY id").get_as_df()
    return found["rank"].to_numpy()


def by_pyspark(pages, links, given):
    import tempfile
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from pagerank_spark import pagerank, read_graph

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:  # In the form of `opic export --links`.
        ends = links.astype(np.int64)
        pq.write_table(pa.table({"url": list(map(str, range(pages))), "state": ["read"] * pages}), f"{folder}/pages")
        pq.write_table(pa.table({"from": ends[:, 0], "to": ends[:, 1]}), f"{folder}/links")
        found, _, _ = pagerank(*read_graph(spark, f"{folder}/pages", f"{folder}/links"), **given)
        ranks = np.full(pages, np.nan)
        for row in found.select("row", "importance").collect():
            ranks[row.row] = row.importance
    return ranks


def main():
    tool, graph, ranks, given = sys.argv[1:]
    numbers = np.fromfile(graph, np.int32)
    pages, links = int(numbers[0]), numbers[2:].reshape(-1, 2)
    found = np.asarray(globals()[f"by_{tool}"](pages, links, json.loads(given)), np.float64)
    assert found.shape == (pages,)
    found.tofile(ranks)


main()
