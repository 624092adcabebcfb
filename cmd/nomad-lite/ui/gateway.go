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

// gateway is the listener on a loopback port to which a browser is sent. It keeps out tasks, other users of the machine
// and other web sites; see DESIGN.md. The first visitor with the code is sent to an address with a secret in the fragment.
type gateway struct {
	listener net.Listener
	host     string // host:port of the listener, the only accepted Host
	users    []int
	code     string // path of the address that leads to the target
	target   string // where the first visitor with the code is sent

	mu      sync.Mutex
	uses    int           // requests with the code
	visited chan struct{} // closed by the first request with the code
	reused  chan struct{} // closed by the second request with the code
}

func newGateway() (*gateway, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &gateway{
		listener: l, host: l.Addr().String(), users: allowedUsers(), code: newSecret(),
		visited: make(chan struct{}), reused: make(chan struct{}),
	}, nil
}

// address is the address of the listener, without a path.
func (g *gateway) address() string { return "http://" + g.host }

// codeAddress is the address that leads to the target, once. It is a secret.
func (g *gateway) codeAddress() string { return g.address() + "/" + g.code }

// peerKey is the context key of whether the connection of a request belongs to an allowed user.
type peerKey struct{}

// serve serves the listener until ctx ends. next replies to the requests that the gateway has admitted, except those
// with the code.
func (g *gateway) serve(ctx context.Context, next http.Handler) error {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, isAllowedPeer(c, g.users))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !g.admitsClient(r):
				http.Error(w, "Permission denied: this page belongs to another user", http.StatusForbidden)
			case r.Method == http.MethodGet && equalSecrets(r.URL.Path, "/"+g.code):
				g.sendToTarget(w) // the file that leads here is another site for the browser
			case !g.admitsSite(r):
				http.Error(w, "Permission denied: this page belongs to another web site", http.StatusForbidden)
			default:
				next.ServeHTTP(w, r)
			}
		}),
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		shutdownCtx, cancel := context.WithTimeout(context.Background(), time.Second) // a redirect that is being sent
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

// admitsClient reports whether a request comes from a process of an allowed user, and names the gateway by its address.
func (g *gateway) admitsClient(r *http.Request) bool {
	allowed, _ := r.Context().Value(peerKey{}).(bool)
	return allowed && r.Host == g.host
}

// admitsSite reports whether a request does not come from another web site.
func (g *gateway) admitsSite(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	return (site == "" || site == "none" || site == "same-origin") && (origin == "" || origin == g.address())
}

// sendToTarget sends the first visitor to the target. A redirect by status would make the page a request from another
// site, because the browser was sent here by a file.
func (g *gateway) sendToTarget(w http.ResponseWriter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.uses++
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if g.uses > 1 {
		http.Error(w, usedTwice, http.StatusGone)
		if g.uses == 2 {
			close(g.reused)
		}
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, forwardingPage(g.target)) // the browser can have disconnected
	close(g.visited)
}

// usedTwice is the text of the page, and of the terminal, after the second use of a code.
const usedTwice = "The secret that opens the page was used twice: another program of this account has read it. Run nomad-lite ui again"

// equalSecrets compares in constant time.
func equalSecrets(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func newSecret() string { return rand.Text() }
