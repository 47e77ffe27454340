"""The papers' experiments, repeated on recorded graphs: `opic reproduce`."""

from opic.errors import MissingExtra

try:
    import matplotlib
    import scipy
except ModuleNotFoundError:
    raise MissingExtra("the papers' experiments", "experiments") from None

__all__: list[str] = []
del matplotlib, scipy
