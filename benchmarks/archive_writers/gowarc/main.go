// Fetches URLs by gowarc, which writes archives: each line of standard input is a job, as JSON.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	warc "github.com/internetarchive/gowarc"
)

type job struct {
	Prefix, Folder, Compression string
	Requests                    [][2]string // Method and URL.
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var one job
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			panic(err)
		}
		run(one)
	}
}

func run(one job) {
	rotator := warc.NewRotatorSettings()
	rotator.Prefix, rotator.OutputDirectory, rotator.Compression = one.Prefix, one.Folder, one.Compression
	rotator.WARCWriterPoolSize = 1
	client, err := warc.NewWARCWritingHTTPClient(warc.HTTPClientSettings{
		RotatorSettings: rotator,
		DedupeOptions:   warc.DedupeOptions{LocalDedupe: true, SizeThreshold: 1},
		TempDir:         one.Folder,
	})
	if err != nil {
		panic(err)
	}
	go func() {
		for range client.ErrChan {
		}
	}()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client.Timeout = 20 * time.Second
	for _, asked := range one.Requests {
		request, _ := http.NewRequest(asked[0], asked[1], strings.NewReader(""))
		answer, err := client.Do(request)
		if err != nil {
			fmt.Fprintln(os.Stderr, asked, err)
			continue
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	client.Close()
}
