#!/usr/bin/env bash
# webarchive-commons 3.0.4, which makes WAT files, takes an interim answer (103 Early Hints, RFC 8297) for the answer: the
# WAT record of a page has status 103 and no links. Of a Location with bytes of UTF-8, as many servers send it, it leaves
# these bytes out: /straße becomes /strae, another page, beside "Headers-Corrupt": true.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies><dependency>
<groupId>org.netpreserve.commons</groupId><artifactId>webarchive-commons</artifactId><version>3.0.4</version>
</dependency></dependencies></project>
XML
mvn -B -q -f "$folder/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$folder/jars"
cat > "$folder/Wat.java" <<'JAVA'
import java.io.*;
import org.archive.extract.*;

public class Wat {
  public static void main(String[] args) throws Exception {
    java.util.logging.LogManager.getLogManager().reset();
    try (OutputStream to = new FileOutputStream(args[1])) {
      var from = new ExtractingResourceProducer(ProducerUtils.getProducer(args[0]), new ExtractingResourceFactoryMapper());
      var output = new WATExtractorOutput(to, "x.wat");
      for (var next = from.getNext(); next != null; next = from.getNext()) {
        org.archive.util.StreamCopy.readToEOF(next.getInputStream());
        output.output(next);
      }
    }
  }
}
JAVA
cat > "$folder/run.py" <<'PYTHON'
import gzip
import json
import subprocess
import sys

folder = sys.argv[1]


def record(number, block):
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/{number}\r\n"
        f"WARC-Date: 2024-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + block + b"\r\n\r\n")


page = b'HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<a href="/next">next</a>'
hinted = b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n" + page
moved = "HTTP/1.1 301 Moved\r\nLocation: /straße\r\nContent-Length: 0\r\n\r\n".encode()
with open(f"{folder}/in.warc.gz", "wb") as file:
    file.write(record(1, page) + record(2, hinted) + record(3, moved))
java = ["java", "-cp", f"{folder}/out:{folder}/jars/*", "Wat", f"{folder}/in.warc.gz", f"{folder}/out.wat.gz"]
subprocess.run(java, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
found = []
for line in gzip.open(f"{folder}/out.wat.gz", "rt"):
    if line.startswith("{"):
        http = json.loads(line)["Envelope"]["Payload-Metadata"].get("HTTP-Response-Metadata")
        if http:
            links = [link["url"] for link in http.get("HTML-Metadata", {}).get("Links", [])]
            found.append((http["Response-Message"]["Status"], links, http["Headers"].get("Location")))
print(*found, sep="\n")
# ('200', ['/next'], None)
# ('103', [], None)
# ('301', [], '/strae')
assert found == [("200", ["/next"], None), ("103", [], None), ("301", [], "/strae")], "it changed"
PYTHON
javac -cp "$folder/jars/*" -d "$folder/out" "$folder/Wat.java"
python3 "$folder/run.py" "$folder"
