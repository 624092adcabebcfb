package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// browserGateway is an HTTP server on a loopback port for one browser. It rejects tasks, other users of the machine and
// other web sites; see DESIGN.md. It sends the first visitor who requests secretPath to targetAddress, whose fragment
// contains a secret.
type browserGateway struct {
	listener      net.Listener
	hostPort      string // host:port of the listener, the only accepted Host
	allowedUIDs   []int
	secretPath    string // secret path whose first visitor is sent to targetAddress
	targetAddress string // address to which the first visitor of secretPath is sent

	mu               sync.Mutex
	secretPathUses   int           // number of requests for secretPath
	secretPathUsed   chan struct{} // closed by the first request for secretPath
	secretPathReused chan struct{} // closed by the second request for secretPath
}

func listenBrowserGateway() (*browserGateway, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &browserGateway{
		listener: l, hostPort: l.Addr().String(), allowedUIDs: allowedBrowserUIDs(), secretPath: newSecret(),
		secretPathUsed: make(chan struct{}), secretPathReused: make(chan struct{}),
	}, nil
}

// baseURL returns the address of the gateway without a path.
func (g *browserGateway) baseURL() string { return "http://" + g.hostPort }

// secretURL returns the secret address whose first visitor is sent to target.
func (g *browserGateway) secretURL() string { return g.baseURL() + "/" + g.secretPath }

// allowedPeerContextKey is the context key of a bool: whether the connection of a request belongs to an allowed user.
type allowedPeerContextKey struct{}

// serve serves HTTP until ctx ends. next replies to all admitted requests except those for code.
func (g *browserGateway) serve(ctx context.Context, next http.Handler) error {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, allowedPeerContextKey{}, peerRunsAsOneOf(c, g.allowedUIDs))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !g.admitsClient(r):
				http.Error(w, "Permission denied: this page belongs to another user", http.StatusForbidden)
			case r.Method == http.MethodGet && equalSecrets(r.URL.Path, "/"+g.secretPath):
				g.forwardFirstVisitor(w) // before admitsRequestOrigin, because for the browser the handover file is another site
			case !g.admitsRequestOrigin(r):
				http.Error(w, "Permission denied: this page belongs to another web site", http.StatusForbidden)
			default:
				next.ServeHTTP(w, r)
			}
		}),
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		shutdownCtx, cancel := context.WithTimeout(context.Background(), time.Second) // time for a redirect that is being sent
		defer cancel()
		_ = server.Shutdown(shutdownCtx) // Close ends the connections that exceed the timeout
		_ = server.Close()               // the listener is closed already
	})
	err := server.Serve(g.listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-closed
		return nil
	}
	stop()
	return err
}

// admitsClient reports whether a request comes from a process of an allowed user, and has the gateway's own address as
// Host.
func (g *browserGateway) admitsClient(r *http.Request) bool {
	allowed, _ := r.Context().Value(allowedPeerContextKey{}).(bool)
	return allowed && r.Host == g.hostPort
}

// admitsRequestOrigin reports whether the browser's headers show that no other web site has caused the request.
func (g *browserGateway) admitsRequestOrigin(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	return (site == "" || site == "none" || site == "same-origin") && (origin == "" || origin == g.baseURL())
}

// forwardFirstVisitor sends the first visitor to targetAddress by a page with a refresh. A redirect by status would
// make the next request one from another site, because the visit started from a file.
func (g *browserGateway) forwardFirstVisitor(w http.ResponseWriter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.secretPathUses++
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if g.secretPathUses > 1 {
		http.Error(w, usedTwice, http.StatusGone)
		if g.secretPathUses == 2 {
			close(g.secretPathReused)
		}
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, newForwardingHTML(g.targetAddress)) // the browser can have disconnected
	close(g.secretPathUsed)
}

// usedTwice is the text of the page, and of the command, after the second request for the code.
const usedTwice = "The secret that opens the page was used twice: another program of this account has read it. Run nomad-lite ui again"

// equalSecrets compares two secrets in constant time.
func equalSecrets(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func newSecret() string { return rand.Text() }
