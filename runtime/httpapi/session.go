package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// The limits of a session.
const (
	maxInput        = 1 << 20 // of one message
	maxHandshake    = 4 << 10 // of one that comes before the client has authenticated
	pingEvery       = 10 * time.Second
	pingBusy        = time.Second     // while nothing is read, so that the end of it is not seen
	idleExecTimeout = 2 * time.Minute // after which a client that says nothing has gone
	handshakeTime   = 10 * time.Second
	closeTimeout    = time.Second // for output to a client when the command has been killed
	maxReason       = 123         // bytes of the text of a close frame
)

var (
	errClientGone = errors.New("the client has gone")
	errStopping   = errors.New("the agent is stopping")
)

// closing is an error of a session with the code of the close frame that tells
// the client.
type closing struct {
	code websocket.StatusCode
	text string
}

func (c *closing) Error() string { return c.text }

// wrongExec is what would have been a 4xx if there had been an answer.
func wrongExec(format string, args ...any) error {
	return &closing{websocket.StatusPolicyViolation, fmt.Sprintf(format, args...)}
}

// session talks to a client over a websocket while a command runs. What is wrong
// with the request is told in the session, too: that is what clients show.
func (a *API) session(r *request, find func() (execCommand, error)) (any, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return nil, &statusError{http.StatusInternalServerError, "websocket connection not found in context"}
	}
	r.answered = true
	a.sessions.Add(1) // the server does not wait for what it has handed over
	defer a.sessions.Done()
	// Who may ask, and from where, has been decided.
	conn, err := websocket.Accept(r.w, r.Request, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil, nil // the client has been told
	}
	defer conn.CloseNow()
	err = a.handshake(r, conn)
	conn.SetReadLimit(maxInput)
	var command execCommand
	if err == nil {
		command, err = find()
	}
	if err != nil {
		closeConn(conn, err)
	} else {
		a.serveExec(r.Context(), conn, command)
	}
	return nil, nil
}

// closeConn ends the session. Who does not answer has gone.
func closeConn(conn *websocket.Conn, err error) {
	code, text := websocket.StatusInternalError, ""
	if c := new(closing); errors.As(err, &c) {
		code, text = c.code, c.text
	} else if err != nil {
		text = base.ErrorMessage(err)
	}
	switch {
	case err == nil:
		_ = conn.Close(websocket.StatusNormalClosure, "")
	case errors.Is(err, errClientGone):
		_ = conn.CloseNow()
	case errors.Is(err, errStopping):
		_ = conn.Close(websocket.StatusGoingAway, errStopping.Error())
	default:
		if len(text) > maxReason {
			// The reason is cut. The whole text comes before it, as output of the command.
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			_, _ = io.WriteString(execWriter{&execOutput{ctx: ctx, conn: conn}, "stderr"}, text+"\n")
		}
		_ = conn.Close(code, reason(text))
	}
}

// reason cuts a text to what a close frame can hold.
func reason(text string) string {
	if len(text) <= maxReason {
		return text
	}
	const cut = "…"
	text = text[:maxReason-len(cut)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + cut
}

// asksLater tells whether a client shows its token in the session: browsers can
// give a websocket no header.
func asksLater(r *http.Request) bool {
	later := r.URL.Query().Get("ws_handshake")
	return (later == "true" || later == "1") && r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") &&
		(strings.HasPrefix(r.URL.Path, "/v1/client/allocation/") && strings.HasSuffix(r.URL.Path, "/exec") ||
			strings.HasPrefix(r.URL.Path, "/v1/job/") && strings.HasSuffix(r.URL.Path, "/action"))
}

// handshake reads the token of a client that shows it late.
func (a *API) handshake(r *request, conn *websocket.Conn) error {
	if !asksLater(r.Request) {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), handshakeTime)
	defer cancel()
	conn.SetReadLimit(maxHandshake)
	_, text, err := conn.Read(ctx)
	if err != nil {
		return errClientGone
	}
	var hello struct {
		Version   int    `json:"version"`
		AuthToken string `json:"auth_token"`
	}
	switch err := json.Unmarshal(text, &hello); {
	case err != nil:
		return wrongExec("failed to decode the handshake: %v", err)
	case hello.Version != 1:
		return wrongExec("unsupported handshake version: %d", hello.Version)
	}
	if !a.isTrusted(r.Request) && !sameSecret(hello.AuthToken, string(a.config.Token)) {
		return wrongExec("%v", errDenied)
	}
	if !r.conn.authenticate() {
		return wrongExec("%v", errTooMany)
	}
	return nil
}

// serveExec runs the command with the client at its terminal, and tells the client how
// that ended. The command is killed when the client goes, or the agent stops.
func (a *API) serveExec(parent context.Context, conn *websocket.Conn, command execCommand) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	// The connection outlives the command, for what is to be said at the end. But a
	// client that does not read must not hold the command, nor the agent.
	talking, endTalk := context.WithCancel(context.WithoutCancel(parent))
	defer endTalk()
	hurry := func() { time.AfterFunc(closeTimeout, endTalk) }
	defer context.AfterFunc(parent, hurry)()

	stdin, typed := io.Pipe()
	resize := make(chan driver.TerminalSize, 1)
	in := &execInput{conn: conn, stdin: typed, resize: resize}
	in.heard.Store(time.Now().UnixNano())
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() {
		cancel(in.read(talking))
		hurry()
	})
	background.Go(func() {
		if in.watch(ctx) {
			cancel(errClientGone)
			endTalk()
		}
	})

	out := &execOutput{ctx: talking, conn: conn}
	command.Stdin, command.Resize = stdin, resize
	command.Stdout, command.Stderr = execWriter{out, "stdout"}, execWriter{out, "stderr"}
	exit, err := command.run(ctx, command.Exec)
	_ = stdin.Close() // nobody reads it any more
	cause := context.Cause(ctx)
	switch {
	case err == nil && exit.Err == nil:
		err = out.end(exit.ExitCode, command.TTY)
	case parent.Err() != nil:
		err = errStopping
	case cause != nil:
		err = cause
	case err == nil:
		err = exit.Err
	}
	cancel(nil)
	closeConn(conn, err)
}

// execInput is what comes from the client.
type execInput struct {
	conn   *websocket.Conn
	stdin  *io.PipeWriter
	resize chan driver.TerminalSize
	heard  atomic.Int64 // when anything came last
	busy   atomic.Bool  // the command does not read what was typed
}

// read passes on what the client sends until it goes, which is the end of the
// command. It returns why.
func (in *execInput) read(ctx context.Context) error {
	defer in.stdin.CloseWithError(errClientGone)
	for {
		_, text, err := in.conn.Read(ctx)
		if err != nil {
			return errClientGone
		}
		if err := in.take(text); err != nil {
			return err
		}
	}
}

// take passes on one message.
func (in *execInput) take(text []byte) error {
	in.heard.Store(time.Now().UnixNano())
	var frame api.ExecStreamingInput
	if err := json.Unmarshal(text, &frame); err != nil {
		return wrongExec("failed to decode input: %v", err)
	}
	if size := frame.TTYSize; size != nil && size.Height > 0 && size.Width > 0 {
		select {
		case <-in.resize: // nobody has taken the last one
		default:
		}
		in.resize <- driver.TerminalSize{Height: size.Height, Width: size.Width}
	}
	if frame.Stdin == nil {
		return nil // a heartbeat
	}
	if len(frame.Stdin.Data) > 0 {
		in.busy.Store(true)
		_, _ = in.stdin.Write(frame.Stdin.Data) // a command that has closed its input is no error
		in.busy.Store(false)
		in.heard.Store(time.Now().UnixNano())
	}
	if frame.Stdin.Close {
		_ = in.stdin.Close()
	}
	return nil
}

// watch reports whether the client has gone without a word, when it is sure of
// that or ctx ends. One whose terminal is stopped takes no output and answers no
// ping, but still sends its heartbeat.
func (in *execInput) watch(ctx context.Context) (gone bool) {
	ticker := time.NewTicker(pingBusy)
	defer ticker.Stop()
	for next := time.Now().Add(pingEvery); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
		if !in.busy.Load() && time.Now().Before(next) {
			continue
		}
		next = time.Now().Add(pingEvery)
		ping, end := context.WithTimeout(ctx, pingBusy)
		err := in.conn.Ping(ping)
		end()
		switch quiet := time.Since(time.Unix(0, in.heard.Load())); {
		case err == nil:
			in.heard.Store(time.Now().UnixNano())
		case ctx.Err() != nil:
			return false
		case !errors.Is(err, context.DeadlineExceeded), quiet > idleExecTimeout && !in.busy.Load():
			return true
		}
	}
}

// execOutput is what goes to the client.
type execOutput struct {
	ctx  context.Context
	conn *websocket.Conn
}

func (o *execOutput) send(text []byte) error {
	if err := o.conn.Write(o.ctx, websocket.MessageText, text); err != nil {
		return errClientGone
	}
	return nil
}

// end tells how the command has ended. The client waits for a result, which is
// empty for 0.
func (o *execOutput) end(code int, tty bool) error {
	if err := o.send([]byte(`{"stdout":{"close":true}}`)); err != nil {
		return err
	}
	if !tty {
		if err := o.send([]byte(`{"stderr":{"close":true}}`)); err != nil {
			return err
		}
	}
	result := "{}"
	if code != 0 {
		result = `{"exit_code":` + strconv.Itoa(code) + `}`
	}
	return o.send([]byte(`{"exited":true,"result":` + result + `}`))
}

// execWriter sends one of the outputs. The two may be written at the same time.
type execWriter struct {
	out  *execOutput
	name string
}

func (w execWriter) Write(p []byte) (int, error) {
	text := make([]byte, 0, len(`{"stdout":{"data":""}}`)+base64.StdEncoding.EncodedLen(len(p)))
	text = append(append(append(text, `{"`...), w.name...), `":{"data":"`...)
	text = base64.StdEncoding.AppendEncode(text, p)
	text = append(text, `"}}`...)
	if err := w.out.send(text); err != nil {
		return 0, err
	}
	return len(p), nil
}
