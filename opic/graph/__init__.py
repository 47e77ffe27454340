"""Link graphs as matrices: PageRank, the influence of a page on others, page selection. Pure numpy and scipy."""
