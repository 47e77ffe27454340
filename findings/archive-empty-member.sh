#!/usr/bin/env bash
# An empty gzip member in a web archive, as `cat a.warc.gz empty.gz b.warc.gz` makes it, ends the archive for FastWARC
# 2.0.1: it yields the records before it, and no error. gzip and warcio 1.8.1 find all three. A member without content is
# valid (RFC 1952, 2.2), and loggers that flush on a timer write such members.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet fastwarc==2.0.1 warcio==1.8.1
cat > "$folder/run.py" <<'PYTHON'
import gzip
import io

from fastwarc.warc import ArchiveIterator as ByFastWarc
from warcio import ArchiveIterator as ByWarcio


def record(number):
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>page"
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/{number}\r\n"
        f"WARC-Date: 2024-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


members = [record(1), b"", record(2), record(3)]
archive = b"".join(map(gzip.compress, members))
found = {
    "gzip": gzip.decompress(archive).count(b"WARC-Target-URI"),
    "warcio": sum(1 for _ in ByWarcio(io.BytesIO(archive))),
    "FastWARC": sum(1 for _ in ByFastWarc(io.BytesIO(archive))),
}
print(found)
# {'gzip': 3, 'warcio': 3, 'FastWARC': 1}
assert found == {"gzip": 3, "warcio": 3, "FastWARC": 1}, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py"
