package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/nomad/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
)

// execSessionClient is the client's end of a session.
type execSessionClient struct {
	t *testing.T
	*websocket.Conn
}

// startExecSession connects a client to a command. The returned channel is closed when the session has
// ended.
func startExecSession(t *testing.T, stop context.Context, command taskexec.Command) (*execSessionClient, <-chan struct{}) {
	t.Helper()
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		runExecSession(stop, conn, command)
	}))
	t.Cleanup(server.Close)
	conn, _, err := websocket.Dial(t.Context(), server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return &execSessionClient{t, conn}, ended
}

func (c *execSessionClient) sendMessage(text string) {
	c.t.Helper()
	if err := c.Write(c.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// readMessage returns the next message as text, or the error of the connection.
func (c *execSessionClient) readMessage() string {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	kind, text, err := c.Read(ctx)
	var closeErr websocket.CloseError
	switch {
	case errors.As(err, &closeErr):
		return fmt.Sprintf("closed %d %s", closeErr.Code, closeErr.Reason)
	case err != nil:
		return err.Error()
	case kind != websocket.MessageText:
		return "a message that is no text"
	}
	return string(text)
}

func (c *execSessionClient) wantMessages(want ...string) {
	c.t.Helper()
	for _, w := range want {
		if got := c.readMessage(); got != w {
			c.t.Fatalf("%s, want %s", got, w)
		}
	}
}

func wantClosed(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal(what + ": not yet")
	}
}

// The messages of an exec session have the order that clients expect.
func TestExecSession(t *testing.T) {
	sizes := make(chan driver.TerminalSize, 3)
	c, ended := startExecSession(t, t.Context(), taskexec.Command{RunInTask: func(ctx context.Context, e driver.Exec) (*driver.ExitResult, error) {
		sizes <- <-e.Resize
		text, err := io.ReadAll(e.Stdin)
		fmt.Fprintf(e.Stdout, "%s!", text)
		fmt.Fprint(e.Stderr, "bad")
		return &driver.ExitResult{ExitCode: 5}, err
	}})
	c.sendMessage(`{}`)
	c.sendMessage(`{"tty_size":{}}`)
	c.sendMessage(`{"tty_size":{"height":24,"width":80}}`)
	c.sendMessage(`{"stdin":{"data":"aGVs"}}`)
	c.sendMessage(`{"stdin":{"data":"bG8="}}`)
	c.sendMessage(`{"stdin":{"close":true}}`)
	c.wantMessages(`{"stdout":{"data":"aGVsbG8h"}}`, `{"stderr":{"data":"YmFk"}}`, `{"stdout":{"close":true}}`, `{"stderr":{"close":true}}`,
		`{"exited":true,"result":{"exit_code":5}}`, "closed 1000 ")
	if size := <-sizes; size != (driver.TerminalSize{Height: 24, Width: 80}) {
		t.Errorf("size %+v", size)
	}
	wantClosed(t, "the end of the session", ended)
}

func TestExecSessionWithTerminal(t *testing.T) {
	command := taskexec.Command{RunInTask: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) { return &driver.ExitResult{}, nil }}
	command.TTY = true
	c, _ := startExecSession(t, t.Context(), command)
	c.wantMessages(`{"stdout":{"close":true}}`, `{"exited":true,"result":{}}`, "closed 1000 ")
}

// commandUntilKilled returns a command that runs until it is killed.
func commandUntilKilled(killed chan struct{}) taskexec.Command {
	return taskexec.Command{RunInTask: func(ctx context.Context, e driver.Exec) (*driver.ExitResult, error) {
		<-ctx.Done()
		close(killed)
		return nil, fmt.Errorf("exec task: %w", context.Canceled)
	}}
}

func TestExecSessionEnds(t *testing.T) {
	long := strings.Repeat("é", 100)
	whole := `{"stderr":{"data":"` + base64.StdEncoding.EncodeToString([]byte(long+"\n")) + `"}}`
	for _, c := range []struct {
		name string
		err  error
		want []string
	}{
		{"a refusal", newExecRequestError("task %q is not running.", "x"), []string{`closed 1008 task "x" is not running.`}},
		{"a failure", errors.New("failed to start command: no such file"), []string{"closed 1011 failed to start command: no such file"}},
		{"a failure of the plugin", fmt.Errorf("exec: %w", status.Error(codes.Unknown, "no pty")), []string{"closed 1011 exec: no pty"}},
		{"a long failure is told as a whole before it is cut", errors.New(long), []string{whole, "closed 1011 " + long[:120] + "…"}},
		{"a long refusal", newExecRequestError("%s", long), []string{whole, "closed 1008 " + long[:120] + "…"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client, ended := startExecSession(t, t.Context(), taskexec.Command{RunInTask: func(context.Context, driver.Exec) (*driver.ExitResult, error) { return nil, c.err }})
			client.wantMessages(c.want...)
			wantClosed(t, "the end of the session", ended)
		})
	}
	t.Run("a client that hangs up", func(t *testing.T) {
		t.Parallel()
		killed := make(chan struct{})
		c, ended := startExecSession(t, t.Context(), commandUntilKilled(killed))
		c.CloseNow()
		wantClosed(t, "the end of the command", killed)
		wantClosed(t, "the end of the session", ended)
	})
	t.Run("a client that talks nonsense", func(t *testing.T) {
		t.Parallel()
		killed := make(chan struct{})
		c, ended := startExecSession(t, t.Context(), commandUntilKilled(killed))
		c.sendMessage("nonsense")
		if got := c.readMessage(); !strings.HasPrefix(got, "closed 1008 failed to decode input") {
			t.Error(got)
		}
		wantClosed(t, "the end of the command", killed)
		wantClosed(t, "the end of the session", ended)
	})
	t.Run("an agent that stops", func(t *testing.T) {
		t.Parallel()
		stopped, stop := context.WithCancel(t.Context())
		killed := make(chan struct{})
		c, ended := startExecSession(t, stopped, commandUntilKilled(killed))
		stop()
		c.wantMessages("closed 1001 the agent is stopping")
		wantClosed(t, "the end of the command", killed)
		wantClosed(t, "the end of the session", ended)
	})
	t.Run("an agent that stops while the client does not read", func(t *testing.T) {
		t.Parallel()
		stopped, stop := context.WithCancel(t.Context())
		stuck := make(chan struct{})
		_, ended := startExecSession(t, stopped, taskexec.Command{RunInTask: func(ctx context.Context, e driver.Exec) (*driver.ExitResult, error) {
			block := make([]byte, 1<<20)
			time.AfterFunc(200*time.Millisecond, func() { close(stuck) })
			for {
				if _, err := e.Stdout.Write(block); err != nil {
					return nil, err
				}
			}
		}})
		<-stuck
		stop()
		wantClosed(t, "the end of the session", ended)
	})
	t.Run("a client that goes while the command does not read", func(t *testing.T) {
		t.Parallel()
		killed := make(chan struct{})
		c, ended := startExecSession(t, t.Context(), commandUntilKilled(killed))
		for range 3 {
			c.sendMessage(`{"stdin":{"data":"aGVs"}}`)
		}
		c.CloseNow()
		wantClosed(t, "the end of the command", killed)
		wantClosed(t, "the end of the session", ended)
	})
}

// A browser sends its token in the first message of the session, because it cannot send the header.
func TestExecHandshake(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, l) }()
	path := "/v1/client/allocation/11111111-2222-3333-4444-555555555555/exec?task=t&command=%5B%22true%22%5D"
	unknown := `closed 1008 Unknown allocation "11111111-2222-3333-4444-555555555555"`
	for _, c := range []struct {
		name, query, token, hello, want string
	}{
		{"the right token", "&ws_handshake=true", "", `{"version":1,"auth_token":"secret"}`, unknown},
		{"a wrong token", "&ws_handshake=true", "", `{"version":1,"auth_token":"x"}`, "closed 1008 Permission denied"},
		{"no token", "&ws_handshake=true", "", `{"version":1}`, "closed 1008 Permission denied"},
		{"another version", "&ws_handshake=true", "", `{"version":2,"auth_token":"secret"}`, "closed 1008 unsupported handshake version: 2"},
		{"the token in a header", "", "secret", "", unknown},
		{"nothing at all", "", "", "", "refused 403"},
		{"nothing where no handshake is", "&ws_handshake=false", "", "", "refused 403"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, r, err := websocket.Dial(t.Context(), "http://"+l.Addr().String()+path+c.query, &websocket.DialOptions{HTTPHeader: http.Header{"X-Nomad-Token": {c.token}}})
			if err != nil {
				if got := fmt.Sprintf("refused %d", r.StatusCode); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
				return
			}
			defer conn.CloseNow()
			client := &execSessionClient{t, conn}
			if c.hello != "" {
				client.sendMessage(c.hello)
			}
			client.wantMessages(c.want)
		})
	}
	if r := f.send("GET", "/v1/jobs?ws_handshake=true", nil, "Upgrade", "websocket"); r.StatusCode != http.StatusForbidden {
		t.Errorf("a handshake opens what has none: %d", r.StatusCode)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A handler that runs after the server has stopped starts no session.
func TestNoExecSessionStartsAfterServe(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.stopTimeout = time.Millisecond // the request of the test ends after Serve
	asked, ended, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	exec := &execHandler{f.store, stubNode{}, f.access, false, &f.execSessions}
	f.routes = []route{{"GET", "/v1/late", openToAll(), func(r *request) (any, error) {
		close(asked)
		<-ended
		_, err := exec.serveExecSession(r, func() (taskexec.Command, error) {
			t.Error("the session looks for its command")
			return taskexec.Command{}, errAgentStopping
		})
		result <- err
		return nil, err
	}, routeDoc{}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, l) }()
	go func() {
		if conn, _, err := websocket.Dial(t.Context(), "http://"+l.Addr().String()+"/v1/late", nil); err == nil {
			conn.CloseNow()
		}
	}()
	<-asked
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	close(ended)
	if err := <-result; err == nil || err.Error() != errAgentStopping.Error() {
		t.Errorf("the session ends with %v, want %v", err, errAgentStopping)
	}
}

// Any frame of a client reaches the command or ends the session.
func FuzzExecFrames(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"stdin":{"data":"aGVsbG8="}}`, `{"stdin":{"close":true}}`, `{"stdin":{"data":"!"}}`, `{"tty_size":{"height":24,"width":80}}`,
		`{"tty_size":{"height":-1}}`, `null`, `[]`, `{"stdin":null,"tty_size":null}`, `{"Stdin":{"Data":"YQ==","Close":true}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var frame api.ExecStreamingInput
		valid := json.Unmarshal(text, &frame) == nil
		in, err := decodeExecInput(text)
		if (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
		if valid && frame.Stdin != nil && string(in.Stdin) != string(frame.Stdin.Data) {
			t.Errorf("%q is the input %q", text, in.Stdin)
		}
	})
}

// An agent whose operator has disabled commands in tasks runs none, whether or not it is the node of a cluster.
func TestDisabledExec(t *testing.T) {
	for _, disabled := range []bool{true, false} {
		f := newFixture(t, func(c *Config) { c.DisableRemoteExec = disabled })
		h := &execHandler{f.store, stubNode{}, f.access, f.config.DisableRemoteExec, &f.execSessions}
		r := &request{Request: httptest.NewRequest("GET", execPattern, nil)}
		_, err := h.findCommand(r, &api.Allocation{ID: "a", Job: &api.Job{}}, taskexec.Request{Command: []string{"true"}, Task: "t"})
		if err == nil || (err.Error() == "Permission denied") != disabled {
			t.Errorf("disabled %v: %v", disabled, err)
		}
	}
}
