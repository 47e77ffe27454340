#!/usr/bin/env bash
# The body of an answer with Content-Encoding: gzip may have several gzip members (RFC 1952, 2.2). warcio 1.8.1 gives the
# first one as the whole body, and a body with two codings (Content-Encoding: gzip, gzip) as it is; neither raises
# anything. Python's gzip and urllib3 2.8.0 give all of it, so links in the second half are lost in one tool only.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet warcio==1.8.1 urllib3==2.8.0
cat > "$folder/run.py" <<'PYTHON'
import gzip
import io

import urllib3
from warcio import ArchiveIterator


def by_warcio(body, coding):
    block = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: {coding}\r\n\r\n".encode() + body
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
        "WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000001>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    record = next(iter(ArchiveIterator(io.BytesIO(head.encode() + block + b"\r\n\r\n"))))
    return record.content_stream().read()


def by_urllib3(body, coding):
    return urllib3.HTTPResponse(io.BytesIO(body), {"content-encoding": coding}, preload_content=False).read()


two_members = gzip.compress(b"first, ") + gzip.compress(b"second")
two_codings = gzip.compress(gzip.compress(b"text"))
for name, read in (("warcio", by_warcio), ("urllib3", by_urllib3)):
    print(f"{name:8} {read(two_members, 'gzip')!r} {read(two_codings, 'gzip, gzip')[:10]!r}")
# warcio   b'first, ' b'\x1f\x8b\x08...'
# urllib3  b'first, second' b'text'
assert gzip.decompress(two_members) == b"first, second"
assert by_warcio(two_members, "gzip") == b"first, ", "it changed"
assert by_warcio(two_codings, "gzip, gzip") == two_codings, "it changed"
assert by_urllib3(two_members, "gzip") == b"first, second", "it changed"
assert by_urllib3(two_codings, "gzip, gzip") == b"text", "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py"
