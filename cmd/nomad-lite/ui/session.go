package ui

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
)

const (
	// loginLifetime is how long the one-time secret of an address is valid.
	loginLifetime = time.Minute
	// sessionIdleTime is the time without a request after which a session ends. A visible page always has a request in
	// progress, because it follows the state of the agent.
	sessionIdleTime = 10 * time.Minute
	// handshakeTimeout limits how long relay waits for the first message of a websocket.
	handshakeTimeout = 10 * time.Second
)

// browserSession serves the web page of an agent that listens only on a unix socket to one browser. Towards the page it
// behaves like an agent that requires a token: the page exchanges the one-time secret in its address for the session's
// token.
type browserSession struct {
	sessionToken       string
	agentClient        *http.Client // sends requests over the socket of the agent
	agentProxy         http.Handler
	idleTimeout        time.Duration
	onLoginSecretReuse func() // called when the one-time secret is used for the second time

	mu               sync.Mutex
	loginSecret      string
	loginSecretUses  int // number of uses of loginSecret, accepted or not
	loginExpires     time.Time
	openRequestCount int // number of requests in progress
	idleTimer        *time.Timer
}

// newBrowserSession returns a browserSession for the agent at a socket. It calls onIdle when no request was in progress
// for idleTime, and onLoginSecretReuse when the one-time secret is used for the second time.
func newBrowserSession(agentSocketPath string, idleTime time.Duration, onIdle, onLoginSecretReuse func()) *browserSession {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", agentSocketPath)
		},
	}
	s := &browserSession{
		sessionToken: newSecret(), loginSecret: newSecret(), loginExpires: time.Now().Add(loginLifetime), idleTimeout: idleTime, onLoginSecretReuse: onLoginSecretReuse,
		agentClient: &http.Client{Transport: transport}, idleTimer: time.AfterFunc(idleTime, onIdle),
	}
	s.agentProxy = &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // streams are forwarded as they arrive
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "agent"
			r.Out.Host = r.In.Host
			r.Out.Header.Del("X-Nomad-Token")
			r.Out.Header.Del("Authorization")
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				panic(http.ErrAbortHandler) // the session ends, or the browser has disconnected
			}
			http.Error(w, "the agent does not answer: "+err.Error(), http.StatusBadGateway)
		},
	}
	return s
}

func (s *browserSession) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.trackRequestStart()
	defer s.trackRequestEnd()
	switch {
	case r.URL.Path == "/v1/agent/login" && (r.Method == http.MethodPost || r.Method == http.MethodPut):
		s.exchangeLoginSecretForToken(w, r)
	case r.URL.Path == agentproof.Path:
		s.prove(w, r)
	case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		s.relayWebSocket(w, r)
	case strings.HasPrefix(r.URL.Path, "/ui/"), equalSecrets(r.Header.Get("X-Nomad-Token"), s.sessionToken):
		s.agentProxy.ServeHTTP(w, r)
	default:
		http.Error(w, "Permission denied", http.StatusForbidden)
	}
}

// prove replies with the proof that the session knows its token, as an agent does: the page requires it after a lost connection,
// because another program can have taken the port.
func (s *browserSession) prove(w http.ResponseWriter, r *http.Request) {
	proof, err := agentproof.Prove(r, func(keyID string) string {
		if keyID == agentproof.KeyID(s.sessionToken) {
			return s.sessionToken
		}
		return rand.Text()
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(proof) // the browser can have disconnected
}

// trackRequestStart and end count the requests in progress. While there are none, the idle timer runs.
func (s *browserSession) trackRequestStart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openRequestCount++
	s.idleTimer.Stop()
}

func (s *browserSession) trackRequestEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.openRequestCount--; s.openRequestCount == 0 {
		s.idleTimer.Reset(s.idleTimeout)
	}
}

// exchangeLoginSecretForToken replies to the one-time secret with the token of the session.
func (s *browserSession) exchangeLoginSecretForToken(w http.ResponseWriter, r *http.Request) {
	known, uses := equalSecrets(r.Header.Get("X-Nomad-Token"), s.loginSecret), 0
	s.mu.Lock()
	if known {
		s.loginSecretUses++
		uses = s.loginSecretUses
	}
	valid := uses == 1 && time.Now().Before(s.loginExpires)
	s.mu.Unlock()
	if uses == 2 {
		s.onLoginSecretReuse()
	}
	w.Header().Set("Cache-Control", "no-store")
	if !valid {
		http.Error(w, "Permission denied: this login has expired, or was used before", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct{ Token string }{s.sessionToken}) // the browser can have disconnected
}

// websocketHandshake is the first message of a websocket whose request has the parameter ws_handshake.
type websocketHandshake struct {
	Version   int    `json:"version"`
	AuthToken string `json:"auth_token"`
}

// relayWebSocket checks the token in the first message of the browser's websocket, and then copies all messages between
// it and a websocket to the agent.
func (s *browserSession) relayWebSocket(w http.ResponseWriter, r *http.Request) {
	// InsecureSkipVerify: admitsRequestOrigin of the gateway has already checked the origin.
	browser, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // Accept has replied
	}
	defer browser.CloseNow()
	// Errors of Close are ignored: CloseNow follows.
	if err := s.readAndCheckHandshakeToken(r, browser); err != nil {
		_ = browser.Close(websocket.StatusPolicyViolation, err.Error())
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	agent, _, err := websocket.Dial(ctx, "ws://agent"+r.URL.RequestURI(), &websocket.DialOptions{HTTPClient: s.agentClient})
	if err != nil {
		_ = browser.Close(websocket.StatusInternalError, "the agent does not answer")
		return
	}
	defer agent.CloseNow()
	agent.SetReadLimit(-1)
	browser.SetReadLimit(-1) // the agent limits the size of messages
	text, err := json.Marshal(websocketHandshake{Version: 1})
	if err == nil {
		err = agent.Write(ctx, websocket.MessageText, text)
	}
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { copyWebSocketMessages(ctx, cancel, agent, browser) })
	wg.Go(func() { copyWebSocketMessages(ctx, cancel, browser, agent) })
	wg.Wait()
}

var errNoSessionToken = errors.New("permission denied")

func (s *browserSession) readAndCheckHandshakeToken(r *http.Request, browser *websocket.Conn) error {
	if r.URL.Query().Get("ws_handshake") != "true" {
		return errNoSessionToken
	}
	ctx, cancel := context.WithTimeout(r.Context(), handshakeTimeout)
	defer cancel()
	_, text, err := browser.Read(ctx)
	var first websocketHandshake
	if err != nil || json.Unmarshal(text, &first) != nil || !equalSecrets(first.AuthToken, s.sessionToken) {
		return errNoSessionToken
	}
	return nil
}

// copyWebSocketMessages copies messages until one side closes. Then it closes the other side with the same code, and
// ends the copy in the other direction by cancel.
func copyWebSocketMessages(ctx context.Context, cancel context.CancelFunc, to, from *websocket.Conn) {
	for {
		kind, reader, err := from.Reader(ctx)
		if err != nil {
			var closed websocket.CloseError
			if errors.As(err, &closed) && closed.Code != websocket.StatusNoStatusRcvd {
				_ = to.Close(closed.Code, closed.Reason) // relayWebSocket closes the connection in any case
			}
			cancel()
			return
		}
		writer, err := to.Writer(ctx, kind)
		if err == nil {
			_, err = io.Copy(writer, reader)
			err = errors.Join(err, writer.Close())
		}
		if err != nil {
			cancel()
			return
		}
	}
}
