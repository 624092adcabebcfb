package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// statusError is an error to which the API replies with statusCode. replyBody is the complete body of the reply.
type statusError struct {
	statusCode int
	replyBody  string
}

func (e *statusError) Error() string { return e.replyBody }

func badRequestError(text string) error { return &statusError{http.StatusBadRequest, text} }

func notFoundError(text string) error { return &statusError{http.StatusNotFound, text} }

var errInvalidMethod = &statusError{http.StatusMethodNotAllowed, "Invalid method"}

// Secret is a secret text. It is redacted in all formats.
type Secret string

const redactedText = "<redacted>"

func (Secret) String() string               { return redactedText }
func (Secret) GoString() string             { return redactedText }
func (Secret) MarshalText() ([]byte, error) { return []byte(redactedText), nil }

// accessPolicy decides which requests are permitted. With access control, the tokens in the state decide. Without it, all clients
// have all rights if operatorToken is empty; if readToken is empty, there is no read-only token.
type accessPolicy struct {
	operatorToken, readToken Secret
	acceptedHostNames        []string         // accepted host names, besides localhost and any IP address
	identities               *identity.Issuer // authenticates tasks; may be nil
	cluster                  *Cluster         // nil if the agent is not a node of a cluster
	store                    *store.Store
	control                  *accesscontrol.Control // nil if access control is not enabled
}

var errPermissionDenied = &statusError{http.StatusForbidden, "Permission denied"}

// errUnauthorized is the reply to a request without a token on a task's socket, as in Nomad.
var errUnauthorized = &statusError{http.StatusUnauthorized, "Unauthorized"}

// authorize rejects requests that a client may not send, and reports whether the client is authenticated:
// other clients may use only the open routes. A client of the agent's unix socket is authenticated by the file mode
// of the socket; a client of the socket of a task needs a token for each route. In a cluster with access control, other
// clients are users of the cluster, whose tokens are checked later. With access control of this agent, all clients are
// authenticated except those with an invalid token: the route decides.
func (p *accessPolicy) authorize(r *http.Request) (authenticated bool, rights clientRights, err error) {
	rights.acl = acl.Management()
	if r.Context().Value(authorizedContextKey{}) != nil {
		return true, rights, nil
	}
	local := r.Context().Value(unixSocketContextKey{}) != nil || isFromTaskSocket(r)
	// A TLS client has verified that the certificate is valid for the host name, so that the name needs no
	// check.
	if !local && r.TLS == nil && !p.isAcceptedHost(r.Host) {
		return false, rights, &statusError{http.StatusForbidden, "Host " + keepPrintableASCII(r.Host) + " is not a name of this agent"}
	}
	var token bool
	if p.control != nil {
		rights = p.rightsOfToken(r)
		token = rights.tokenErr == nil && requestToken(r) != ""
	} else {
		token = p.operatorToken != "" && equalSecrets(requestToken(r), string(p.operatorToken))
	}
	switch {
	case !isSameOrigin(r) && !isWebUINavigation(r) && !(p.allowsCORS(r) && (token || isCORSPreflight(r))):
		return false, rights, &statusError{http.StatusForbidden, "requests of other web sites are not answered"}
	case p.control != nil && isFromTaskSocket(r) && requestToken(r) == "":
		return false, rights, errUnauthorized
	case p.control != nil && isFromTaskSocket(r) && rights.tokenErr != nil:
		return false, rights, errPermissionDenied
	case p.control != nil:
		return rights.tokenErr == nil, rights, nil
	case p.needsNoTokenForRequest(r), token:
		return true, rights, nil
	case p.hasOnlyReadOnlyToken(r):
		rights.isReadOnly = true
		return true, rights, nil
	case p.isClusterUser(r):
		rights.isClusterUser = true
		return true, rights, nil
	}
	rights.acl = new(acl.Rights)
	if rights.workload = p.authenticateToken(requestToken(r)); rights.workload != nil {
		w := rights.workload
		rights.acl = rights.acl.WithWorkload(acl.Workload{Namespace: w.Namespace, Job: w.JobID, Group: w.Group, Task: w.Task})
		return true, rights, nil
	}
	if isFromTaskSocket(r) && requestToken(r) == "" {
		return false, rights, errUnauthorized
	}
	if !isFromTaskSocket(r) && (p.isPublicPath(r.URL.Path) || sendsTokenInExecSession(r) || isCORSPreflight(r) && p.allowsCORS(r)) {
		rights.isUnchecked = true // the path, or the token in the session, decides
		return false, rights, nil
	}
	return false, rights, errPermissionDenied
}

// errTooManyConns starts with the text that Nomad sends to a client with too many connections.
var errTooManyConns = &statusError{http.StatusTooManyRequests, "Your IP is issuing too many concurrent connections, please rate limit your calls. " +
	"Close connections that are not needed, or raise http_max_conns_per_client in the limits block of the agent's configuration"}

// clientToCountConnFor returns the client that the connection of an authenticated request counts for.
func (p *accessPolicy) clientToCountConnFor(r *request) connlimit.ClientIdentity {
	id := r.conn.PeerIdentity()
	switch {
	case r.rights.workload != nil:
		task := taskapi.TaskAddr{AllocID: r.rights.workload.AllocID, Task: r.rights.workload.Task}
		return connlimit.ClientIdentity{Class: connlimit.Task, Name: task.String()}
	case id.Class == connlimit.Operator, p.control == nil && p.operatorToken != "" && !r.rights.isReadOnly && !r.rights.isClusterUser,
		p.control != nil && r.rights.grant != nil && r.rights.grant.Token != nil:
		id.Class = connlimit.Operator
	default:
		id.Class = connlimit.Guest
	}
	return id
}

// countConnNowOrAfterBody counts the connection of an authenticated request for its client. A client that needs no token is
// counted only if it sends a complete request: after the body was read, if there is one.
func (a *API) countConnNowOrAfterBody(r *request) error {
	client := a.access.clientToCountConnFor(r)
	if client.Class == connlimit.Guest && r.ContentLength != 0 {
		r.clientToCountAfterBody = client
		return nil
	}
	return r.countConnForClient(client)
}

// corsPaths are the paths, with their methods, that pages of other web sites may request, as in Nomad. Such
// a request must have the token, which a page has only if a person has entered the token there. If no token is configured,
// pages of other web sites may request no path.
var corsPaths = []struct{ prefix, methods string }{
	{"/v1/client/", "GET, HEAD"},
	{"/v1/vars", "GET, HEAD"},
	{"/v1/var/", "GET, HEAD, PUT, DELETE"},
}

// allowedCORSMethods returns the methods with which pages of other web sites may request a path, "" if they may
// not.
func (p *accessPolicy) allowedCORSMethods(r *http.Request) string {
	for _, s := range corsPaths {
		if strings.HasPrefix(r.URL.Path, s.prefix) && (p.operatorToken != "" || p.control != nil) && r.Header.Get("Origin") != "" {
			return s.methods
		}
	}
	return ""
}

func (p *accessPolicy) allowsCORS(r *http.Request) bool { return p.allowedCORSMethods(r) != "" }

// isCORSPreflight reports whether a request is a CORS preflight request.
func isCORSPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
}

// handleCORS sets the CORS headers of a response. answered reports that the request is a preflight request, so that the
// reply is complete.
func (p *accessPolicy) handleCORS(r *request) (answered bool) {
	methods := p.allowedCORSMethods(r.Request)
	if methods == "" {
		return false
	}
	h := r.w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if !isCORSPreflight(r.Request) {
		return false
	}
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Nomad-Token")
	return true
}

// isClusterUser reports whether the rights of a request, which has no token of this agent, are those of a user or of a task
// that the servers know. A client that sends its token in a session is none before the session, and a client of the
// socket of a task needs a token.
func (p *accessPolicy) isClusterUser(r *http.Request) bool {
	return p.cluster != nil && p.cluster.Rights != nil && !sendsTokenInExecSession(r) && (!isFromTaskSocket(r) || requestToken(r) != "")
}

// needsNoTokenForRequest reports whether a request needs no token. A verified client certificate replaces the
// token, except in a cluster, where all nodes have certificates of the same authority.
func (p *accessPolicy) needsNoTokenForRequest(r *http.Request) bool {
	if isFromTaskSocket(r) || p.control != nil {
		return false
	}
	return p.operatorToken == "" || r.Context().Value(unixSocketContextKey{}) != nil || p.cluster == nil && r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}

// isAcceptedHost reports whether the Host header of a request has an IP address or a name of the agent. Another name may
// belong to an attacker and lead to the address of the agent, so that a page of the attacker would have the same origin
// as the API.
func (p *accessPolicy) isAcceptedHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	return net.ParseIP(name) != nil || strings.EqualFold(name, "localhost") ||
		slices.ContainsFunc(p.acceptedHostNames, func(known string) bool { return strings.EqualFold(name, known) })
}

// isSameOrigin returns false for requests that a browser sends on behalf of another web site, according
// to the headers Origin and Sec-Fetch-Site. Clients other than browsers send neither header.
func isSameOrigin(r *http.Request) bool {
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

// isFromBrowser reports whether a request has the headers of a browser.
func isFromBrowser(r *http.Request) bool {
	h := r.Header
	return h.Get("Origin") != "" || h.Get("Referer") != "" ||
		h.Get("Sec-Fetch-Site") != "" || h.Get("Sec-Fetch-Mode") != "" || h.Get("Sec-Fetch-Dest") != ""
}

// requestToken returns the token of a request. It ignores credentials of Basic authentication, which
// are for proxies.
func requestToken(r *http.Request) string {
	if token := r.Header.Get("X-Nomad-Token"); token != "" {
		return token
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// equalSecrets compares two secrets in constant time.
func equalSecrets(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func keepPrintableASCII(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return -1
		}
		return c
	}, s)
}
