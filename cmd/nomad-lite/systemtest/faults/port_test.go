package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// squatScript is the script of a task that tries to listen on an address until it does.
func squatScript(address string) string {
	return fmt.Sprintf("until net-peer serve %s squatter 2>/dev/null; do :; done", address)
}

// answersSquatter reports whether a task with squatScript listens at an address.
func answersSquatter(address string) bool {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	defer c.Close()
	fmt.Fprintln(c, "?") // without a listener, the read fails
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.HasPrefix(line, "squatter")
}

// killKeeper kills the keeper of an agent that was killed.
func killKeeper(t *testing.T, dataDir string) {
	t.Helper()
	for _, p := range systemtest.FindDataDirProcesses(dataDir) {
		if p.Kind == "keeper" {
			if err := p.Signal(unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no keeper runs")
}

// A task does not get the port of its agent while that restarts. Once agent and keeper are killed, it does; then the error of the
// next agent names the task.
func TestTaskThatTakesThePortOfTheAgent(t *testing.T) {
	t.Parallel()
	s := systemtest.StartPersistentAgent(t, nil)
	url := s.PinHTTPPort()
	address := strings.TrimPrefix(url, "http://")
	alloc := s.RunJobUntilStatus("squat", "service", "running", systemtest.NewRawExecShellTask("web", squatScript(address)))
	for range 3 {
		s.SignalAndWait(unix.SIGKILL)
		s.StartAndWaitReady()
	}
	if answersSquatter(address) {
		t.Error("the task has taken the port during a restart")
	}

	s.SignalAndWait(unix.SIGKILL)
	killKeeper(t, s.DataDir)
	s.WaitUntil("the task listens", func() (string, bool) { return "", answersSquatter(address) })
	agent := exec.Command("nomad-lite", "agent", "-config", filepath.Join(filepath.Dir(s.DataDir), "agent.hcl"))
	agent.Env = append(os.Environ(), systemtest.WorkDirEnvVar+"="+s.ProcessMarkerDir)
	out, err := agent.CombinedOutput()
	want := fmt.Sprintf(`process "net-peer" \(pid (\d+), uid %d\), of task "web" of allocation %.8s, has it`, os.Geteuid(), alloc.ID)
	named := regexp.MustCompile(want).FindSubmatch(out)
	if err == nil || named == nil {
		t.Fatalf("an agent whose port a task has: %v, %s\nwant %s", err, out, want)
	}

	for _, p := range systemtest.FindDataDirProcesses(s.DataDir) {
		if p.Kind == alloc.ID+"/web" { // the shell, which would start net-peer again
			if err := p.Signal(unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	pid, err := strconv.Atoi(string(named[1]))
	if err == nil {
		err = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.StartAndWaitReady()
}

// requestResults counts the requests of one kind.
type requestResults struct {
	atOnce, waited, refused, reset int
}

// Requests during restarts of the agent are answered by an agent, at once or after a wait, or reset. Over TCP none is refused.
func TestRequestsDuringRestarts(t *testing.T) {
	s := systemtest.StartPersistentAgent(t, nil)
	url := s.PinHTTPPort()
	address := strings.TrimPrefix(url, "http://")
	token, err := os.ReadFile(filepath.Join(s.DataDir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	s.RunJobUntilStatus("squat", "service", "running", systemtest.NewRawExecShellTask("web", squatScript(address)))

	socket := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(s.DataDir, agentsocket.FileName))
	}}
	kinds := map[string]struct {
		transport *http.Transport
		path      string
		body      string // a part of the body of the agent's response
	}{
		"TCP":         {&http.Transport{DisableKeepAlives: true}, "/v1/regions", `["global"]`},
		"page":        {&http.Transport{DisableKeepAlives: true}, "/ui/", "<html"},
		"unix socket": {socket, "/v1/regions", `["global"]`},
	}
	results := make(map[string]*requestResults)
	var mu sync.Mutex // guards the values of results
	untilEnd, end := context.WithCancel(t.Context())
	defer end()
	var wg sync.WaitGroup
	for name, kind := range kinds {
		r := &requestResults{}
		results[name] = r
		send := func() {
			start := time.Now()
			body, err := get(kind.transport, url+kind.path, strings.TrimSpace(string(token)))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && !strings.Contains(body, kind.body):
				t.Errorf("%s: another process answers: %q", name, body)
			case err == nil && time.Since(start) < 100*time.Millisecond:
				r.atOnce++
			case err == nil:
				r.waited++
			case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist):
				r.refused++
			case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
				strings.HasSuffix(err.Error(), "http: server closed idle connection"): // the agent exits before it has read the request
				r.reset++
			default:
				t.Errorf("%s: %v", name, err)
			}
		}
		wg.Go(func() {
			every := time.NewTicker(15 * time.Millisecond) // 200 requests per second of all kinds
			defer every.Stop()
			for {
				select {
				case <-every.C:
					wg.Go(send)
				case <-untilEnd.Done():
					return
				}
			}
		})
	}
	for i := range 10 {
		s.SignalAndWait([]unix.Signal{unix.SIGKILL, unix.SIGTERM}[i%2])
		s.StartAndWaitReady()
		for name := range kinds {
			answered := func() int {
				mu.Lock()
				defer mu.Unlock()
				return results[name].atOnce
			}
			before := answered()
			s.WaitUntil(name+": a request is answered at once", func() (string, bool) { return "", answered() > before })
		}
	}
	end()
	wg.Wait()
	for name, r := range results {
		t.Logf("%s: %+v", name, *r)
		if r.atOnce+r.waited == 0 {
			t.Errorf("%s: no request was answered", name)
		}
		if r.refused > 0 && name != "unix socket" {
			t.Errorf("%s: %d requests were refused", name, r.refused)
		}
	}
	if answersSquatter(address) {
		t.Error("the task has taken the port")
	}
}

// get returns the body of a response.
func get(transport *http.Transport, url, token string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("X-Nomad-Token", token)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
