#!/usr/bin/env bash
# gowarc 0.8.96, the writer of Zeno, marks each revisit record WARC-Truncated: length, also where the answer was read to
# its end and is the same as the one before. So WARC-Truncated of a revisit does not say that a page was cut off.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > main.go <<'GO'
package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	warc "github.com/internetarchive/gowarc"
)

func main() {
	site := httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
		to.Header().Set("Content-Type", "text/html")
		io.WriteString(to, "<p>The same text, of 35 bytes in all.")
	}))
	rotator := warc.NewRotatorSettings()
	rotator.OutputDirectory, rotator.Compression, rotator.WARCWriterPoolSize = "out", "GZIP", 1
	client, err := warc.NewWARCWritingHTTPClient(warc.HTTPClientSettings{
		RotatorSettings: rotator,
		DedupeOptions:   warc.DedupeOptions{LocalDedupe: true, SizeThreshold: 1},
		TempDir:         ".",
	})
	if err != nil {
		panic(err)
	}
	go func() {
		for failed := range client.ErrChan {
			panic(failed.Err)
		}
	}()
	for range 3 {
		answer, err := client.Get(site.URL + "/page")
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	client.Close()
	files, _ := filepath.Glob("out/*.warc.gz")
	fmt.Fprintln(os.Stdout, files[0])
}
GO
cat > go.mod <<'MOD'
module finding

go 1.24
MOD
go get github.com/internetarchive/gowarc@v0.8.96 2> /dev/null
go mod tidy 2> /dev/null
python3 - "$(go run .)" <<'PYTHON'
import gzip
import sys
from collections import Counter

found = Counter()
for record in gzip.open(sys.argv[1]).read().split(b"WARC/1.1\r\n"):
    head = record.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    kind = next((line for line in head if line.startswith("warc-type")), "")
    if kind in ("warc-type: response", "warc-type: revisit"):
        found[kind, next((line for line in head if line.startswith("warc-truncated")), "")] += 1
print(found)
# Counter({('warc-type: revisit', 'warc-truncated: length'): 2, ('warc-type: response', ''): 1})
assert found == {("warc-type: response", ""): 1, ("warc-type: revisit", "warc-truncated: length"): 2}, "it changed"
PYTHON
