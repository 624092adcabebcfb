package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// statusError is an answer that is not the usual one. Its text is all of the
// body.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

func bad(text string) error { return &statusError{http.StatusBadRequest, text} }

func notFound(text string) error { return &statusError{http.StatusNotFound, text} }

var errMethod = &statusError{http.StatusMethodNotAllowed, "Invalid method"}

// Secret is what nobody may see. It shows itself nowhere.
type Secret string

const redacted = "<redacted>"

func (Secret) String() string               { return redacted }
func (Secret) GoString() string             { return redacted }
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

var errDenied = &statusError{http.StatusForbidden, "Permission denied"}

// authorize decides who may ask at all, and whether the client may ask for everything: the
// routes for all clients are open to one that has not authenticated, too. The file mode
// of a unix socket has decided about those who come through it.
func (a *API) authorize(r *http.Request) (authenticated bool, err error) {
	local := r.Context().Value(unixKey{}) != nil
	// Who speaks TLS has found our certificate good for the name.
	if !local && r.TLS == nil && !a.knownHost(r.Host) {
		return false, &statusError{http.StatusForbidden, "Host " + printable(r.Host) + " is not a name of this agent"}
	}
	token := a.config.Token != "" && sameSecret(tokenOf(r), string(a.config.Token))
	switch {
	case !sameOrigin(r) && !(a.isShared(r) && (token || isPreflight(r))):
		return false, &statusError{http.StatusForbidden, "requests of other web sites are not answered"}
	case a.isTrusted(r), token, a.readOnly(r):
		return true, nil
	case open[r.URL.Path], asksLater(r), isPreflight(r) && a.isShared(r):
		return false, nil
	}
	return false, errDenied
}

// count has the connection of an authenticated client counted as such. Where no token is
// asked for, a complete request is what authenticates: one with a body is counted when
// that has been read.
func (a *API) count(r *request) error {
	if a.config.Token == "" && r.Context().Value(unixKey{}) == nil && r.ContentLength != 0 {
		r.uncounted = true
		return nil
	}
	return r.countConn()
}

// shared are the paths that pages of other web sites may ask for, as in Nomad,
// and how. They must show the token, which is what no page can do that a person
// has not given it to; so nothing is shared where no token is asked for.
var shared = []struct{ prefix, methods string }{
	{"/v1/client/", "GET, HEAD"},
	{"/v1/vars", "GET, HEAD"},
	{"/v1/var/", "GET, HEAD, PUT, DELETE"},
}

// sharedMethods returns how a path is shared; empty if it is not.
func (a *API) sharedMethods(r *http.Request) string {
	for _, s := range shared {
		if strings.HasPrefix(r.URL.Path, s.prefix) && a.config.Token != "" && r.Header.Get("Origin") != "" {
			return s.methods
		}
	}
	return ""
}

func (a *API) isShared(r *http.Request) bool { return a.sharedMethods(r) != "" }

// isPreflight tells whether a browser asks if it may ask.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
}

// handleCORS tells a browser what it may show to other web sites. It reports whether
// that was the question.
func (a *API) handleCORS(r *request) (answered bool) {
	methods := a.sharedMethods(r.Request)
	if methods == "" {
		return false
	}
	h := r.w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if !isPreflight(r.Request) {
		return false
	}
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Nomad-Token")
	return true
}

// isTrusted tells whether a request needs no token. A client certificate that was
// verified stands for one.
func (a *API) isTrusted(r *http.Request) bool {
	return a.config.Token == "" || r.Context().Value(unixKey{}) != nil || r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}

// knownHost refuses names that somebody else may have pointed at our address: a
// web page of theirs would be of our origin.
func (a *API) knownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	return net.ParseIP(name) != nil || strings.EqualFold(name, "localhost") ||
		slices.ContainsFunc(a.config.Names, func(known string) bool { return strings.EqualFold(name, known) })
}

// sameOrigin refuses what a browser sends on behalf of another site. Other
// clients send neither header.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// fromBrowser reports whether a browser has sent the request, as far as it tells.
func fromBrowser(r *http.Request) bool {
	h := r.Header
	return h.Get("Origin") != "" || h.Get("Referer") != "" ||
		h.Get("Sec-Fetch-Site") != "" || h.Get("Sec-Fetch-Mode") != "" || h.Get("Sec-Fetch-Dest") != ""
}

// tokenOf returns the token that a request shows. Basic authentication is left
// to proxies.
func tokenOf(r *http.Request) string {
	if token := r.Header.Get("X-Nomad-Token"); token != "" {
		return token
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// sameSecret takes as long for any wrong answer.
func sameSecret(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return -1
		}
		return c
	}, s)
}
