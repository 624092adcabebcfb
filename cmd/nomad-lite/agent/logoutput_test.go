package agent

import (
	"strings"
	"testing"
)

func TestLogHasShortIDs(t *testing.T) {
	const id = "0b6d2a52-7c36-4b4e-9a2f-5c1d3e4f5a6b"
	for line, want := range map[string]string{
		"task started: alloc_id=" + id + " task=web\n":   "task started: alloc_id=0b6d2a52 task=web\n",
		"task_id=" + id + "/web/1a2b3c4d\n":              "task_id=0b6d2a52/web/1a2b3c4d\n",
		"job \"" + id + "\", eval=" + id + "\n":          "job \"0b6d2a52\", eval=0b6d2a52\n",
		"dir=/var/lib/nomad-lite/alloc/" + id + "/web\n": "dir=/var/lib/nomad-lite/alloc/" + id + "/web\n",
		"nothing\n": "nothing\n",
		"checksum=0b6d2a527c364b4e9a2f5c1d3e4f5a6b01234\n": "checksum=0b6d2a527c364b4e9a2f5c1d3e4f5a6b01234\n",
	} {
		var out strings.Builder
		if n, err := (shortIDWriter{&out}).Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: wrote %d bytes, %v", line, n, err)
		}
		if out.String() != want {
			t.Errorf("%q: wrote %q, want %q", line, out.String(), want)
		}
	}
}
