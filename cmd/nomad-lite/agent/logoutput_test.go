package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
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
		if n, err := (idTruncatingWriter{&out}).Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: wrote %d bytes, %v", line, n, err)
		}
		if out.String() != want {
			t.Errorf("%q: wrote %q, want %q", line, out.String(), want)
		}
	}
}

func TestLogFormats(t *testing.T) {
	const id = "0b6d2a52-7c36-4b4e-9a2f-5c1d3e4f5a6b"
	log := func(c config.Config, forceColour bool) string {
		var out strings.Builder
		newLogger(&c, redact.NewShared(), &cli.Streams{Err: &out, ForceColour: forceColour, NoColour: !forceColour}).Info("task ended", "alloc_id", id)
		return out.String()
	}
	if text := log(config.Config{}, false); !strings.HasSuffix(text, " [INFO]  nomad-lite: task ended: alloc_id=0b6d2a52\n") || strings.Contains(text, "\x1b") {
		t.Errorf("text: %q", text)
	}
	if text := log(config.Config{}, true); !strings.Contains(text, "\x1b[") || !strings.Contains(text, "0b6d2a52") {
		t.Errorf("text with colours: %q", text)
	}
	var line map[string]string
	if text := log(config.Config{LogJSON: true}, true); json.Unmarshal([]byte(text), &line) != nil || line["@message"] != "task ended" || line["alloc_id"] != id {
		t.Errorf("JSON: %q", text)
	}
}
