package httpapi

import (
	"crypto/rand"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
)

// proofHandler proves to clients without a token that the agent knows the token that they want to send.
type proofHandler struct {
	tokensByKeyID map[string]string
	unknownToken  string // key of the proofs for unknown tokens, which no client can tell from others
}

func newProofHandler(tokens ...Secret) *proofHandler {
	h := &proofHandler{make(map[string]string), rand.Text()}
	for _, token := range tokens {
		if token != "" {
			h.tokensByKeyID[agentproof.KeyID(string(token))] = string(token)
		}
	}
	return h
}

// prove replies with the proof for the connection of the request.
func (h *proofHandler) prove(r *request) (any, error) {
	proof, err := agentproof.Prove(r.Request, func(keyID string) string {
		if token, known := h.tokensByKeyID[keyID]; known {
			return token
		}
		return h.unknownToken
	})
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	r.w.Header().Set("Cache-Control", "no-store")
	return proof, nil
}
