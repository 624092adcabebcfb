package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
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

var errAgentStopping = errors.New("the agent is stopping")

// newExecRequestError returns an error that would be a 4xx status before the upgrade to a websocket.
func newExecRequestError(format string, args ...any) error {
	return taskexec.NewRequestError(http.StatusBadRequest, format, args...)
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
func (h *execHandler) serveExecSession(r *request, findCommand func() (taskexec.Command, error)) (any, error) {
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
	var command taskexec.Command
	if err == nil {
		command, err = findCommand()
	}
	if err != nil {
		closeExecSession(conn, err)
	} else {
		ctx, stop := r.endWithRights(h.store)
		defer stop()
		runExecSession(ctx, conn, command)
	}
	return nil, nil
}

// closeExecSession closes the session. It does not wait for clients that do not reply to the close frame.
func closeExecSession(conn *websocket.Conn, err error) {
	code, text := websocket.StatusInternalError, ""
	if rejected := new(taskexec.RequestError); errors.As(err, &rejected) {
		code, text = websocket.StatusPolicyViolation, rejected.Text
	} else if err != nil {
		text = basewire.ErrorMessageWithoutGRPCPrefix(err)
	}
	switch {
	case err == nil:
		_ = conn.Close(websocket.StatusNormalClosure, "")
	case errors.Is(err, taskexec.ErrClientGone):
		_ = conn.CloseNow()
	case errors.Is(err, errAgentStopping):
		_ = conn.Close(websocket.StatusGoingAway, errAgentStopping.Error())
	default:
		if len(text) > maxCloseReason {
			// The text in the close frame is truncated. The complete text is sent before it, as output of
			// the command.
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			_ = conn.Write(ctx, websocket.MessageText, taskexec.AppendOutput(nil, "stderr", []byte(text+"\n")))
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
		return r.checkAccess()
	}
	ctx, cancel := context.WithTimeout(r.Context(), execTokenTimeout)
	defer cancel()
	conn.SetReadLimit(maxHandshakeBytes)
	_, text, err := conn.Read(ctx)
	if err != nil {
		r.conn.Evict()
		return taskexec.ErrClientGone
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
	if h.access.control != nil {
		return h.checkTokenOfSession(r, helloMessage.AuthToken)
	}
	r.rights.acl = acl.Management()
	if !h.access.needsNoTokenForRequest(r.Request) && !equalSecrets(helloMessage.AuthToken, string(h.access.operatorToken)) {
		if h.access.cluster == nil || h.access.cluster.Rights == nil {
			return newExecRequestError("%v", errPermissionDenied)
		}
		if err := h.access.checkClusterToken(r, execPattern, helloMessage.AuthToken); err != nil {
			return newExecRequestError("%v", err)
		}
		r.rights.isClusterUser = true
	}
	if !r.conn.CountForClient(h.access.clientToCountConnFor(r)) {
		return newExecRequestError("%v", errTooManyConns)
	}
	return nil
}

// checkTokenOfSession gives a request the rights of a token that a client has sent in the session, under access control.
func (h *execHandler) checkTokenOfSession(r *request, token string) error {
	withToken := r.Clone(r.Context())
	withToken.Header.Del("Authorization")
	withToken.Header.Set("X-Nomad-Token", token)
	r.rights = h.access.rightsOfToken(withToken)
	if err := r.checkAccess(); err != nil {
		return err
	}
	if !r.conn.CountForClient(h.access.clientToCountConnFor(r)) {
		return newExecRequestError("%v", errTooManyConns)
	}
	return nil
}

// runExecSession runs the command with the client as its terminal, and sends the exit code. The command
// is killed when the client disconnects or the agent shuts down.
func runExecSession(parent context.Context, conn *websocket.Conn, command taskexec.Command) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	c := &execConn{conn: conn, cancelCommand: cancel}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(parent))
	c.lastMessageTime.Store(time.Now().UnixNano())
	var background sync.WaitGroup
	defer background.Wait()
	defer c.cancel()
	defer cancel(nil)
	defer context.AfterFunc(parent, func() {
		if errors.Is(context.Cause(parent), errRightsEnded) {
			cancel(errRightsEnded)
		} else {
			cancel(errAgentStopping)
		}
		c.cancelSoon()
	})()
	background.Go(func() {
		if c.awaitDisconnect(ctx) {
			cancel(taskexec.ErrClientGone)
			c.cancel()
		}
	})
	taskexec.Run(ctx, c, command)
}

// execConn is the websocket of a session.
type execConn struct {
	conn *websocket.Conn
	// ctx ends later than the context of the command, so that the last output and the exit code can be sent. But a client that
	// does not read must block neither the command nor the agent.
	ctx             context.Context
	cancel          context.CancelFunc
	cancelCommand   context.CancelCauseFunc
	lastMessageTime atomic.Int64 // Unix time in nanoseconds of the last message of the client
	isReceiving     atomic.Bool  // false while the command does not read its input
}

// cancelSoon ends the context of the connection after the time for the last output.
func (c *execConn) cancelSoon() { time.AfterFunc(closeTimeout, c.cancel) }

// Receive implements taskexec.Conn.
func (c *execConn) Receive() (taskexec.Input, error) {
	c.lastMessageTime.Store(time.Now().UnixNano())
	c.isReceiving.Store(true)
	defer c.isReceiving.Store(false)
	in, err := c.readMessage()
	if err != nil {
		c.cancelSoon()
	}
	c.lastMessageTime.Store(time.Now().UnixNano())
	return in, err
}

func (c *execConn) readMessage() (taskexec.Input, error) {
	_, text, err := c.conn.Read(c.ctx)
	if err != nil {
		return taskexec.Input{}, taskexec.ErrClientGone
	}
	return decodeExecInput(text)
}

// decodeExecInput decodes one message of a client: input, a terminal size, or a heartbeat.
func decodeExecInput(text []byte) (taskexec.Input, error) {
	var in taskexec.Input
	var frame api.ExecStreamingInput
	if err := json.Unmarshal(text, &frame); err != nil {
		return in, newExecRequestError("failed to decode input: %v", err)
	}
	if size := frame.TTYSize; size != nil {
		in.TTYSize = driver.TerminalSize{Height: size.Height, Width: size.Width}
	}
	if frame.Stdin != nil {
		in.Stdin, in.CloseStdin = frame.Stdin.Data, frame.Stdin.Close
	}
	return in, nil
}

// Send implements taskexec.Conn.
func (c *execConn) Send(text []byte) error {
	if err := c.conn.Write(c.ctx, websocket.MessageText, text); err != nil {
		return taskexec.ErrClientGone
	}
	return nil
}

// Close implements taskexec.Conn.
func (c *execConn) Close(err error) {
	c.cancelCommand(nil) // ends awaitDisconnect
	closeExecSession(c.conn, err)
}

// awaitDisconnect returns true if the client has disconnected without a close frame, and false if ctx ends.
// A client whose terminal is stopped accepts no output and replies to no ping, but still sends its
// heartbeat.
func (c *execConn) awaitDisconnect(ctx context.Context) (gone bool) {
	ticker := time.NewTicker(blockedStdinPingInterval)
	defer ticker.Stop()
	for next := time.Now().Add(pingInterval); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
		if c.isReceiving.Load() && time.Now().Before(next) {
			continue
		}
		next = time.Now().Add(pingInterval)
		ping, end := context.WithTimeout(ctx, blockedStdinPingInterval)
		err := c.conn.Ping(ping)
		end()
		switch quiet := time.Since(time.Unix(0, c.lastMessageTime.Load())); {
		case err == nil:
			c.lastMessageTime.Store(time.Now().UnixNano())
		case ctx.Err() != nil:
			return false
		case !errors.Is(err, context.DeadlineExceeded), quiet > idleExecTimeout && c.isReceiving.Load():
			return true
		}
	}
}
