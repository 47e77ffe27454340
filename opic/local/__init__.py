"""The local-domain estimator: global PageRank of a domain's pages from a crawl of little more than the domain."""
