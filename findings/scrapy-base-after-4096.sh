#!/usr/bin/env bash
# Scrapy 2.19.0 takes a page's <base> only if its tag ends within the first 4,096 characters. Behind a long <style> or
# <script> in the head, which browsers do not mind, it is ignored, and every relative link that LinkExtractor and
# response.urljoin give leads to another page than in a browser. Source: scrapy.utils.response.get_base_url.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet scrapy==2.19.0
cat > "$folder/run.py" <<'PYTHON'
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

found = {}
for size in (1_000, 5_000):
    head = f"<style>{'/' * size}</style><base href='http://a.example/docs/'>"
    body = f"<!DOCTYPE html><html><head>{head}</head><body><a href='page'>x</a></body></html>"
    response = HtmlResponse("http://a.example/", body=body.encode(), headers={"Content-Type": "text/html"})
    (link,) = LinkExtractor().extract_links(response)
    found[size] = (link.url, response.urljoin("page"))
    print(f"{size:,} bytes of style before <base>: {', '.join(found[size])}")
# 1,000 bytes of style before <base>: http://a.example/docs/page, http://a.example/docs/page
# 5,000 bytes of style before <base>: http://a.example/page, http://a.example/page
right, wrong = "http://a.example/docs/page", "http://a.example/page"
assert found == {1_000: (right, right), 5_000: (wrong, wrong)}, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py"
