package commands

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// A terminal and the commands that print a state once show how far a download is. Commands that print a line
// for each change print its start and its result only.
func TestDownloadProgress(t *testing.T) {
	slowtest.SkipLong(t, "waits for downloads of many seconds")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	content, half := bytes.Repeat([]byte("x"), 4_000_000), 2_000_000
	resume := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requested := time.Now()
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:half])
		w.(http.Flusher).Flush()
		<-resume
		time.Sleep(time.Until(requested.Add(2 * time.Second))) // a shorter download has no event with its result
		_, _ = w.Write(content[half:])
	}))
	t.Cleanup(server.Close)
	finishDownloads := sync.OnceFunc(func() { close(resume) })
	t.Cleanup(finishDownloads)

	path := filepath.Join(t.TempDir(), "download.nomad.hcl")
	spec := misconfiguration{command: "sleep 1000", task: "artifact {\n source = \"URL/data.bin\"\n}\n"}.spec("download", strings.NewReplacer("URL", server.URL))
	if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(cmd *exec.Cmd) func() string {
		var text systemtest.LockedBuffer
		cmd.Stdout, cmd.Stderr = &text, &text
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // fails if it has ended
			_ = cmd.Wait()
		})
		return text.String
	}
	stream := start(nomadLiteCommand(s.Address, "event", "stream", "-topic", "Allocation"))
	lineByLine := map[string]func() string{
		"event stream": stream,
		"job run":      start(nomadLiteCommand(s.Address, "job", "run", path)),
		"run":          startForegroundRun(t, path),
	}
	onTerminal := exec.Command("nomad-lite", "run", path)
	terminal, err := pty.StartWithSize(onTerminal, &pty.Winsize{Rows: 24, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	var screen systemtest.LockedBuffer
	screenDone := make(chan struct{})
	go func() {
		defer close(screenDone)
		_, _ = io.Copy(&screen, terminal) // fails when the program has exited
	}()
	t.Cleanup(func() {
		_ = onTerminal.Process.Signal(os.Interrupt)
		_ = onTerminal.Wait()
		<-screenDone
		terminal.Close()
	})

	const progress = `data\.bin: 2000 kB of 4000 kB, \d+ k?B/s`
	waitForOutput(t, "run on a terminal", `main +pending +downloads artifacts: `+progress, screen.String)
	waitForOutput(t, "job status", `downloads artifacts: `+progress, func() string {
		text, _ := nomadLiteCommand(s.Address, "job", "status", "download").CombinedOutput() // fails until the job is registered
		return string(text)
	})
	for command, text := range lineByLine {
		waitForOutput(t, command, `(?i)download(s|ing) artifacts`, text)
	}
	finishDownloads()
	for command, text := range lineByLine {
		if command == "run" {
			waitForOutput(t, command, `data\.bin: 4000 kB downloaded in \d+s`, text)
		} else {
			waitForOutput(t, command, `running|Started`, text)
		}
		if strings.Contains(text(), "2000 kB") {
			t.Errorf("%s prints lines for the progress:\n%s", command, text())
		}
	}
}
