"""Focused sampling: what a topic on the web looks like, from a small sample of its pages. `opic sample`."""

from opic.errors import MissingExtra

try:
    import protego
    import scipy
    import selectolax
except ModuleNotFoundError:
    raise MissingExtra("focused sampling", "graph") from None

__all__: list[str] = []
del protego, scipy, selectolax
