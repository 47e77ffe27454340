"""PageRank of an exported crawl on Spark, for `opic load-importance`: for graphs that one machine can't settle.

    opic export pages.parquet --links
    spark-submit examples/pagerank_spark.py pages.parquet pages.links.parquet importance.parquet
    opic load-importance importance.parquet --as-of TIME --bound BOUND        # both as the program prints them

It needs PySpark 3.5 or newer. Each step is a join of the links with the ranks and a sum by target. Power iteration
shrinks the distance from PageRank by the damping at each step, so the last change gives a bound on what is left. Pages
that are gone take no part; the rank of pages without links goes to all; the random jump is uniform, so classes of pages
with weights of their own are not in it.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

DAMPING = 0.85


def read_graph(spark: SparkSession, pages: str, links: str) -> tuple[DataFrame, DataFrame]:
    """Return the live pages (row, url), and their links (from, to, share of a page's rank)."""
    # Links name pages by their row in the file. monotonically_increasing_id() would leave gaps between partitions.
    rows = spark.read.parquet(pages).select("url", "state", f.col("_metadata.row_index").alias("row"))
    live = rows.where(f.col("state") != "gone").select("row", "url").cache()
    between = (
        spark.read.parquet(links)
        .join(live.select(f.col("row").alias("from")), "from")
        .join(live.select(f.col("row").alias("to")), "to")
    )
    counts = between.groupBy("from").agg((1 / f.count("*")).alias("share"))
    return live, between.join(counts, "from").select("from", "to", "share").cache()


def pagerank(live: DataFrame, links: DataFrame, bound: float, damping: float = DAMPING) -> tuple[DataFrame, float, int]:
    """Return the ranks (row, url, importance), a bound on their L1 distance from PageRank, and the number of steps."""
    pages, steps = live.count(), 0
    ranks = live.withColumn("importance", f.lit(1.0 / pages))
    while True:
        came = (
            links.join(ranks.select(f.col("row").alias("from"), "importance"), "from")
            .groupBy(f.col("to").alias("row"))
            .agg((damping * f.sum(f.col("importance") * f.col("share"))).alias("came"))
        )
        after = live.join(came, "row", "left").fillna(0.0, ["came"]).localCheckpoint()
        rest = (1.0 - after.agg(f.sum("came")).first()[0]) / pages
        after = after.select("row", "url", (f.col("came") + rest).alias("importance"))
        both = after.join(ranks.select("row", f.col("importance").alias("before")), "row")
        change = both.agg(f.sum(f.abs(f.col("importance") - f.col("before")))).first()[0]
        ranks, steps = after, steps + 1
        if (left := change * damping / (1 - damping)) <= bound:
            return ranks, left, steps


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("pages", help="the export, as Parquet")
    parser.add_argument("links", help="its links, as Parquet")
    parser.add_argument("out", help="where the importance goes, as Parquet: a directory, as Spark writes it")
    parser.add_argument("--bound", type=float, default=1e-6, help="L1 distance from PageRank to stop at (%(default)s)")
    parser.add_argument("--damping", type=float, default=DAMPING, help="OPIC_DAMPING of the crawl (%(default)s)")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("opic-pagerank").getOrCreate()
    live, links = read_graph(spark, given.pages, given.links)
    ranks, left, steps = pagerank(live, links, given.bound, given.damping)
    ranks.select("url", "importance").write.mode("overwrite").parquet(given.out)
    print(f"{steps} steps; --bound {left:.3g}")
    spark.stop()


if __name__ == "__main__":
    main()
