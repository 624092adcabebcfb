package httpapi

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/agent/ui"
)

// loginPath is the route that exchanges a one-time secret for the token.
const loginPath = "/v1/agent/login"

const (
	loginSecretLifetime = time.Minute
	maxLoginSecrets     = 64 // unused secrets; a further one replaces the oldest
)

// loginSecrets are the one-time secrets with which browsers log in. A program with the token opens a browser with such
// a secret in the fragment of the address, which browsers send to no server. The zero value has no secrets.
type loginSecrets struct {
	mu                 sync.Mutex
	expiryBySecretHash map[[sha256.Size]byte]time.Time // by the hash of the secret, so that a lookup takes the same time for all secrets
}

// createSecret returns a new secret and the time until which it is valid.
func (s *loginSecrets) createSecret(now time.Time) (secret string, expires time.Time) {
	secret, expires = rand.Text(), now.Add(loginSecretLifetime)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiryBySecretHash == nil {
		s.expiryBySecretHash = make(map[[sha256.Size]byte]time.Time)
	}
	if len(s.expiryBySecretHash) >= maxLoginSecrets {
		s.deleteOldestLocked()
	}
	s.expiryBySecretHash[sha256.Sum256([]byte(secret))] = expires
	return secret, expires
}

func (s *loginSecrets) deleteOldestLocked() {
	var oldest [sha256.Size]byte
	for hash, expires := range s.expiryBySecretHash {
		if first, ok := s.expiryBySecretHash[oldest]; !ok || expires.Before(first) {
			oldest = hash
		}
	}
	delete(s.expiryBySecretHash, oldest)
}

// redeemSecret reports whether a secret is valid, and invalidates it.
func (s *loginSecrets) redeemSecret(secret string, now time.Time) bool {
	hash := sha256.Sum256([]byte(secret))
	s.mu.Lock()
	defer s.mu.Unlock()
	expires, found := s.expiryBySecretHash[hash]
	delete(s.expiryBySecretHash, hash)
	return found && now.Before(expires)
}

// loginHandler logs browsers in.
type loginHandler struct {
	operatorToken Secret
	secrets       loginSecrets
}

// loginSecretReply is the reply to a request for a one-time secret.
type loginSecretReply struct {
	Secret  string // empty if the agent requires no token
	Expires time.Time
}

// loginTokenReply is the reply to an exchange of a one-time secret.
type loginTokenReply struct{ Token string }

// createSecret makes a one-time secret for a client that has all rights.
func (h *loginHandler) createSecret(r *request) (any, error) {
	r.w.Header().Set("Cache-Control", "no-store")
	if h.operatorToken == "" {
		return loginSecretReply{}, nil
	}
	secret, expires := h.secrets.createSecret(time.Now())
	return loginSecretReply{secret, expires}, nil
}

// exchangeSecretForToken replies with the operator's token if the request has a valid one-time secret in place of a
// token. The secret is not in the body, because the API does not read the body of a request that has not authenticated.
func (h *loginHandler) exchangeSecretForToken(r *request) (any, error) {
	r.w.Header().Set("Cache-Control", "no-store")
	if h.operatorToken == "" || !h.secrets.redeemSecret(requestToken(r.Request), time.Now()) {
		return nil, &statusError{http.StatusForbidden, "Permission denied: this login has expired, or was used before"}
	}
	return loginTokenReply{string(h.operatorToken)}, nil
}

// isWebUIPath reports whether a path belongs to the web page or one of its files, which disclose no data of the agent.
func isWebUIPath(path string) bool { return path == "/" || strings.HasPrefix(path, ui.Prefix) }

// isWebUINavigation reports whether a browser opens the web page, which a link on any web site may do. Other web
// sites cannot read the page, or show it in a frame.
func isWebUINavigation(r *http.Request) bool {
	return r.Method == http.MethodGet && isWebUIPath(r.URL.Path) && r.Header.Get("Sec-Fetch-Mode") == "navigate"
}
