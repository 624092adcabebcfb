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

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Limits of an exec session.
const (
	maxInputBytes            = 1 << 20 // maximum size of a message
	maxHandshakeBytes        = 4 << 10 // maximum size of the message in which a client sends its token
	pingInterval             = 10 * time.Second
	blockedStdinPingInterval = time.Second     // ping interval while the command does not read its input, because then the disconnection of the client is not read either
	idleExecTimeout          = 2 * time.Minute // a client that sends nothing for this time is disconnected
	execTokenTimeout         = 10 * time.Second
	closeTimeout             = time.Second // timeout for sending output to a client after the command was killed
	maxCloseReason           = 123         // maximum length in bytes of the text in a close frame
)

var (
	errClientGone    = errors.New("the client has gone")
	errAgentStopping = errors.New("the agent is stopping")
)

// sessionCloseError is an error that ends a session, with the code of the close frame.
type sessionCloseError struct {
	code websocket.StatusCode
	text string
}

func (c *sessionCloseError) Error() string { return c.text }

// newExecRequestError returns an error that would be a 4xx status before the upgrade to a websocket.
func newExecRequestError(format string, args ...any) error {
	return &sessionCloseError{websocket.StatusPolicyViolation, fmt.Sprintf(format, args...)}
}

// execSessionGroup counts the exec sessions, because http.Server does not wait for upgraded
// connections. A handler can outlive http.Server.Close, so a WaitGroup alone is not enough: its
// Add must not race Wait.
type execSessionGroup struct {
	mu              sync.Mutex
	rejectsSessions bool
	sessionsWG      sync.WaitGroup
}

// tryStartSession adds a session to the count; the session calls endSession when it ends. It returns false after
// rejectNewAndWaitForSessions was called.
func (g *execSessionGroup) tryStartSession() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.rejectsSessions {
		g.sessionsWG.Add(1)
	}
	return !g.rejectsSessions
}

func (g *execSessionGroup) endSession() { g.sessionsWG.Done() }

// rejectNewAndWaitForSessions rejects further sessions and blocks until the running ones have ended.
func (g *execSessionGroup) rejectNewAndWaitForSessions() {
	g.mu.Lock()
	g.rejectsSessions = true
	g.mu.Unlock()
	g.sessionsWG.Wait()
}

// serveExecSession runs a command for a client over a websocket. It sends errors of the request in the session,
// because clients do not show errors that precede the session.
func (h *execHandler) serveExecSession(r *request, findCommand func() (execCommand, error)) (any, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return nil, &statusError{http.StatusInternalServerError, "websocket connection not found in context"}
	}
	if !h.execSessions.tryStartSession() {
		return nil, &statusError{http.StatusServiceUnavailable, errAgentStopping.Error()}
	}
	defer h.execSessions.endSession()
	r.isReplyWritten = true
	// InsecureSkipVerify: the origin and the token of the request have been checked.
	conn, err := websocket.Accept(r.w, r.Request, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil, nil // Accept has sent the error
	}
	defer conn.CloseNow()
	err = h.authenticateExecSession(r, conn)
	conn.SetReadLimit(maxInputBytes)
	var command execCommand
	if err == nil {
		command, err = findCommand()
	}
	if err != nil {
		closeExecSession(conn, err)
	} else {
		runExecSession(r.Context(), conn, command)
	}
	return nil, nil
}

// closeExecSession closes the session. It does not wait for clients that do not reply to the close frame.
func closeExecSession(conn *websocket.Conn, err error) {
	code, text := websocket.StatusInternalError, ""
	if c := new(sessionCloseError); errors.As(err, &c) {
		code, text = c.code, c.text
	} else if err != nil {
		text = basewire.ErrorMessageWithoutGRPCPrefix(err)
	}
	switch {
	case err == nil:
		_ = conn.Close(websocket.StatusNormalClosure, "")
	case errors.Is(err, errClientGone):
		_ = conn.CloseNow()
	case errors.Is(err, errAgentStopping):
		_ = conn.Close(websocket.StatusGoingAway, errAgentStopping.Error())
	default:
		if len(text) > maxCloseReason {
			// The text in the close frame is truncated. The complete text is sent before it, as output of
			// the command.
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			_, _ = io.WriteString(execWriter{&execOutput{ctx: ctx, conn: conn}, "stderr"}, text+"\n")
		}
		_ = conn.Close(code, truncateCloseReason(text))
	}
}

// truncateCloseReason truncates a text to the size of a close frame.
func truncateCloseReason(text string) string {
	if len(text) <= maxCloseReason {
		return text
	}
	const cut = "…"
	text = text[:maxCloseReason-len(cut)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + cut
}

// sendsTokenInExecSession reports whether a client sends its token in the session, because browsers cannot set
// the headers of a websocket.
func sendsTokenInExecSession(r *http.Request) bool {
	later := r.URL.Query().Get("ws_handshake")
	return (later == "true" || later == "1") && r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") &&
		(strings.HasPrefix(r.URL.Path, "/v1/client/allocation/") && strings.HasSuffix(r.URL.Path, "/exec") ||
			strings.HasPrefix(r.URL.Path, "/v1/job/") && strings.HasSuffix(r.URL.Path, "/action"))
}

// authenticateExecSession reads and checks the token of a client that sends its token in the session, and counts the
// connection for this client. For other clients it does nothing, because authorize has checked the token of the request.
func (h *execHandler) authenticateExecSession(r *request, conn *websocket.Conn) error {
	if !sendsTokenInExecSession(r.Request) {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), execTokenTimeout)
	defer cancel()
	conn.SetReadLimit(maxHandshakeBytes)
	_, text, err := conn.Read(ctx)
	if err != nil {
		r.conn.Evict()
		return errClientGone
	}
	var helloMessage struct {
		Version   int    `json:"version"`
		AuthToken string `json:"auth_token"`
	}
	switch err := json.Unmarshal(text, &helloMessage); {
	case err != nil:
		return newExecRequestError("failed to decode the handshake: %v", err)
	case helloMessage.Version != 1:
		return newExecRequestError("unsupported handshake version: %d", helloMessage.Version)
	}
	if !h.access.needsNoTokenForRequest(r.Request) && !equalSecrets(helloMessage.AuthToken, string(h.access.operatorToken)) {
		return newExecRequestError("%v", errPermissionDenied)
	}
	if !r.conn.CountForClient(h.access.clientToCountConnFor(r)) {
		return newExecRequestError("%v", errTooManyConns)
	}
	return nil
}

// runExecSession runs the command with the client as its terminal, and sends the exit code. The command
// is killed when the client disconnects or the agent shuts down.
func runExecSession(parent context.Context, conn *websocket.Conn, command execCommand) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	// The context of the connection ends later than the context of the command, so that the last output and the
	// exit code can be sent. But a client that does not read must block neither the command nor the agent.
	connCtx, cancelConn := context.WithCancel(context.WithoutCancel(parent))
	defer cancelConn()
	endSoon := func() { time.AfterFunc(closeTimeout, cancelConn) }
	defer context.AfterFunc(parent, endSoon)()

	stdin, typed := io.Pipe()
	resize := make(chan driver.TerminalSize, 1)
	in := &execInput{conn: conn, stdin: typed, terminalSizes: resize}
	in.lastMessageTime.Store(time.Now().UnixNano())
	var backgroundWG sync.WaitGroup
	defer backgroundWG.Wait()
	backgroundWG.Go(func() {
		cancel(in.readMessages(connCtx))
		endSoon()
	})
	backgroundWG.Go(func() {
		if in.awaitDisconnect(ctx) {
			cancel(errClientGone)
			cancelConn()
		}
	})

	out := &execOutput{ctx: connCtx, conn: conn}
	command.Stdin, command.Resize = stdin, resize
	command.Stdout, command.Stderr = execWriter{out, "stdout"}, execWriter{out, "stderr"}
	exit, err := command.runInTask(ctx, command.Exec)
	_ = stdin.Close() // the command has ended and no longer reads stdin
	cause := context.Cause(ctx)
	switch {
	case err == nil && exit.Err == nil:
		err = out.sendExitCode(exit.ExitCode, command.TTY)
	case parent.Err() != nil:
		err = errAgentStopping
	case cause != nil:
		err = cause
	case err == nil:
		err = exit.Err
	}
	cancel(nil)
	closeExecSession(conn, err)
}

// execInput passes the input of the client to the command.
type execInput struct {
	conn            *websocket.Conn
	stdin           *io.PipeWriter
	terminalSizes   chan driver.TerminalSize
	lastMessageTime atomic.Int64 // Unix time in nanoseconds of the last message of the client
	isStdinBlocked  atomic.Bool  // the command does not read its input
}

// readMessages handles the client's messages until the connection fails, and returns the reason. The
// failure also ends the command.
func (e *execInput) readMessages(ctx context.Context) error {
	defer e.stdin.CloseWithError(errClientGone)
	for {
		_, text, err := e.conn.Read(ctx)
		if err != nil {
			return errClientGone
		}
		if err := e.applyClientMessage(text); err != nil {
			return err
		}
	}
}

// applyClientMessage applies one message of the client: input, a terminal size, or a heartbeat.
func (e *execInput) applyClientMessage(text []byte) error {
	e.lastMessageTime.Store(time.Now().UnixNano())
	var frame api.ExecStreamingInput
	if err := json.Unmarshal(text, &frame); err != nil {
		return newExecRequestError("failed to decode input: %v", err)
	}
	if size := frame.TTYSize; size != nil && size.Height > 0 && size.Width > 0 {
		select {
		case <-e.terminalSizes: // discards a previous size that was not applied
		default:
		}
		e.terminalSizes <- driver.TerminalSize{Height: size.Height, Width: size.Width}
	}
	if frame.Stdin == nil {
		return nil // the message is a heartbeat
	}
	if len(frame.Stdin.Data) > 0 {
		e.isStdinBlocked.Store(true)
		_, _ = e.stdin.Write(frame.Stdin.Data) // the write fails if the command has closed its input
		e.isStdinBlocked.Store(false)
		e.lastMessageTime.Store(time.Now().UnixNano())
	}
	if frame.Stdin.Close {
		_ = e.stdin.Close()
	}
	return nil
}

// awaitDisconnect returns true if the client has disconnected without a close frame, and false if ctx ends.
// A client whose terminal is stopped accepts no output and replies to no ping, but still sends its
// heartbeat.
func (e *execInput) awaitDisconnect(ctx context.Context) (gone bool) {
	ticker := time.NewTicker(blockedStdinPingInterval)
	defer ticker.Stop()
	for next := time.Now().Add(pingInterval); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
		if !e.isStdinBlocked.Load() && time.Now().Before(next) {
			continue
		}
		next = time.Now().Add(pingInterval)
		ping, end := context.WithTimeout(ctx, blockedStdinPingInterval)
		err := e.conn.Ping(ping)
		end()
		switch quiet := time.Since(time.Unix(0, e.lastMessageTime.Load())); {
		case err == nil:
			e.lastMessageTime.Store(time.Now().UnixNano())
		case ctx.Err() != nil:
			return false
		case !errors.Is(err, context.DeadlineExceeded), quiet > idleExecTimeout && !e.isStdinBlocked.Load():
			return true
		}
	}
}

// execOutput sends the output of the command to the client.
type execOutput struct {
	ctx  context.Context
	conn *websocket.Conn
}

func (o *execOutput) sendText(text []byte) error {
	if err := o.conn.Write(o.ctx, websocket.MessageText, text); err != nil {
		return errClientGone
	}
	return nil
}

// sendExitCode sends the exit code of the command. A client waits for a result, which has no exit code field if
// the exit code is 0.
func (o *execOutput) sendExitCode(code int, tty bool) error {
	if err := o.sendText([]byte(`{"stdout":{"close":true}}`)); err != nil {
		return err
	}
	if !tty {
		if err := o.sendText([]byte(`{"stderr":{"close":true}}`)); err != nil {
			return err
		}
	}
	result := "{}"
	if code != 0 {
		result = `{"exit_code":` + strconv.Itoa(code) + `}`
	}
	return o.sendText([]byte(`{"exited":true,"result":` + result + `}`))
}

// execWriter sends stdout or stderr to the client. Both may be written concurrently.
type execWriter struct {
	out        *execOutput
	streamName string
}

func (w execWriter) Write(p []byte) (int, error) {
	text := make([]byte, 0, len(`{"stdout":{"data":""}}`)+base64.StdEncoding.EncodedLen(len(p)))
	text = append(append(append(text, `{"`...), w.streamName...), `":{"data":"`...)
	text = base64.StdEncoding.AppendEncode(text, p)
	text = append(text, `"}}`...)
	if err := w.out.sendText(text); err != nil {
		return 0, err
	}
	return len(p), nil
}
