package logsearch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// BenchmarkSearch measures searches in 100 MiB of output, with ten lines arriving per millisecond. Its baseline reads the files.
func BenchmarkSearch(b *testing.B) {
	const streamCount, fileCount, fileSize = 2, 5, 10 << 20
	var streams []Stream
	total := int64(0)
	for i := range streamCount {
		dir := filepath.Join(b.TempDir(), "alloc", "logs")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		key := StreamKey{fmt.Sprintf("alloc-%d", i), "web", logs.Stdout}
		streams = append(streams, Stream{key, dir})
		line := 0
		for index := range fileCount {
			var content strings.Builder
			var times []byte
			var previous logfile.ArrivalTime
			for content.Len() < fileSize {
				if line%10 == 0 {
					next := logfile.ArrivalTime{Offset: int64(content.Len()), Time: time.UnixMilli(testTime + int64(line/10))}
					times, previous = logfile.AppendArrivalTime(times, previous, next), next
				}
				fmt.Fprintf(&content, "2026-05-04T12:00:00Z level=info request=%d path=/some/where/over/there status=200 took=12ms\n", line)
				line++
			}
			name := logfile.Name(logfile.Prefix("web", "stdout"), int64(index))
			if err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte(content.String()), 0o644), os.WriteFile(filepath.Join(dir, logfile.ArrivalTimesFile(name)), times, 0o644)); err != nil {
				b.Fatal(err)
			}
			total += int64(content.Len())
		}
	}
	b.Run("baseline", func(b *testing.B) {
		b.SetBytes(total)
		buf := make([]byte, maxPageSize)
		for b.Loop() {
			for _, s := range streams {
				names, err := filepath.Glob(filepath.Join(s.LogDir, "web.*"))
				if err != nil {
					b.Fatal(err)
				}
				for _, name := range names {
					f, err := os.Open(name)
					if err != nil {
						b.Fatal(err)
					}
					for err == nil {
						_, err = f.Read(buf)
					}
					f.Close()
					if err != io.EOF {
						b.Fatal(err)
					}
				}
			}
		}
	})
	enough := errors.New("enough lines")
	for _, c := range []struct {
		name     string
		filter   Filter
		backward bool
		maxLines int
		want     int
	}{
		{"text", must(NewTextFilter("STATUS=500")), false, 0, 0},
		{"regexp with a prefix", must(NewRegexpFilter(`status=5\d\d`)), false, 0, 0},
		{"regexp without a prefix", must(NewRegexpFilter(`(error|warn).*status=5`)), false, 0, 0},
		{"newest 1000 lines", Filter{}, true, 1000, 1000},
	} {
		b.Run(c.name, func(b *testing.B) {
			if c.maxLines == 0 {
				b.SetBytes(total)
			}
			b.ReportAllocs()
			for b.Loop() {
				found := 0
				err := Run(b.Context(), Request{Streams: streams, Filter: c.filter, Backward: c.backward}, func(Line) error {
					if found++; found == c.maxLines {
						return enough
					}
					return nil
				}, func(Progress) error { return nil })
				if err != nil && err != enough || found != c.want {
					b.Fatalf("%d lines, %v", found, err)
				}
			}
		})
	}
}
