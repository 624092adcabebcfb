package httpapi

import (
	"crypto/rand"
	"net"
	"net/http"
	"net/netip"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
)

// proofHandler proves to clients without a token that the agent knows the token that they want to send.
type proofHandler struct {
	tokensByKeyID map[string]Secret
	unknownToken  Secret // key of the proofs for unknown tokens, which no client can tell from others
}

func newProofHandler(tokens ...Secret) *proofHandler {
	h := &proofHandler{tokensByKeyID: make(map[string]Secret), unknownToken: Secret(rand.Text())}
	for _, token := range tokens {
		if token != "" {
			h.tokensByKeyID[agentproof.KeyID(string(token))] = token
		}
	}
	return h
}

// prove replies with the proof for the connection of the request. The connection must be one over TCP: the addresses of
// others do not tell them apart.
func (h *proofHandler) prove(r *request) (any, error) {
	keyID, nonce := r.query.Get("key"), r.query.Get("nonce")
	if !agentproof.IsKeyIDOrNonce(keyID) || !agentproof.IsKeyIDOrNonce(nonce) {
		return nil, badRequestError("key and nonce must have 64 hexadecimal digits each")
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if local == nil || err != nil {
		return nil, badRequestError("the agent proves nothing over a unix socket, which the file system protects")
	}
	token, known := h.tokensByKeyID[keyID]
	if !known {
		token = h.unknownToken
	}
	r.w.Header().Set("Cache-Control", "no-store")
	return agentproof.ConnectionProof{Proof: agentproof.Compute(string(token), nonce, local.AddrPort(), client)}, nil
}
