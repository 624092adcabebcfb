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

// authenticateWorkload returns the task whose token a request has, nil if it has none that is valid.
func (p *accessPolicy) authenticateWorkload(r *http.Request) *identity.Workload {
	token := requestToken(r)
	if strings.Count(token, ".") != 2 {
		return nil // other tokens have no dots
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

// checkWorkloadTokenAccess rejects a request that a task may not send: its token permits only to read the variables of the
// task and the services of its namespace. Paths are compared completely: a prefix could be the
// name of another job.
func (r *request) checkWorkloadTokenAccess(method string, rt route, p *accessPolicy) error {
	w := r.rights.workload
	permitted := false
	switch rt.pattern {
	case "/v1/var/{id...}":
		permitted = r.namespace == w.Namespace && canReadVariable(w, r.pathID)
	case "/v1/vars", "/v1/services", "/v1/service/{id...}":
		permitted = r.namespace == w.Namespace
	default:
		permitted = p.isPublicPath(r.URL.Path)
	}
	if !permitted || method != http.MethodGet {
		return errPermissionDenied
	}
	return nil
}

// canReadVariable reports whether a task may read the variable at a path of its namespace.
func canReadVariable(w *identity.Workload, path string) bool {
	job := "nomad/jobs/" + w.JobID
	switch path {
	case "nomad/jobs", job, job + "/" + w.Group, job + "/" + w.Group + "/" + w.Task:
		return true
	}
	return false
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
