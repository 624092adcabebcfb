package ui

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// agentSecret is the one-time secret of the agents of these tests, agentToken their token.
const agentSecret, agentToken = "ONETIMESECRETOFTHEAGENT", "token-of-the-operator"

// fakeAgent replies to the requests of the command and of the page.
func fakeAgent() http.Handler {
	mux := http.NewServeMux()
	reply := func(pattern, text string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
	}
	reply("/v1/agent/self", `{"stats": {"client": {"node_id": "8ba85cef-0000-4000-8000-000000000001"}}}`)
	reply("/v1/node/", `{"ID": "8ba85cef-0000-4000-8000-000000000001"}`)
	reply("/v1/agent/login/secret", fmt.Sprintf(`{"Secret": %q}`, agentSecret))
	reply("/v1/jobs", "the jobs")
	reply("/ui/", "<html>")
	mux.HandleFunc("/v1/agent/login", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Nomad-Token") != agentSecret {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"Token": %q}`, agentToken)
	})
	return mux
}

// startWithBrowser runs "nomad-lite ui" with a browser that stores the address in its argument. It returns that address,
// a function that interrupts the command, and its result.
func startWithBrowser(t *testing.T, o options, output *lockedBuffer) (opened string, interrupt func(), ended <-chan error) {
	t.Helper()
	dir := t.TempDir()
	opened, browser := filepath.Join(dir, "opened"), filepath.Join(dir, "browser")
	if err := os.WriteFile(browser, fmt.Appendf(nil, "#!/bin/sh\nprintf '%%s' \"$1\" > %[1]s.new && mv %[1]s.new %[1]s\n", opened), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BROWSER", browser)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- openUI(ctx, o, "", &cli.Streams{Out: output, Err: output}) }()
	for {
		if text, err := os.ReadFile(opened); err == nil {
			return string(text), cancel, result
		}
		select {
		case err := <-result:
			t.Fatalf("the command has ended before the browser was started: %v\n%s", err, output)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// lockedBuffer is a buffer for the output of a command that runs.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// listeningAddresses returns the loopback addresses on which this process listens. A task finds them among those of all
// processes in the same file.
func listeningAddresses(t *testing.T) map[string]bool {
	t.Helper()
	sockets := map[string]bool{}
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, descriptor := range descriptors {
		target, _ := os.Readlink(descriptor) // the descriptor of Glob is closed
		sockets[target] = true
	}
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	addresses := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		var ip, port uint32
		if _, err := fmt.Sscanf(fields[1], "%08X:%04X", &ip, &port); err == nil && fields[3] == "0A" && sockets["socket:["+fields[9]+"]"] {
			addresses[fmt.Sprintf("127.0.0.1:%d", port)] = true
		}
	}
	return addresses
}

// attack sends requests to an address as a task can: it knows the protocol, and no secret. It returns the replies.
func attack(t *testing.T, address string, random *rand.Rand) (replies []string) {
	t.Helper()
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	guess := func() string {
		return pick("", "x", "null", newSecret(), strings.Repeat("A", 26), strings.ToLower(newSecret()), "%00", "../", "*")
	}
	paths := []func() string{
		func() string { return "/" }, func() string { return "/ui/" }, func() string { return "/ui/jobs" }, func() string { return "//" }, func() string { return "/./" },
		func() string { return "/index.html" }, func() string { return "/open.html" }, func() string { return "/v1/agent/login" }, func() string { return "/v1/agent/login/secret" },
		func() string { return "/v1/jobs" }, func() string { return "/" + guess() }, func() string { return "/" + guess() + "/" + guess() },
		func() string { return "/?token=" + guess() }, func() string { return "/ui/?code=" + guess() }, func() string { return "/ui/static/" + guess() },
	}
	for i := range 150 {
		path, method := paths[i%len(paths)](), "GET"
		if i >= len(paths) { // the first requests are those of a browser
			method = pick("GET", "GET", "GET", "POST", "PUT", "HEAD", "OPTIONS")
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(path, "?")
		for _, name := range []string{"X-Nomad-Token", "Authorization", "Referer"} {
			if random.IntN(3) == 0 {
				r.Header.Set(name, guess())
			}
		}
		r.Header.Set("Sec-Fetch-Site", pick("none", "same-origin", "cross-site"))
		r.Header.Set("Sec-Fetch-Mode", "navigate")
		reply, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Errorf("the command does not reply to the attacker: %v", err)
			return replies
		}
		var text bytes.Buffer
		if err := reply.Write(&text); err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
		replies = append(replies, fmt.Sprintf("%s %s: %s", method, path, &text))
	}
	return replies
}

var refresh = regexp.MustCompile(`http-equiv="refresh" content="0; url=([^"]*)"`)

// follow does what a browser does with an address: it follows pages that lead to another one, and returns the last
// address.
func follow(t *testing.T, address string) string {
	t.Helper()
	for range 5 {
		at, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		var text []byte
		if at.Scheme == "file" {
			text, err = os.ReadFile(at.Path)
		} else {
			var reply *http.Response
			if reply, err = http.Get(address); err == nil {
				text, err = io.ReadAll(reply.Body)
				reply.Body.Close()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		next := refresh.FindSubmatch(text)
		if next == nil {
			break
		}
		address = html.UnescapeString(string(next[1]))
	}
	return address
}

// login exchanges the secret in the fragment of the address of a page, as the page does.
func login(t *testing.T, page string) (int, string) {
	t.Helper()
	at, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+at.Host+"/v1/agent/login", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Nomad-Token", strings.TrimPrefix(at.Fragment, "login="))
	reply, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// startCases start agents: one that listens on its unix socket only, and one with a port and a token.
var startCases = map[string]func(t *testing.T) options{
	"socket": func(t *testing.T) options {
		socket := filepath.Join(t.TempDir(), "agent.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: fakeAgent()}
		go server.Serve(l)
		t.Cleanup(func() { server.Close() })
		return testOptions(t, "unix://"+socket)
	},
	"token": func(t *testing.T) options {
		server := httptest.NewServer(fakeAgent())
		t.Cleanup(server.Close)
		o := testOptions(t, server.URL)
		o.authenticate = true
		return o
	},
}

func testOptions(t *testing.T, address string) options {
	t.Setenv("NOMAD_ADDR", address)
	return options{}
}

// TestTaskOfTheSameUserGetsNoSecret has a program of this user without access to the files of the machine, as a task of
// exec without root is, send requests to the port of the command before the browser does.
func TestTaskOfTheSameUserGetsNoSecret(t *testing.T) {
	for name, start := range startCases {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			o, before := start(t), listeningAddresses(t)
			var output lockedBuffer
			opened, interrupt, ended := startWithBrowser(t, o, &output)
			var replies []string
			for address := range listeningAddresses(t) {
				if !before[address] {
					replies = append(replies, attack(t, address, rand.New(rand.NewPCG(seed, 0)))...)
				}
			}
			if len(replies) == 0 {
				t.Fatal("the command does not listen")
			}
			for _, reply := range replies {
				for _, hidden := range []string{loginFragment, `"Token"`} {
					if strings.Contains(reply, hidden) {
						t.Errorf("the attacker got %q:\n%s", hidden, reply)
					}
				}
			}
			page := follow(t, opened)
			code, token := login(t, page)
			if code != 200 || !strings.Contains(token, "Token") {
				t.Errorf("the browser was not logged in after the attack: %s: %d %s", page, code, token)
			}
			_, secret, found := strings.Cut(page, loginFragment)
			if !found {
				t.Fatalf("the browser is at %s", page)
			}
			if !o.authenticate {
				interrupt() // the command serves the page
			}
			if err := <-ended; err != nil {
				t.Errorf("the command: %v", err)
			}
			if _, err := os.Stat(strings.TrimPrefix(opened, "file://")); err == nil {
				t.Errorf("%s is left behind", opened)
			}
			if strings.Contains(output.String(), secret) {
				t.Errorf("the secret is in the output, which is a file:\n%s", &output)
			}
		})
	}
}

// TestSecondUseOfTheCodeEndsTheSession opens the file of the browser twice, as a program does that can read it.
func TestSecondUseOfTheCodeEndsTheSession(t *testing.T) {
	var output lockedBuffer
	opened, _, ended := startWithBrowser(t, startCases["socket"](t), &output)
	text, err := os.ReadFile(strings.TrimPrefix(opened, "file://"))
	if err != nil {
		t.Fatal(err)
	}
	address := html.UnescapeString(string(refresh.FindSubmatch(text)[1]))
	stolen := follow(t, address)
	if code, text := login(t, stolen); code != 200 {
		t.Fatalf("the first use: %d %s", code, text)
	}
	reply, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	page, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusGone || !strings.Contains(string(page), "another program") {
		t.Errorf("the page of the second: %d %s, %v", reply.StatusCode, page, err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("the command: %v", err)
	}
}

func TestHandoverFileIsClosedToOthers(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	file, err := writeForwardingFile("http://127.0.0.1:1/CODE?a=1&b=<x>")
	if err != nil {
		t.Fatal(err)
	}
	defer file.remove()
	for path, want := range map[string]os.FileMode{file.dir: 0o700 | os.ModeDir, file.path(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %s", path, info.Mode(), err, want)
		}
	}
	if strings.Contains(file.fileURL(), "CODE") {
		t.Errorf("the address of the file has the secret: %s", file.fileURL())
	}
	noSnaps := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		snaps, runtimeDir, want string
	}{
		{noSnaps, "/run/user/1", "/run/user/1 " + os.TempDir()},
		{noSnaps, "", os.TempDir()},
		{noSnaps, "relative", os.TempDir()},
		{t.TempDir(), "/run/user/1", os.Getenv("HOME") + " /run/user/1 " + os.TempDir()},
	} {
		t.Setenv("XDG_RUNTIME_DIR", c.runtimeDir)
		if got := strings.Join(forwardingParentDirs(c.snaps), " "); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
	if err := file.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file.dir); err == nil {
		t.Errorf("%s is left behind", file.dir)
	}
}
