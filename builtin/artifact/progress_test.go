package artifact

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// serveSlowly serves the first half of a file, and its second half after resume is closed. It ignores write errors: the
// test fails by its missing file.
func serveSlowly(content []byte, withSize bool, resume <-chan struct{}) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		if withSize {
			rw.Header().Set("Content-Length", strconv.Itoa(len(content)))
		}
		half := len(content) / 2
		_, _ = rw.Write(content[:half])
		rw.(http.Flusher).Flush()
		<-resume
		_, _ = rw.Write(content[half:])
	}
}

// A download of more than two seconds has an event with its progress, and one with its result.
func TestProgressOfSlowDownload(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits two seconds for the progress of a download")
	}
	content := bytes.Repeat([]byte("0123456789"), 400_000)
	for _, c := range []struct {
		name               string
		withSize           bool
		progress, endsWith string
	}{
		{"of a known size", true, `^Downloading Artifacts: data\.bin: 2000 kB of 4000 kB, \d+ k?B/s$`, `^Downloading Artifacts: data\.bin: 4000 kB downloaded in \d+s$`},
		{"of an unknown size", false, `^Downloading Artifacts: data\.bin: 2000 kB, \d+ k?B/s$`, `^Downloading Artifacts: data\.bin: 4000 kB downloaded in \d+s$`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.host.progress = make(chan hook.Event)
			resume := make(chan struct{})
			w.routes["/data.bin"] = serveSlowly(content, c.withSize, resume)
			done := make(chan error, 1)
			go func() {
				_, err := w.prestart(nil, httpArtifact(w, "/data.bin?key=secret"))
				done <- err
			}()
			wanted := regexp.MustCompile(c.progress)
			operation := ""
			for e := range w.host.progress { // the first events may precede the first report
				if operation == "" {
					operation = e.OperationID
				}
				if e.OperationID == "" || e.OperationID != operation {
					t.Errorf("the event %+v does not belong to operation %q", e, operation)
				}
				if wanted.MatchString(e.Type + ": " + e.Message) {
					break
				}
			}
			close(resume)
			for ended := false; !ended; {
				select {
				case <-w.host.progress:
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					ended = true
				}
			}
			if last := w.host.events[len(w.host.events)-1]; !regexp.MustCompile(c.endsWith).MatchString(last) {
				t.Errorf("the last event is %q, want %s", last, c.endsWith)
			}
		})
	}
}

// A server or an archive can compromise the download process, whose reports can then be anything.
func TestProgressIgnoresInvalidReports(t *testing.T) {
	t.Parallel()
	tracker := new(progressTracker)
	valid := `{"received":7,"total":9}` + "\n"
	for _, text := range []string{
		valid, "{\n", `{"received":-1}` + "\n", `{"received":1,"total":-9}` + "\n", "\n", "null\n", strings.Repeat("x", 1<<20), "\n", `{"recei`, `ved":1e99}`, "\n",
	} {
		if n, err := io.WriteString(tracker, text); n != len(text) || err != nil {
			t.Fatalf("wrote %d bytes of %d: %v", n, len(text), err)
		}
		if len(tracker.partialLine) > maxReportLen {
			t.Fatalf("%d bytes of a line are stored", len(tracker.partialLine))
		}
	}
	if got, want := tracker.latestReport(), (progressReport{ReceivedBytes: 7, TotalBytes: 9}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// What git receives is counted, although git prints no progress that a program can read.
func TestCounterOfRepository(t *testing.T) {
	t.Parallel()
	repo := newRepository(t)
	repo.git("repack", "-a", "-d", "-q")
	root, err := os.OpenRoot(repo.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, dir := range []string{scratchDirName, repositoryDirName} {
		if err := root.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.Rename(".git", repositoryDirName+"/.git"); err != nil {
		t.Fatal(err)
	}
	d := &downloader{parsedSource: &parsedSource{sourceType: "git"}, stagingRoot: root, transferCounter: new(transferCounter)}
	d.updateReceivedRepositoryBytes()
	if n := d.transferCounter.receivedBytes.Load(); n < 100 {
		t.Errorf("counted %d bytes", n)
	}
}

// Each part of a download has its message. The process that unpacks a verified archive does not know how much
// another process has received.
func TestProgressMessages(t *testing.T) {
	t.Parallel()
	tracker := &progressTracker{sourceName: sourceNameForMessages("https://user:secret@host/dir/a.tgz?token=secret")}
	for _, c := range []struct{ report, want string }{
		{`{"received":3000}`, "a.tgz: 3000 B, 1500 B/s"},
		{`{"received":3000,"total":9000}`, "a.tgz: 3000 B of 9000 B, 1500 B/s"},
		{`{"received":0,"unpacking":true}`, "a.tgz: unpacking 3000 B"},
	} {
		if _, err := io.WriteString(tracker, c.report+"\n"); err != nil {
			t.Fatal(err)
		}
		if got := tracker.formatProgress(tracker.latestReport(), 1500); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got, want := tracker.formatResult(errors.New("broken"), 61*time.Second), "a.tgz: failed after 1m1s, 3000 B"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
