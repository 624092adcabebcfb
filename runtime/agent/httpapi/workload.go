package httpapi

import (
	"net/http"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// Paths that other services request to verify tokens of workload identities.
const (
	keySetPath    = "/.well-known/jwks.json"
	discoveryPath = "/.well-known/openid-configuration"
)

// keySetMaxAge is how long other services may keep the public keys. A new key is used at once, and
// services request the keys again when they see an unknown one.
const keySetMaxAge = "max-age=300"

// isFromTaskSocket reports whether a request was sent to the socket of a task.
func isFromTaskSocket(r *http.Request) bool { return r.Context().Value(taskSocketContextKey{}) != nil }

// isTaskToken reports whether a token has the form of a task's, with two dots. Other tokens have none.
func isTaskToken(token string) bool { return strings.Count(token, ".") == 2 }

// authenticateToken returns the task that a token belongs to, nil if the token is not valid, or not that of a task.
func (p *accessPolicy) authenticateToken(token string) *identity.Workload {
	if !isTaskToken(token) {
		return nil
	}
	if p.cluster != nil {
		return p.cluster.AuthenticateWorkload(token) // the servers issue the tokens
	}
	if p.identities == nil {
		return nil
	}
	w, err := p.identities.Authenticate(token)
	if err != nil {
		return nil
	}
	return w
}

// isPublicPath reports whether a path is open to all clients. The public keys are open if the operator has
// configured the address at which other services request them.
func (p *accessPolicy) isPublicPath(path string) bool {
	return publicPaths[path] || isWebUIPath(path) || p.cluster != nil && isSnapshotPath(path) || p.hasOIDCIssuer() && (path == keySetPath || path == discoveryPath)
}

func (p *accessPolicy) hasOIDCIssuer() bool {
	return p.identities != nil && p.identities.IssuerURL != ""
}

// workloadRoutes are the routes that tasks may use without access control, with GET: their rights limit what the replies have.
var workloadRoutes = map[string]bool{"/v1/var/{id...}": true, "/v1/vars": true, "/v1/services": true, "/v1/service/{id...}": true}

// checkWorkloadRoute rejects a request that a task may not send without access control. With it, the policies for the task decide.
func (p *accessPolicy) checkWorkloadRoute(r *request, method string, rt route) error {
	if r.rights.workload == nil || p.control != nil || method == http.MethodGet && (workloadRoutes[rt.pattern] || p.isPublicPath(r.URL.Path)) {
		return nil
	}
	return errPermissionDenied
}

// identityHandler serves the routes with which other services verify tokens of workload identities.
type identityHandler struct{ identities *identity.Issuer }

func (h *identityHandler) keySet(r *request) (any, error) {
	if h.identities == nil {
		return nil, notFoundError("this agent issues no tokens")
	}
	set, err := h.identities.KeySet(r.Context())
	if err == nil {
		r.w.Header().Set("Cache-Control", keySetMaxAge)
	}
	return set, err
}

// oidcDiscoveryDocument is the reply of the discovery of OpenID Connect.
type oidcDiscoveryDocument struct {
	Issuer        string   `json:"issuer"`
	KeySet        string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	Subjects      []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
}

func (h *identityHandler) readDiscoveryDocument(r *request) (any, error) {
	if h.identities == nil || h.identities.IssuerURL == "" {
		return nil, notFoundError(`OpenID Connect discovery is disabled: set oidc_issuer in the server block of the agent's configuration`)
	}
	r.w.Header().Set("Cache-Control", keySetMaxAge)
	return oidcDiscoveryDocument{
		Issuer: h.identities.IssuerURL, KeySet: strings.TrimSuffix(h.identities.IssuerURL, "/") + keySetPath,
		ResponseTypes: []string{"code"}, Subjects: []string{"public"}, Algorithms: []string{identity.Algorithm},
	}, nil
}

// taskSocketContextKey marks the context of a request to the socket of a task.
type taskSocketContextKey struct{}
