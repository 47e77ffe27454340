"""The local-domain estimator: global PageRank of a domain's pages from a crawl of little more than the domain."""

from opic.errors import MissingExtra

try:
    import protego
    import scipy
    import selectolax
except ModuleNotFoundError:
    raise MissingExtra("the local-domain estimator", "graph") from None

__all__: list[str] = []
del protego, scipy, selectolax
