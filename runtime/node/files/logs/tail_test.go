package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReadTail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []string // content of the stream's files, oldest first
		want  string
	}{
		"no file":                 {nil, ""},
		"an empty file":           {[]string{""}, ""},
		"two lines":               {[]string{"first\nlast\n"}, "first\nlast\n"},
		"a line in two files":     {[]string{"first\nla", "st\n"}, "first\nlast\n"},
		"a line longer than that": {[]string{"first\n" + strings.Repeat("x", 30) + "\n"}, strings.Repeat("x", 19) + "\n"},
	} {
		dir := filepath.Join(t.TempDir(), "alloc", "logs")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		written := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
		for i, text := range c.files {
			path := filepath.Join(dir, "web.stderr."+string(rune('0'+i)))
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, written, written); err != nil {
				t.Fatal(err)
			}
		}
		tail, at, err := ReadTail(t.Context(), FollowRequest{AllocID: "a", Task: "web", LogDir: dir, Stream: Stderr}, 20)
		if err != nil || tail != c.want || at.IsZero() != (c.files == nil) || !at.IsZero() && !at.Equal(written) {
			t.Errorf("%s: %q, written %v, %v; want %q", name, tail, at, err, c.want)
		}
	}
}
