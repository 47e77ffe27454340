#!/usr/bin/env bash
# A robots.txt in UTF-8 that begins with a byte order mark, as some editors write it: Crawlee 1.11.0 and Python's
# urllib.robotparser read the mark as part of the first line, "User-agent: *", and so the whole first group is lost. What
# it disallows is fetched. Scrapy 2.18.0 skips the mark; search engines do, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet crawlee==1.11.0 scrapy==2.18.0
cat > "$folder/run.py" <<'PYTHON'
import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.robotparser import RobotFileParser

from crawlee._utils.robots import RobotsTxtFile
from crawlee.http_clients import ImpitHttpClient
from scrapy.robotstxt import ProtegoRobotParser

RULES = b"User-agent: *\nDisallow: /private/\n"
MARK = b"\xef\xbb\xbf"


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        body = MARK * (self.server.marked) + RULES
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


async def by_crawlee(site):
    robots = await RobotsTxtFile.load(f"{site}/robots.txt", ImpitHttpClient())
    return robots.is_allowed(f"{site}/private/1")


found = {}
for marked in (False, True):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.marked = marked
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_port}"
    parser = RobotFileParser(f"{site}/robots.txt")
    parser.read()
    scrapy = ProtegoRobotParser(MARK * marked + RULES, None).allowed(f"{site}/private/1", "bot")
    found[marked] = (asyncio.run(by_crawlee(site)), parser.can_fetch("bot", f"{site}/private/1"), scrapy)
    server.shutdown()
    print(f"mark {marked!s:5}: may fetch /private/1: Crawlee {found[marked][0]}, robotparser {found[marked][1]}, Scrapy {scrapy}")
# mark False: may fetch /private/1: Crawlee False, robotparser False, Scrapy False
# mark True : may fetch /private/1: Crawlee True, robotparser True, Scrapy False
assert found == {False: (False, False, False), True: (True, True, False)}, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py"
