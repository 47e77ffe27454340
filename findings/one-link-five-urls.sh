#!/usr/bin/env bash
# One link with characters that RFC 3986 does not allow in URLs, but pages have, is asked for under five URLs by Python's
# HTTP clients and URL libraries. httpx 0.28.1 escapes ` { } in a path, and nothing in a query; requests 2.34.2 and aiohttp
# 3.14.5 escape all of them, and write %7c as %7C; w3lib 2.5.0, which makes Scrapy's requests, escapes all and leaves %7c;
# its canonicalize_url, by which Scrapy tells requests apart, decodes %7c in the path and writes %7C in the query; ada
# 4.0.0, a parser of the URL standard, escapes ^ ` { } in a path, and nothing in a query. A frontier that compares URLs
# as text knows five pages.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet ada-url==4.0.0 w3lib==2.5.0 httpx==0.28.1 requests==2.34.2 aiohttp==3.14.5
cat > "$folder/run.py" <<'PYTHON'
import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import ada_url
import aiohttp
import httpx
import requests
from w3lib.url import canonicalize_url, safe_url_string

LINK = "/a|b[c]^d`e{f}%7c?q=a|b[c]^d`e{f}%7c"
asked = []


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
threading.Thread(target=server.serve_forever, daemon=True).start()
site = f"http://127.0.0.1:{server.server_port}"


async def by_aiohttp():
    async with aiohttp.ClientSession() as client, client.get(site + LINK) as answer:
        await answer.read()


found = {"ada": ada_url.join_url(site, LINK), "w3lib": safe_url_string(site + LINK), "canonicalize": canonicalize_url(site + LINK)}
for name, get in (("httpx", httpx.get), ("requests", requests.get)):
    get(site + LINK)
    found[name] = asked[-1]
asyncio.run(by_aiohttp())
found["aiohttp"] = asked[-1]
server.shutdown()
found = {name: url.removeprefix(site) for name, url in found.items()}
for name, url in found.items():
    print(f"{name:13}{url}")
# ada          /a|b[c]%5Ed%60e%7Bf%7D%7c?q=a|b[c]^d`e{f}%7c
# w3lib        /a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D%7c?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D%7c
# canonicalize /a|b[c]%5Ed%60e%7Bf%7D|?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D%7C
# httpx        /a|b[c]^d%60e%7Bf%7D%7c?q=a|b[c]^d`e{f}%7c
# requests     /a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D%7C?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D%7C
# aiohttp      /a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D%7C?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D%7C
assert found["ada"] == "/a|b[c]%5Ed%60e%7Bf%7D%7c?q=a|b[c]^d`e{f}%7c", "it changed"
assert found["requests"] == found["aiohttp"], "it changed"
assert len(set(found.values())) == 5, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py"
