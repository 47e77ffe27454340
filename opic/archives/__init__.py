"""Web archives as crawl events: WARC, ARC and WAT files, packed by gzip or zstd or not, and WACZ."""

from opic.errors import MissingExtra

try:
    import brotli
    import selectolax
except ModuleNotFoundError:
    raise MissingExtra("the reader of web archives", "warc") from None

__all__: list[str] = []
del brotli, selectolax
