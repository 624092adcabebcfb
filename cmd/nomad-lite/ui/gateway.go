package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// gateway is the listener on a loopback port to which a browser is sent. It keeps out other users of the machine and
// other web sites; see DESIGN.md. Its first visitor is redirected to an address with a secret in the fragment.
type gateway struct {
	listener net.Listener
	host     string // host:port of the listener, the only accepted Host
	users    []int

	mu     sync.Mutex
	target string // where the first visitor is sent; "" after the visit

	visited chan struct{} // closed after the visit
}

func newGateway() (*gateway, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &gateway{listener: l, host: l.Addr().String(), users: allowedUsers(), visited: make(chan struct{})}, nil
}

// address is the address that a browser is opened with. It has no secret.
func (g *gateway) address() string { return "http://" + g.host + "/" }

// peerKey is the context key of whether the connection of a request belongs to an allowed user.
type peerKey struct{}

// serve serves the listener until ctx ends. next replies to the requests that the gateway has admitted, except those
// for "/".
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
			case !g.admits(r):
				http.Error(w, "Permission denied: this page belongs to another user or another web site", http.StatusForbidden)
			case r.URL.Path == "/":
				g.redirect(w, r)
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

// admits reports whether a request comes from a browser of an allowed user, and not from another web site.
func (g *gateway) admits(r *http.Request) bool {
	allowed, _ := r.Context().Value(peerKey{}).(bool)
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	return allowed && r.Host == g.host && (site == "" || site == "none" || site == "same-origin") && (origin == "" || origin == "http://"+g.host)
}

// redirect sends the first visitor to the target.
func (g *gateway) redirect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	g.mu.Lock()
	target := g.target
	g.target = ""
	g.mu.Unlock()
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if target == "" {
		http.Error(w, "This address was used before. Run nomad-lite ui again.", http.StatusGone)
		return
	}
	http.Redirect(w, r, target, http.StatusFound)
	close(g.visited)
}

// equalSecrets compares in constant time.
func equalSecrets(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func newSecret() string { return rand.Text() }
