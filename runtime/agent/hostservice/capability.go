package hostservice

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// CapabilityTokenKey signs and verifies capability tokens.
type CapabilityTokenKey []byte

// tokenClaims are the names in a capability token.
type tokenClaims struct {
	AllocID string
	Task    string // "" for the allocation
	Hook    string
}

// nameSeparator separates the names in a token. No name contains it.
const nameSeparator = "\x00"

// NewCapabilityToken returns a hook's capability token for an allocation or a task.
func (k CapabilityTokenKey) NewCapabilityToken(allocID, task, hook string) string {
	names := allocID + nameSeparator + task + nameSeparator + hook
	return base64.RawURLEncoding.EncodeToString(append(k.signNames(names), names...))
}

func (k CapabilityTokenKey) signNames(names string) []byte {
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte(names))
	return mac.Sum(nil)
}

// VerifyToken verifies a token and returns its claims. The error is hook.ErrPermissionDenied.
func (k CapabilityTokenKey) VerifyToken(token string) (tokenClaims, error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < sha256.Size {
		return tokenClaims{}, hook.ErrPermissionDenied
	}
	names := string(b[sha256.Size:])
	parts := strings.Split(names, nameSeparator)
	if !hmac.Equal(b[:sha256.Size], k.signNames(names)) || len(parts) != 3 {
		return tokenClaims{}, hook.ErrPermissionDenied
	}
	return tokenClaims{parts[0], parts[1], parts[2]}, nil
}
