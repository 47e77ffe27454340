"""URLFrontier's gRPC interface to the service, for crawlers that speak it, such as StormCrawler.

`opic serve --urlfrontier PORT` answers it: see docs/guide/urlfrontier.md.
"""
