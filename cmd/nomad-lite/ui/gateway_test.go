package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
)

// fetchEnvVar makes the test binary fetch the address in it, print the status, and exit.
const fetchEnvVar = "NOMAD_LITE_TEST_FETCH"

func TestMain(m *testing.M) {
	if address := os.Getenv(fetchEnvVar); address != "" {
		r, err := http.Get(address)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(r.StatusCode)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// socketAgent is an agent that listens on a unix socket and replies with what it was sent.
func socketAgent(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprintf(w, "%s %s token %q", r.Method, r.URL, r.Header.Get("X-Nomad-Token"))
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		for range 2 { // the handshake and one message
			kind, text, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			if err := conn.Write(r.Context(), kind, append([]byte("echo "), text...)); err != nil {
				return
			}
		}
		_ = conn.Close(websocket.StatusNormalClosure, "done")
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return socket
}

// startSession starts a gateway with a session.
func startSession(t *testing.T) (*browserGateway, *browserSession) {
	t.Helper()
	g, err := listenBrowserGateway()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	page := newBrowserSession(socketAgent(t), time.Hour, cancel, func() {})
	g.targetAddress = "/ui/" + loginFragment + page.loginSecret
	served := make(chan error, 1)
	go func() { served <- g.serve(ctx, page) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return g, page
}

// fetch sends a request to the gateway, and returns the status and the body.
func (g *browserGateway) fetch(t *testing.T, method, path string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, g.baseURL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
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

func TestSessionOfABrowser(t *testing.T) {
	g, page := startSession(t)
	if code, text := g.fetch(t, "GET", "/"+g.secretPath, "Sec-Fetch-Site", "cross-site"); code != 200 || !strings.Contains(text, "/ui/"+loginFragment+page.loginSecret) {
		t.Fatalf("the first visit: %d %s", code, text)
	}
	select {
	case <-g.secretPathReused:
		t.Fatal("the first visit counts as the second")
	case <-g.secretPathUsed:
	}
	if code, text := g.fetch(t, "GET", "/"+g.secretPath); code != http.StatusGone || !strings.Contains(text, "another program") || strings.Contains(text, page.loginSecret) {
		t.Errorf("the second visit: %d %s", code, text)
	}
	<-g.secretPathReused
	if code, text := g.fetch(t, "GET", "/ui/static/main.js"); code != 200 || text != `GET /ui/static/main.js token ""` {
		t.Errorf("a file of the page: %d %s", code, text)
	}
	reused := make(chan struct{})
	page.onLoginSecretReuse = func() { close(reused) }
	secret := page.loginSecret
	code, text := g.fetch(t, "POST", "/v1/agent/login", "X-Nomad-Token", secret)
	var reply struct{ Token string }
	if err := json.Unmarshal([]byte(text), &reply); code != 200 || err != nil || reply.Token == "" || reply.Token == secret {
		t.Fatalf("login: %d %s", code, text)
	}
	if code, text := g.fetch(t, "PUT", "/v1/jobs?namespace=*", "X-Nomad-Token", reply.Token); code != 200 || text != `PUT /v1/jobs?namespace=* token ""` {
		t.Errorf("a request with the token: %d %s", code, text)
	}
	if code, _ := g.fetch(t, "POST", "/v1/agent/login", "X-Nomad-Token", secret); code != 403 {
		t.Errorf("the second login: %d", code)
	}
	<-reused
	for _, token := range []string{"", secret, "wrong"} {
		if code, text := g.fetch(t, "GET", "/v1/jobs", "X-Nomad-Token", token); code != 403 {
			t.Errorf("a request with the token %q: %d %s", token, code, text)
		}
	}
}

func TestLoginOfASessionExpires(t *testing.T) {
	g, page := startSession(t)
	page.mu.Lock()
	page.loginExpires = time.Now()
	page.mu.Unlock()
	if code, _ := g.fetch(t, "POST", "/v1/agent/login", "X-Nomad-Token", page.loginSecret); code != 403 {
		t.Errorf("a late login: %d", code)
	}
}

func TestOtherWebSitesAreRejected(t *testing.T) {
	g, page := startSession(t)
	for name, header := range map[string][]string{
		"a name that points at the address": {"Host", "rebind.example:80"},
		"localhost, which may be another":   {"Host", "localhost" + g.hostPort[strings.Index(g.hostPort, ":"):]},
		"a link on another site":            {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"},
		"a page on another port":            {"Sec-Fetch-Site", "same-site"},
		"a form on another site":            {"Origin", "https://other.example"},
		"a sandboxed frame":                 {"Origin", "null"},
	} {
		for _, path := range []string{"/", "/ui/", "/v1/jobs", "/v1/agent/login"} {
			for _, method := range []string{"GET", "POST"} {
				if code, text := g.fetch(t, method, path, append(header, "X-Nomad-Token", page.sessionToken)...); code != 403 {
					t.Errorf("%s: %s %s: %d %s", name, method, path, code, text)
				}
			}
		}
	}
	if code, _ := g.fetch(t, "POST", "/"+g.secretPath); code != 403 {
		t.Errorf("a form that has the code: %d", code)
	}
	if code, text := g.fetch(t, "GET", "/"+g.secretPath); code != 200 {
		t.Errorf("the visit of the browser after these: %d %s", code, text)
	}
}

func TestOtherUsersAreRejected(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run a process as another user")
	}
	g, _ := startSession(t)
	program := filepath.Join(t.TempDir(), "fetch") // the directory of the test binary is closed to other users
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(program); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fetch := func(uid uint32, path string) string {
		t.Helper()
		cmd := exec.Command(program)
		cmd.Dir = "/"
		cmd.Env = []string{fetchEnvVar + "=" + strings.TrimSuffix(g.baseURL(), "/") + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, path := range []string{"/", "/ui/", "/v1/agent/login", "/" + g.secretPath} {
		if code := fetch(4242, path); code != "403" {
			t.Errorf("%s as another user: %s", path, code)
		}
	}
	if code := fetch(0, "/ui/"); code != "200" {
		t.Errorf("as the same user: %s", code)
	}
	t.Setenv("SUDO_UID", "4242")
	g, _ = startSession(t)
	if code := fetch(4242, "/ui/"); code != "200" {
		t.Errorf("as the user who ran sudo: %s", code)
	}
}

func TestWebsocketNeedsTheTokenOfTheSession(t *testing.T) {
	g, page := startSession(t)
	dial := func(query, first string) (*websocket.Conn, error) {
		t.Helper()
		conn, _, err := websocket.Dial(t.Context(), "ws://"+g.hostPort+"/v1/client/allocation/x/exec"+query, nil)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { conn.CloseNow() })
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(first)); err != nil {
			t.Fatal(err)
		}
		return conn, nil
	}
	hello := fmt.Sprintf(`{"version":1,"auth_token":%q}`, page.sessionToken)
	for _, c := range []struct{ query, first string }{
		{"?ws_handshake=true", `{"version":1,"auth_token":"wrong"}`}, {"?ws_handshake=true", `{"version":1}`}, {"?ws_handshake=true", "x"}, {"", hello},
	} {
		conn, err := dial(c.query, c.first)
		if err != nil {
			t.Fatal(err)
		}
		if _, text, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("%s %s: %s, %v", c.query, c.first, text, err)
		}
	}
	conn, err := dial("?ws_handshake=true", hello)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`echo {"version":1,"auth_token":""}`, "echo hi"} {
		if _, text, err := conn.Read(t.Context()); err != nil || string(text) != want {
			t.Errorf("got %s, %v, want %s", text, err, want)
		}
	}
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure || !strings.Contains(err.Error(), "done") {
		t.Errorf("the end of the session: %v", err)
	}
}

func TestIdleSessionEnds(t *testing.T) {
	ended := make(chan struct{})
	page := newBrowserSession("/nowhere", 50*time.Millisecond, func() { close(ended) }, nil)
	page.trackRequestStart()
	select {
	case <-ended:
		t.Fatal("the session has ended during a request")
	case <-time.After(200 * time.Millisecond):
	}
	page.trackRequestEnd()
	<-ended
}

func TestBrowserCommand(t *testing.T) {
	dir := t.TempDir()
	xdgOpen := filepath.Join(dir, "xdg-open")
	if err := os.WriteFile(xdgOpen, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("WAYLAND_DISPLAY", "")
	for _, c := range []struct{ browser, display, want string }{
		{"", "", ""},
		{"", ":0", xdgOpen + " URL"},
		{"firefox -P me", "", "firefox -P me URL"},
		{"chromium --app=%s:lynx", ":0", "chromium --app=URL"},
	} {
		t.Setenv("BROWSER", c.browser)
		t.Setenv("DISPLAY", c.display)
		argv, err := browserCommandLine("URL")
		if got := strings.Join(argv, " "); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("BROWSER=%q DISPLAY=%q: %q, %v", c.browser, c.display, got, err)
		}
	}
}

// The page of a session asks for the same proof as the page of an agent.
func TestSessionProvesThatItKnowsItsToken(t *testing.T) {
	session := newBrowserSession("/nowhere.sock", time.Hour, func() {}, func() {})
	server := httptest.NewServer(session)
	defer server.Close()
	for token, want := range map[string]bool{session.sessionToken: true, "another": false} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
		nonce := agentproof.NewNonce()
		r, err := client.Get(server.URL + agentproof.Path + "?key=" + agentproof.KeyID(token) + "&nonce=" + nonce)
		if err != nil {
			t.Fatal(err)
		}
		var reply agentproof.ConnectionProof
		if err := json.NewDecoder(r.Body).Decode(&reply); err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		agent, own := conn.RemoteAddr().(*net.TCPAddr).AddrPort(), conn.LocalAddr().(*net.TCPAddr).AddrPort()
		if got := agentproof.Verify(reply.Proof, token, nonce, agent, own); got != want {
			t.Errorf("token %q: valid %v, want %v", token, got, want)
		}
		client.CloseIdleConnections()
	}
}
